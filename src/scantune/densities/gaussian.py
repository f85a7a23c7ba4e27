"""Gaussian experts (Eq. 10): a mean and a variance per expert, divergence in closed form."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import torch
from torch import Tensor

from scantune.densities.base import Density

FLOOR = 1e-6
"""Added to both variances of a divergence, in units of the expert's training variance (values are standardised)."""


@dataclass(frozen=True)
class Gaussian(Density):
    """Normal densities, population moments.

    Args:
        mean: `(subjects, experts)`.
        variance: `(subjects, experts)`.
    """

    name: ClassVar[str] = "gaussian"
    mean: Tensor
    variance: Tensor

    @classmethod
    def measure(cls, values: Tensor, weights: Tensor | None) -> Tensor:
        """Number, sum and sum of squares, `(3, experts)`."""
        over = (0, *range(2, values.ndim))
        if weights is None:
            number = torch.full_like(values[0].flatten(1)[:, 0], values.numel() / values.shape[1])
            return torch.stack([number, values.sum(over), values.square().sum(over)])
        number = weights.sum().expand(values.shape[1])
        counted = values * weights
        return torch.stack([number, counted.sum(over), (counted * values).sum(over)])

    @classmethod
    def estimate(cls, statistics: Tensor) -> Self:
        """Mean and biased variance of the scan, `(1, experts)`."""
        number, total, squares = statistics.unsqueeze(1)
        mean = total / number.clamp_min(1)
        return cls(mean, (squares / number.clamp_min(1) - mean.square()).clamp_min(0))

    def divergence(self, test: Self) -> Tensor:
        """E_s KL(p_s || p_t), exact over all subjects at the cost of one."""
        return self.summary().divergence(test)

    def floor(self) -> Tensor:
        """The value of the expected KL at its best test density; zero only if all subjects are alike."""
        return self.summary().floor()

    def summary(self) -> "SummarisedGaussian":
        """Seven numbers per expert that serve every Gaussian objective without any per-subject number."""
        v = self.variance + FLOOR
        return SummarisedGaussian(
            variance=v.mean(0),
            mean=self.mean.mean(0),
            spread=self.mean.var(0, correction=0),
            log_variance=v.log().mean(0),
            precision=v.reciprocal().mean(0),
            weighted_mean=(self.mean / v).mean(0),
            weighted_square=(self.mean.square() / v).mean(0),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Mean and variance per subject."""
        return {"mean": self.mean, "variance": self.variance}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """From mean and variance."""
        return cls(tensors["mean"], tensors["variance"])


@dataclass(frozen=True)
class SummarisedGaussian(Density):
    """What is left of many subjects' Gaussians when no number may tell of a single subject, `(experts,)` each.

    Args:
        variance: E v.
        mean: E mu.
        spread: Var mu.
        log_variance: E log v.
        precision: E 1/v.
        weighted_mean: E mu/v.
        weighted_square: E mu^2/v.
    """

    name: ClassVar[str] = "gaussian-summary"
    variance: Tensor
    mean: Tensor
    spread: Tensor
    log_variance: Tensor
    precision: Tensor
    weighted_mean: Tensor
    weighted_square: Tensor

    @classmethod
    def measure(cls, values: Tensor, weights: Tensor | None) -> Tensor:
        """As `Gaussian.measure`."""
        return Gaussian.measure(values, weights)

    @classmethod
    def estimate(cls, statistics: Tensor) -> Gaussian:  # type: ignore[override]
        """A test scan is a plain Gaussian, whatever the prior keeps."""
        return Gaussian.estimate(statistics)

    def divergence(self, test: Gaussian) -> Tensor:  # type: ignore[override]
        """E_s KL(p_s || p_t) = 1/2 [log v_t - E log v_s + (E v_s + Var mu_s + (E mu_s - mu_t)^2) / v_t - 1]."""
        v = test.variance[0] + FLOOR
        away = self.variance + self.spread + (self.mean - test.mean[0]).square()
        return 0.5 * (v.log() - self.log_variance + away / v - 1)

    def floor(self) -> Tensor:
        """1/2 [log(E v + Var mu) - E log v], reached at mu_t = E mu and v_t = E v + Var mu."""
        return 0.5 * ((self.variance + self.spread).log() - self.log_variance)

    def tensors(self) -> dict[str, Tensor]:
        """The seven numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """From the seven numbers."""
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})
