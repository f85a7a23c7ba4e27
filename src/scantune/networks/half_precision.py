"""Half precision where it is safe: features and their gradients; parameters that move and sums are single."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from scantune.networks.adaptable import AdaptableNetwork
from scantune.networks.convolution import has_float32_weight_gradient
from scantune.networks.normalizer import Bump

NORMALIZER_GRADIENT_SCALE = 2.0**-6
"""By which gradients are scaled down on their way into a normaliser in half precision, whose bumps may be steep."""


class ForwardPrecision(ABC):
    """Precision in which a task network runs."""

    @abstractmethod
    @contextmanager
    def running(self) -> Iterator[None]:
        """Set the precision while the network runs."""

    @abstractmethod
    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return statistics of features with gradients scaled for this precision."""


class SinglePrecision(ForwardPrecision):
    """As it is."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Change nothing."""
        yield

    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the statistics as they are."""
        return dict(statistics)


class PrecisionGate(nn.Module, ABC):
    """A normaliser whose output is in half precision while the gate is open."""

    def __init__(self, normalizer: nn.Module, scale: float) -> None:
        super().__init__()
        self.normalizer, self.scale, self.open = normalizer, scale, False

    def forward(self, image: Tensor) -> Tensor:
        """Return the normalised image."""
        return self.halved(image) if self.open else self.normalizer(image)

    @abstractmethod
    def halved(self, image: Tensor) -> Tensor:
        """Return the normalised image in half precision, and scale gradients so that parameters get theirs unscaled."""


class GateAfterNormalizer(PrecisionGate):
    """The normaliser is in single precision: a library sums its parameters' gradients in the precision of features."""

    def halved(self, image: Tensor) -> Tensor:
        """Scale gradients down before they reach the normaliser."""
        with torch.autocast(image.device.type, enabled=False):
            return _Halve.apply(self.normalizer(image), self.scale)  # type: ignore[no-any-return, no-untyped-call]


class GateInNormalizer(PrecisionGate):
    """The normaliser is in half precision too; sums over pixels are single."""

    def halved(self, image: Tensor) -> Tensor:
        """Scale gradients down when they reach the parameters."""
        rest = 1 / (NORMALIZER_GRADIENT_SCALE * self.scale)
        parameters = {name: _Scaled.apply(p, rest) for name, p in self.normalizer.named_parameters()}  # type: ignore[no-untyped-call]
        picture = _Scaled.apply(functional_call(self.normalizer, parameters, (image,)), NORMALIZER_GRADIENT_SCALE)  # type: ignore[no-untyped-call]
        return picture.half()  # type: ignore[no-any-return]


class HalfPrecision(ForwardPrecision):
    """Features and their gradients in half precision.

    Gradients of means over millions of pixels are too small for half precision, so that they are scaled up on their way
    into the network, and down again on their way out of it.

    Args:
        network: It gets a gate around its normaliser, which `remove` takes away.
        pixels: Of the whole volume, about.
        gate: One of `possible_gates`.
    """

    def __init__(self, network: AdaptableNetwork, pixels: int, gate: type[PrecisionGate] = GateAfterNormalizer) -> None:
        self.network, self.device = network, next(network.parameters()).device.type
        self.scale = 2.0 ** pixels.bit_length()
        self.gate: PrecisionGate = gate(network.normalizer, self.scale)
        network.normalizer = self.gate

    @contextmanager
    def running(self) -> Iterator[None]:
        """Open the gate, and compute in half precision what follows."""
        self.gate.open = True
        try:
            with torch.autocast(self.device, torch.float16):
                yield
        finally:
            self.gate.open = False

    def lifted(self, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Scale up the gradients of the statistics."""
        return {key: _Scaled.apply(value, self.scale) for key, value in statistics.items()}  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """Restore the network's own normaliser."""
        self.network.normalizer = self.gate.normalizer


def possible_gates(normalizer: nn.Module) -> list[type[PrecisionGate]]:
    """Return the gates that a normaliser may have, the fastest first.

    Within it only if kernels compute all parameters' gradients.
    """
    owners = [module for module in normalizer.modules() if next(module.parameters(recurse=False), None) is not None]
    within = all(isinstance(owner, Bump) or has_float32_weight_gradient(owner) for owner in owners)
    return [GateInNormalizer, GateAfterNormalizer] if within else [GateAfterNormalizer]


class _Scaled(torch.autograd.Function):
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
