"""A group of experts with their training densities: one layer of a Field of Experts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from scantune.densities import STORED, Density, Gaussian
from scantune.networks import Affine

NEGLIGIBLE = 1e-8
"""Experts whose variance is below this share of the group's mean second moment say nothing and are dropped."""


@dataclass(frozen=True)
class Field:
    """The experts of one group, standardised by training mean and deviation, and their densities.

    Args:
        center: Training mean of each expert's outputs `(experts,)`.
        scale: Training deviation `(experts,)`.
        kept: False for experts that hardly vary in training `(experts,)`.
        density: Densities of the standardised outputs of the training subjects.
    """

    center: Tensor
    scale: Tensor
    kept: Tensor
    density: Density

    @classmethod
    def from_moments(cls, moments: Gaussian) -> Self:
        """From the raw (not standardised) moments `(subjects, experts)` of the training subjects."""
        center = moments.mean.mean(0)
        pooled = moments.variance.mean(0) + moments.mean.var(0, correction=0)
        energy = (pooled + center.square()).mean()
        kept = (pooled > NEGLIGIBLE * energy) & (moments.variance.min(0).values > 0)
        scale = torch.where(kept, pooled, 1).sqrt()
        mean = torch.where(kept, (moments.mean - center) / scale, 0)
        variance = torch.where(kept, moments.variance / scale.square(), 1)
        return cls(center.float(), scale.float(), kept, Gaussian(mean.float(), variance.float()))

    def measure(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """Additive statistics `(statistics, experts)` of outputs `(slices, experts, *spatial)`."""
        shape = (1, -1, *[1] * (values.ndim - 2))
        standard = (values - self.center.view(shape)) / self.scale.view(shape)
        return self.density.measure(standard, weights)

    def divergence(self, statistics: Tensor) -> Tensor:
        """Mean over the kept experts of the divergence of a scan from the training subjects, a scalar in nats."""
        return self._mean(self.density.divergence(self.density.estimate(statistics)))

    def floor(self) -> Tensor:
        """The smallest value `divergence` can take, a scalar in nats."""
        return self._mean(self.density.floor())

    def _mean(self, values: Tensor) -> Tensor:
        return torch.where(self.kept, values, 0).sum() / self.kept.sum()

    def folded(self, affine: Affine) -> Self:
        """For outputs that went through an affine map; the standardised outputs stay what they were."""
        scale, shift = affine.scale.to(self.center), affine.shift.to(self.center)
        return replace(self, center=self.center * scale + shift, scale=self.scale * scale)

    def summarised(self) -> Self:
        """Without any per-subject number."""
        if not isinstance(self.density, Gaussian):
            return self
        return replace(self, density=self.density.summary())

    def to(self, device: torch.device) -> Self:
        """On a device."""
        density = type(self.density).from_tensors({k: t.to(device) for k, t in self.density.tensors().items()})
        return type(self)(self.center.to(device), self.scale.to(device), self.kept.to(device), density)

    def tensors(self) -> dict[str, Tensor]:
        """What is stored, the density's tensors after the standardisation."""
        own = {"center": self.center, "scale": self.scale, "kept": self.kept.to(torch.uint8)}
        return own | {f"density.{key}": value for key, value in self.density.tensors().items()}

    def record(self) -> dict[str, Any]:
        """The form of the density."""
        return {"density": self.density.name}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `record` and `tensors`."""
        stored = {k.removeprefix("density."): t for k, t in tensors.items() if k.startswith("density.")}
        density = STORED[record["density"]].from_tensors(stored)
        return cls(tensors["center"], tensors["scale"], tensors["kept"].bool(), density)
