"""Gaussian experts (Eq. 10): a mean and a variance per expert, everything in closed form."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from scantune.densities.base import Density, Standardization
from scantune.errors import InputError
from scantune.kernels import usable

VARIANCE_FLOOR = 1e-6
"""Added to both variances of a divergence, in units of the expert's training variance (values are standardised)."""

MIN_DEVIATION_GAP = 1e-6
"""Deviations are taken to differ by at least this, where a distance would have no gradient."""


class GaussianBase(Density):
    """What Gaussians of all subjects and their summary have in common: seven numbers per expert say it all."""

    @abstractmethod
    def summary(self) -> "SummarisedGaussian":
        """Return seven numbers per expert that serve every Gaussian objective but the Wasserstein distance."""

    @staticmethod
    def measure(values: Tensor, weights: Tensor | None, standard: Standardization | None = None) -> Tensor:
        """Return number, sum and sum of squares, `(3, experts)`."""
        if standard is None:
            return moments(values, weights)
        return GaussianBase.standardised(moments(values, weights, standard.center), standard.scale)

    @staticmethod
    def standardised(moments: Tensor, scale: Tensor) -> Tensor:
        """Return moments `(3, experts)` about the training mean in units of the training deviations `(experts,)`."""
        scale = scale.to(moments)
        return moments / torch.stack([torch.ones_like(scale), scale, scale.square()])

    @staticmethod
    def estimate(statistics: Tensor) -> "Gaussian":
        """Return the scan's mean and biased variance, `(1, experts)`; never a summary."""
        number, total, squares = statistics.unsqueeze(1)
        mean = total / number.clamp_min(1)
        return Gaussian(mean, (squares / number.clamp_min(1) - mean.square()).clamp_min(0))

    def expected(self) -> "Gaussian":
        """Return the Gaussian with mean and variance of the subjects' mixture (which is not Gaussian itself)."""
        own = self.summary()
        variance = (own.variance - VARIANCE_FLOOR + own.spread).clamp_min(0)
        return Gaussian(own.mean.unsqueeze(0), variance.unsqueeze(0))

    def entropy(self) -> Tensor:
        """Return 1/2 [1 + log 2 pi + E log v]."""
        return 0.5 * (1 + math.log(2 * math.pi) + self.summary().log_variance)

    def cross_entropy(self, other: "GaussianBase") -> Tensor:
        """Return 1/2 [log 2 pi + E log v_t + E (v_s + (mu_s - mu_t)^2) / v_t], exact over all pairs of subjects.

        About the mean of the others' means, weighted by precision, so that no large numbers cancel.
        """
        own, its = self.summary(), other.summary()
        centre = its.weighted_mean / its.precision
        spread = its.weighted_square - its.weighted_mean * centre
        away = own.variance + own.spread + (own.mean - centre).square()
        return 0.5 * (math.log(2 * math.pi) + its.log_variance + its.precision * away + spread)

    def divergence(self, test: "Gaussian") -> Tensor:  # type: ignore[override]
        """Return 1/2 [log v_t - E log v_s + (E v_s + Var mu_s + (E mu_s - mu_t)^2) / v_t - 1] = E_s KL(p_s || p_t)."""
        own, v = self.summary(), test.variance[0] + VARIANCE_FLOOR
        away = own.variance + own.spread + (own.mean - test.mean[0]).square()
        return 0.5 * (v.log() - own.log_variance + away / v - 1)

    def floor(self) -> Tensor:
        """Return 1/2 [log(E v + Var mu) - E log v], reached at mu_t = E mu and v_t = E v + Var mu.

        It is zero if all subjects are alike.
        """
        own = self.summary()
        return 0.5 * ((own.variance + own.spread).log() - own.log_variance)

    def reverse_floor(self) -> Tensor:
        """Return 1/2 [E log v + log E 1/v + E mu^2/v - (E mu/v)^2 / E 1/v].

        It is reached at v_t = 1 / E 1/v and mu_t = v_t E mu/v.
        """
        own = self.summary()
        spread = own.weighted_square - own.weighted_mean.square() / own.precision
        return 0.5 * (own.log_variance + own.precision.log() + spread)


@dataclass(frozen=True)
class Gaussian(GaussianBase):
    """Normal densities, population moments.

    Args:
        mean: `(subjects, experts)`.
        variance: `(subjects, experts)`.
    """

    name: ClassVar[str] = "gaussian"
    mean: Tensor
    variance: Tensor

    @classmethod
    def blank(cls, settings: Mapping[str, float] | None = None) -> Self:  # noqa: ARG003
        """Return a standard normal; there are no settings."""
        return cls(torch.zeros(1, 1), torch.ones(1, 1))

    @classmethod
    def joined(cls, densities: Sequence[Self]) -> Self:
        """Join all subjects' moments."""
        return cls(torch.cat([d.mean for d in densities]), torch.cat([d.variance for d in densities]))

    @classmethod
    def beside(cls, densities: Sequence[Self]) -> Self:
        """Join all experts' moments."""
        return cls(torch.cat([d.mean for d in densities], 1), torch.cat([d.variance for d in densities], 1))

    def subject(self, share: float) -> "Gaussian":
        """Return one subject's moments."""
        number = int(share * len(self.mean))
        return Gaussian(self.mean[number : number + 1], self.variance[number : number + 1])

    def wasserstein(self, other: "Gaussian") -> Tensor:
        """Return E |mu_s - mu_t + (sigma_s - sigma_t) z|, the mean difference of quantiles, z standard normal."""
        apart = self.mean - other.mean
        wider = (self.variance + VARIANCE_FLOOR).sqrt() - (other.variance + VARIANCE_FLOOR).sqrt()
        wider = (wider.square() + MIN_DEVIATION_GAP**2).sqrt()
        ratio = apart / wider
        folded = math.sqrt(2 / math.pi) * wider * (-0.5 * ratio.square()).exp() + apart * (ratio / math.sqrt(2)).erf()
        return folded.mean(0)

    def summary(self) -> "SummarisedGaussian":
        """Return seven numbers per expert that serve every Gaussian objective but the Wasserstein distance."""
        return self._summary

    @cached_property
    def _summary(self) -> "SummarisedGaussian":
        v = self.variance + VARIANCE_FLOOR
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
        """Return mean and variance per subject."""
        return {"mean": self.mean, "variance": self.variance}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, float] | None = None) -> Self:  # noqa: ARG003
        """Restore a density from mean and variance."""
        return cls(tensors["mean"], tensors["variance"])


@dataclass(frozen=True)
class SummarisedGaussian(GaussianBase):
    """Summary of many subjects' Gaussians without a number of any single subject, `(experts,)` each.

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
    def blank(cls, settings: Mapping[str, float] | None = None) -> Self:  # noqa: ARG003
        """Raise an error: a summary is made of densities, never estimated."""
        raise InputError("A summarised density is made from Gaussian ones; fit density gaussian, then summarise it.")

    @classmethod
    def joined(cls, densities: Sequence[Self]) -> Self:  # noqa: ARG003
        """Raise an error: the subjects' numbers are gone."""
        raise InputError("Summarised densities cannot be joined: they no longer know how many subjects they stand for.")

    @classmethod
    def beside(cls, densities: Sequence[Self]) -> Self:
        """Join all experts' numbers."""
        each = [density.tensors() for density in densities]
        return cls(**{name: torch.cat([numbers[name] for numbers in each]) for name in each[0]})

    def subject(self, share: float) -> Gaussian:  # noqa: ARG002
        """Raise an error: no number belongs to a single subject."""
        raise InputError(
            "A summarised prior holds no single subject's densities; use reference=subjects or expected, or fit the "
            "prior without summarising it."
        )

    def wasserstein(self, other: Gaussian) -> Tensor:  # type: ignore[override]  # noqa: ARG002
        """Raise an error: the distance needs every subject's deviation."""
        raise InputError(
            "The Wasserstein distance needs the subjects' own densities, which a summarised prior does not hold; use "
            "reference=expected or another divergence, or fit the prior without summarising it."
        )

    def summary(self) -> "SummarisedGaussian":
        """Return the summary itself."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Return the seven numbers."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, float] | None = None) -> Self:  # noqa: ARG003
        """Restore a summary from the seven numbers."""
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})


def moments(values: Tensor, weights: Tensor | None, center: Tensor | None = None) -> Tensor:
    """Sum values and squares about a center, since far from it squares would cancel.

    Args:
        values: `(slices, experts, *spatial)`; of half precision, they are summed in single precision.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
        center: What is subtracted of each expert's values `(experts,)`; None for zeros.

    Returns:
        `(3, experts)`: number, sum of values, sum of squares. Differentiable once, in the values.
    """
    dtype = torch.promote_types(values.dtype, torch.float32)
    center = torch.zeros(values.shape[1], device=values.device) if center is None else center
    if usable(values) and dtype == torch.float32:
        return _OnePass.apply(values, weights, center.float())  # type: ignore[no-any-return, no-untyped-call]
    return _Moments.apply(values.to(dtype), weights, center.to(values.device, dtype))  # type: ignore[no-any-return, no-untyped-call]


class _Moments(torch.autograd.Function):
    """Keeps the values alone for the backward pass, which is one multiplication and one addition a pixel."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, center: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, center)
        over = (0, *range(2, values.ndim))
        away = values - _spread(center, values)
        if weights is None:
            number = away.new_full((values.shape[1],), values.numel() / values.shape[1])
        else:
            number = weights.sum().to(values).expand(values.shape[1])
            away *= weights
        total = away.sum(over)
        return torch.stack([number, total, away.square_().sum(over)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        values, weights, center = ctx.saved_tensors
        _, total, squares = gradients[0].to(values)
        offset = _spread(total - 2 * squares * center, values)
        result = torch.addcmul(offset, values, _spread(2 * squares, values))
        return result if weights is None else result.mul_(weights), None, None


class _OnePass(torch.autograd.Function):
    """The same by kernels, for which values may be of half precision; sums are double."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, center: Tensor) -> Tensor:
        from scantune.kernels.triton.moments import measure

        units = torch.ones(3, values.shape[1], dtype=torch.double, device=values.device)
        ctx.save_for_backward(values, weights, center, units)
        return measure(values, weights, center, units)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from scantune.kernels.triton.moments import slopes

        values, weights, center, units = ctx.saved_tensors
        return slopes(values, weights, center, units, gradients[0]), None, None


def _spread(each: Tensor, like: Tensor) -> Tensor:
    """Reshape numbers of experts `(experts,)` to `(1, experts, 1, ...)`."""
    return each.view(1, -1, *[1] * (like.ndim - 2))
