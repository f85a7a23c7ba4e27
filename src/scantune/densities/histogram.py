"""Soft-binned histograms (Eastwood et al. 2022): a value is shared by the two bins beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from scantune.densities.gridded import GridDensity, grid_from_settings

HISTOGRAM_STEP = 0.5
"""Step of the bins, coarser than a KDE's grid: no kernel evens out the bins of a scan with few samples."""


@dataclass(frozen=True)
class Histogram(GridDensity):
    """Histograms whose bins overlap by half, so that they change smoothly with the values."""

    name: ClassVar[str] = "histogram"

    @classmethod
    def blank(cls, settings: Mapping[str, float] | None = None) -> Self:
        """Return a histogram of no subject; settings are `low`, `high` and `step` of the bins' centres."""
        return cls(torch.empty(0, 0, 0), grid_from_settings(settings or {}, HISTOGRAM_STEP))

    def smooth(self, shares: Tensor) -> Tensor:
        """Return the shares as they are."""
        return shares

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, float] | None = None) -> Self:
        """Restore a density from heights and grid."""
        return cls(tensors["heights"], grid_from_settings(settings or {}, HISTOGRAM_STEP))
