"""How a step sees the volume: exactly, or by the paper's random slices."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from scantune.methods import Method, Terms
from scantune.prior import slices


@dataclass(frozen=True)
class Volume:
    """A scan as the network sees it: `(slices, channels, *spatial)`, and True where it is padding."""

    images: Tensor
    padding: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """On a device."""
        return type(self)(self.images.to(device), None if self.padding is None else self.padding.to(device))

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """All slices once, in order."""
        return slices(self.images, self.padding, size)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Slices drawn uniformly with replacement."""
        chosen = torch.randint(len(self.images), (size,), generator=generator).to(self.images.device)
        return self.images[chosen], None if self.padding is None else self.padding[chosen]


class Sampling(ABC):
    """How a step sees the volume."""

    smoothing: float
    """Momentum of the moving average by which steps are compared; 0 where the objective is exact."""

    @abstractmethod
    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """Adds the objective's gradient to the moving parameters' `.grad`, and tells the objective."""

    @abstractmethod
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The objective alone."""


@dataclass(frozen=True)
class WholeVolume(Sampling):
    """Exact: statistics of all slices, as the training densities pool all slices of a subject.

    A first pass sums the statistics; the objective's gradient with respect to these sums is then handed back batch by
    batch in a second pass. Memory is that of one batch. A volume that fits in one batch needs one pass.
    """

    batch: int = 8
    smoothing: float = 0.0

    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """The gradient of the whole volume's objective."""
        if len(volume.images) <= self.batch:
            terms = method.terms(method.measure(volume.images, volume.padding))
            terms.objective.backward()  # type: ignore[no-untyped-call]
            return terms
        total = {key: value.requires_grad_() for key, value in self._total(method, volume).items()}
        terms = method.terms(total)
        terms.objective.backward()  # type: ignore[no-untyped-call]
        for images, padding in volume.batches(self.batch):
            parts = method.measure(images, padding)
            pairs = [(part, total[key].grad) for key, part in parts.items() if part.requires_grad]
            used = [(part, grad.to(part)) for part, grad in pairs if grad is not None]
            torch.autograd.backward([part for part, _ in used], [grad for _, grad in used])
        return terms

    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """The whole volume's objective."""
        return method.terms(self._total(method, volume))

    @torch.no_grad()
    def _total(self, method: Method, volume: Volume) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for images, padding in volume.batches(self.batch):
            for key, value in method.measure(images, padding).items():
                total[key] = total.get(key, 0) + value.double()
        return total


@dataclass(frozen=True)
class RandomSlices(Sampling):
    """The paper's estimate: as many batches of random slices as cover the volume, their gradients averaged."""

    batch: int = 8
    smoothing: float = 0.95

    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The mean gradient of one epoch's batches."""
        count = self._count(volume)
        epoch = []
        for _ in range(count):
            terms = method.terms(method.measure(*volume.draw(self.batch, generator)))
            (terms.objective / count).backward()  # type: ignore[no-untyped-call]
            epoch.append(terms)
        return _mean(epoch)

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The mean objective of one epoch's batches."""
        draws = (volume.draw(self.batch, generator) for _ in range(self._count(volume)))
        return _mean([method.terms(method.measure(*batch)) for batch in draws])

    def _count(self, volume: Volume) -> int:
        return math.ceil(len(volume.images) / self.batch)


def _mean(epoch: Sequence[Terms]) -> Terms:
    objective = torch.stack([terms.objective.detach() for terms in epoch]).mean()
    parts = {
        name: torch.stack([terms.parts[name].detach().float() for terms in epoch]).mean() for name in epoch[0].parts
    }
    # An epoch counts unless most of its batches lacked the patches to judge it.
    return Terms(objective, parts, 2 * sum(terms.valid for terms in epoch) >= len(epoch))
