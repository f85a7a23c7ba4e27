"""Half precision where it is safe: the frozen task network, between a picture and sums in single precision."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from scantune.networks.adaptable import AdaptableNetwork


class Precision(ABC):
    """In which precision a task network is run."""

    @abstractmethod
    @contextmanager
    def running(self) -> Iterator[None]:
        """While the network is run."""

    @abstractmethod
    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What was made of its features, as objectives are to be made of."""


class Single(Precision):
    """As it is."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing is special."""
        yield

    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As they are."""
        return dict(statistics)


class Half(Precision):
    """Features and their gradients in half precision; the normaliser, which moves, in single precision.

    Gradients of means over millions of pixels are too small for half precision, so that they are scaled up on their way
    into the network, and down again on their way out of it.

    Args:
        network: It gets a gate behind its normaliser, which `remove` takes away.
        pixels: Of the whole volume, about.
    """

    def __init__(self, network: AdaptableNetwork, pixels: int) -> None:
        self.network, self.device = network, next(network.parameters()).device.type
        self.scale = 2.0 ** pixels.bit_length()
        self.gate = network.normalizer = Gate(network.normalizer, self.scale)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The gate is open, and what follows it computes in half precision."""
        self.gate.open = True
        try:
            with torch.autocast(self.device, torch.float16):
                yield
        finally:
            self.gate.open = False

    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """With gradients that are scaled up."""
        return {key: _Lift.apply(value, self.scale) for key, value in statistics.items()}  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Leaves the network as it was."""
        self.network.normalizer = self.gate.normalizer


class Gate(nn.Module):
    """A normaliser whose picture goes on in half precision while the gate is open."""

    def __init__(self, normalizer: nn.Module, scale: float) -> None:
        super().__init__()
        self.normalizer, self.scale, self.open = normalizer, scale, False

    def forward(self, image: Tensor) -> Tensor:
        """The normalised image."""
        if not self.open:
            return self.normalizer(image)  # type: ignore[no-any-return]
        with torch.autocast(image.device.type, enabled=False):
            return _Halve.apply(self.normalizer(image), self.scale)  # type: ignore[no-any-return, no-untyped-call]


class _Lift(torch.autograd.Function):
    """The same, its gradient times a scale."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.scale, None


class _Halve(torch.autograd.Function):
    """In half precision, its gradient in single precision over a scale."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return value.half()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].float() / ctx.scale, None
