"""Kernel density estimates on a grid: linear binning, then a convolution with a Gaussian kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor

from scantune.densities.binning import BinGrid
from scantune.densities.gridded import GridDensity, grid_from_settings
from scantune.errors import InputError

ALPHA = 10.0
"""The authors' kernel, exp(-10 u^2): a deviation of 0.22."""


@dataclass(frozen=True)
class KDE(GridDensity):
    """Means over the values of kernels sqrt(alpha / pi) exp(-alpha u^2), which integrate to 1.

    Args:
        heights: As in `GridDensity`.
        grid: As in `GridDensity`.
        alpha: Sharpness of the kernel; its variance is 1 / (2 alpha), in training variances.
    """

    name: ClassVar[str] = "kde"
    alpha: float = ALPHA

    def __post_init__(self) -> None:
        sharpest = 1.5 / self.grid.step**2
        if not 0 < self.alpha <= sharpest:
            raise InputError(
                f"alpha of a kde density must be above 0, and at most {sharpest:g} on a grid of step "
                f"{self.grid.step:g}, got {self.alpha}."
            )

    @classmethod
    def blank(cls, settings: Mapping[str, float] | None = None) -> Self:
        """Return a KDE of no subject; settings are `alpha`, and `low`, `high` and `step` of the grid."""
        return cls.from_tensors({"heights": torch.empty(0, 0, 0)}, settings)

    def smooth(self, shares: Tensor) -> Tensor:
        """Convolve the shares with the kernel."""
        return shares @ _kernel(self.grid, self.alpha, shares.dtype, shares.device)

    def settings(self) -> dict[str, float]:
        """Return grid and alpha."""
        return {**super().settings(), "alpha": self.alpha}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, float] | None = None) -> Self:
        """Restore a density from heights, grid and alpha."""
        known = settings or {}
        return cls(tensors["heights"], grid_from_settings(known), float(known.get("alpha", ALPHA)))


@lru_cache(maxsize=8)
def _kernel(grid: BinGrid, alpha: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the kernel `(from point, to point)`; beyond the grid's ends it keeps its weight on the grid."""
    # To share a value between two points widens it by step^2 / 6 on average, which the kernel makes up for.
    variance = 1 / (2 * alpha) - grid.step**2 / 6
    points = grid.points()
    kernel = (-(points.unsqueeze(1) - points).square() / (2 * variance)).exp()
    return (kernel / kernel.sum(1, keepdim=True)).to(device, dtype)
