"""Densities on a grid: no assumption on their form; integrals are Riemann sums."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn, Self

import torch
from torch import Tensor

from scantune.densities.base import Density, Standardization
from scantune.densities.binning import BinGrid, bin_counts
from scantune.errors import InputError

HEIGHT_FLOOR = 1e-5
"""Added to a density everywhere before it is normalised, so that what never occurred has a logarithm."""


@dataclass(frozen=True)
class GridDensity(Density):
    """Densities by their heights at the points of a grid; how counts become heights is each subclass's own.

    Args:
        heights: `(subjects, experts, points)`; times the grid's step they sum to 1.
        grid: The points.
    """

    heights: Tensor
    grid: BinGrid

    @abstractmethod
    def smooth(self, shares: Tensor) -> Tensor:
        """Smooth the shares of values `(experts, points)` at the points; their sum stays."""

    def measure(self, values: Tensor, weights: Tensor | None, standard: Standardization | None = None) -> Tensor:
        """Return the number of pixels, and of values at each point of the grid, `(1 + points, experts)`."""
        return bin_counts(values, weights, self.grid, standard)

    def estimate(self, statistics: Tensor) -> Self:
        """Return the scan's densities with a floor, normalised."""
        number, fallen = statistics[0], statistics[1:]
        heights = self.smooth((fallen / number.clamp_min(1)).T) / self.grid.step
        heights = (heights + HEIGHT_FLOOR) / (1 + HEIGHT_FLOOR * self.grid.step * self.grid.size)
        return replace(self, heights=heights.unsqueeze(0))

    @classmethod
    def joined(cls, densities: Sequence[Self]) -> Self:
        """Join all subjects' heights."""
        return replace(densities[0], heights=torch.cat([density.heights for density in densities]))

    @classmethod
    def beside(cls, densities: Sequence[Self]) -> Self:
        """Join all experts' heights, which must share a grid."""
        return replace(densities[0], heights=torch.cat([density.heights for density in densities], 1))

    def expected(self) -> Self:
        """Return the mean of the subjects' densities."""
        return replace(self, heights=self._mean.unsqueeze(0))

    def subject(self, share: float) -> Self:
        """Return one subject's heights."""
        number = int(share * len(self.heights))
        return replace(self, heights=self.heights[number : number + 1])

    @cached_property
    def _mean(self) -> Tensor:
        return self.heights.mean(0)

    @cached_property
    def _mean_log(self) -> Tensor:
        return self.heights.log().mean(0)

    @cached_property
    def _cumulative(self) -> Tensor:
        return self.heights.cumsum(2) * self.grid.step

    def entropy(self) -> Tensor:
        """Return the mean of the subjects' entropies."""
        return -(self.heights * self.heights.log()).sum(2).mean(0) * self.grid.step

    def cross_entropy(self, other: "GridDensity") -> Tensor:
        """Return the cross-entropy of all pairs, from the means of p_s and of log p_t, in which it is linear."""
        return -(self._mean * other._mean_log).sum(1) * self.grid.step

    def wasserstein(self, other: "GridDensity") -> Tensor:
        """Return E_s of the area between the cumulative distributions."""
        return (self._cumulative - other._cumulative).abs()[..., :-1].sum(2).mean(0) * self.grid.step

    def reverse_floor(self) -> Tensor:
        """Return -log of the area under the subjects' geometric mean."""
        return -(self._mean_log.exp().sum(1) * self.grid.step).log()

    def summary(self) -> NoReturn:
        """Raise an error: a summary does not exist."""
        raise InputError(
            f"A prior of {self.name} densities keeps one density per subject and cannot be summarised; fit density "
            "gaussian to keep no number of any single subject."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return the heights."""
        return {"heights": self.heights}

    def settings(self) -> dict[str, float]:
        """Return the grid."""
        return {"low": self.grid.low, "high": self.grid.high, "step": self.grid.step}


def grid_from_settings(settings: Mapping[str, float], step: float = BinGrid.step) -> BinGrid:
    """Return the grid of stored settings; `step` is used where they have none."""
    known = {"step": step, **settings}
    return BinGrid(**{name: float(known[name]) for name in ("low", "high", "step") if name in known})
