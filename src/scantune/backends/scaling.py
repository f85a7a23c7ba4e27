"""Scaling of intensities, channel by channel: by percentiles into [0, 1], or to mean 0 and deviation 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scantune.errors import ScanError
from scantune.scans.bias_field import remove_bias
from scantune.scans.case import Case

ScalingName = Literal["percentiles", "z-score"]
Content = Literal["all", "nonzero"]


@dataclass(frozen=True)
class Scale:
    """Affine map of the intensities of a channel.

    Attributes:
        low: The intensity that becomes 0.
        high: The intensity that becomes 1.
        clips: Whether values beyond are clipped.
        keeps_zero: Whether voxels of 0 stay 0.
    """

    low: float
    high: float
    clips: bool = True
    keeps_zero: bool = False

    def apply(self, values: NDArray[np.float32]) -> Tensor:
        """Return scaled intensities, of any shape."""
        # Copy, since an axis of one pixel counts as contiguous even if it runs backwards, which torch refuses.
        tensor = torch.from_numpy(np.array(values, np.float32, order="C"))
        scaled = (tensor - self.low) / (self.high - self.low)
        if self.clips:
            return scaled.clamp(0, 1)
        return torch.where(tensor == 0, 0, scaled) if self.keeps_zero else scaled


@dataclass(frozen=True)
class IntensityScaling:
    """How the intensities of each channel are scaled.

    Attributes:
        name: `percentiles` maps two percentiles to 0 and 1 and clips what is beyond; `z-score` gives mean 0 and
            deviation 1.
        percentiles: The percentiles.
        content: Voxels that count. With `nonzero`, z-scores leave voxels of 0 as they are.
        n4: Whether the bias field is removed first (N4).
    """

    name: ScalingName
    percentiles: tuple[float, float]
    content: Content
    n4: bool

    def channel(self, case: Case, image: NDArray[np.float32]) -> tuple[NDArray[np.float32], Scale]:
        """Return the intensities `(x, y, z)` of a channel without bias field, and their scale.

        Args:
            case: The scan.
            image: Intensities of one of its channels.

        Raises:
            ScanError: The intensities do not differ.
        """
        content = image != 0 if self.content == "nonzero" else None
        if self.n4:
            image = remove_bias(case.with_image(image), content)
        values = image if content is None else image[content]
        find = self._z_score if self.name == "z-score" else self._by_percentiles
        return image, find(case.name, values)

    def _by_percentiles(self, name: str, values: NDArray[np.float32]) -> Scale:
        low, high = np.percentile(values, self.percentiles).tolist() if values.size else (0.0, 0.0)
        if not low < high:
            raise ScanError(
                f"{name} must have {self._voxels} of differing intensity, but their percentiles "
                f"{self.percentiles[0]:g} and {self.percentiles[1]:g} are both {low:g}. "
                "Check that the scan is complete."
            )
        return Scale(low, high)

    def _z_score(self, name: str, values: NDArray[np.float32]) -> Scale:
        mean = float(values.mean(dtype=np.float64)) if values.size else 0.0
        deviation = float(values.std(dtype=np.float64)) if values.size else 0.0
        if not deviation > 0:
            raise ScanError(
                f"{name} must have {self._voxels} of differing intensity, but all are {mean:g}. Check that the scan is "
                "complete."
            )
        return Scale(mean, mean + deviation, clips=False, keeps_zero=self.content == "nonzero")

    @property
    def _voxels(self) -> str:
        return "voxels other than 0" if self.content == "nonzero" else "voxels"
