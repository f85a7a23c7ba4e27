"""Volumes of a scan for a 3D network, whole or in windows, and predictions back on the scan's own grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.backends.base import Backend, Prepared, ReadOutput
from scantune.backends.scaling import Content, IntensityScaling, ScalingName
from scantune.backends.tiling import Tiling, Weighting
from scantune.config.settings import MAX_CHANNELS, settings_from_table
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case
from scantune.scans.grid import PLANES, Orientation, Plane, VolumeGrid
from scantune.scans.volume import Volume

LARGEST_AXIS = 4096
"""Largest number of voxels along an axis. Scans have a few hundred, damaged headers any number."""


@dataclass(frozen=True, eq=False)
class PreparedVolume(Prepared):
    """A volume as a 3D network sees it, `(1, channels, depth, height, width)`.

    Attributes:
        orientation: Array axes that became depth, height and width.
        grid: Resampling and padding.
        voxel_ml: Volume of a voxel in mL.
    """

    orientation: Orientation
    grid: VolumeGrid
    voxel_ml: float


@dataclass(frozen=True)
class VolumePreprocessing(Backend[PreparedVolume]):
    """Settings of the preparation of a scan for a 3D network, which are part of the model file.

    Attributes:
        plane: Plane whose slices, rows and columns are depth, height and width.
        spacing: Distance of slices, rows and columns in mm, rounded so that the field of view stays. None keeps the
            scan's own.
        window: Depth, height and width of the windows that the network sees at once. None for the whole volume.
        overlap: Share of a window that the next one covers again, in predictions.
        weighting: How overlapping windows are averaged: `gaussian` counts their middle more.
        channels: Number of images that a scan consists of.
        scaling: `percentiles`; or `z-score` for mean 0 and deviation 1, without clipping. Each channel by itself.
        percentiles: Intensity percentiles that become 0 and 1. Values beyond are clipped.
        content: Voxels that scales are computed over.
        n4: Whether the bias field is removed first (N4).
    """

    plane: Plane = "axial"
    spacing: tuple[float, float, float] | None = None
    window: tuple[int, int, int] | None = (96, 96, 96)
    overlap: float = 0.5
    weighting: Weighting = "gaussian"
    channels: int = 1
    scaling: ScalingName = "percentiles"
    percentiles: tuple[float, float] = (1.0, 99.0)
    content: Content = "all"
    n4: bool = False

    def __post_init__(self) -> None:
        low, high = self.percentiles
        for good, name, expected in (
            (self.plane in PLANES, "plane", f"one of {', '.join(PLANES)}"),
            (
                self.spacing is None or all(0 < side < math.inf for side in self.spacing),
                "spacing",
                "three positive numbers of mm or nothing",
            ),
            (
                self.window is None or all(0 < extent <= LARGEST_AXIS for extent in self.window),
                "window",
                f"three of 1 to {LARGEST_AXIS} voxels or nothing",
            ),
            (0 <= self.overlap < 1, "overlap", "from 0 to below 1"),
            (0 <= low < high <= 100, "percentiles", "two rising numbers from 0 to 100"),
            (1 <= self.channels <= MAX_CHANNELS, "channels", f"from 1 to {MAX_CHANNELS}"),
        ):
            if not good:
                raise InputError(f"The preprocessing's {name} must be {expected}, not {getattr(self, name)!r}.")

    def prepare(self, case: Case) -> PreparedVolume:
        """Prepare a scan for the network.

        Raises:
            ScanError: The scan's intensities cannot be scaled.
        """
        orientation = Orientation.closest(case.affine, self.plane)
        grid, voxel_ml = self._grid(case, orientation)
        scaling = IntensityScaling(self.scaling, self.percentiles, self.content, self.n4)
        channels = (scaling.channel(case, image) for image in case.channels)
        volume = torch.stack([grid.place(scale.apply(orientation.to_slices(image))) for image, scale in channels])
        reference = None
        if case.reference is not None:
            labels = orientation.to_slices(case.reference).astype(np.int64)
            reference = grid.place_labels(torch.from_numpy(labels))[None]
        padding = None if grid.padding is None else grid.padding[None, None]
        return PreparedVolume(volume[None], padding, reference, orientation, grid, voxel_ml)

    def windows(self, prepared: PreparedVolume) -> Volume:
        """Return the whole volume, or a bounded sample of its windows."""
        if self.window is None:
            return Volume(prepared.volume, prepared.padding, reference=prepared.reference)
        return self._tiling(self.window).sample(prepared.volume, prepared.padding, prepared.reference)

    def predict(self, network: nn.Module, prepared: PreparedVolume, read: ReadOutput) -> Tensor:
        """Return class probabilities `(1, classes, depth, height, width)`, averaged over overlapping windows."""
        assert self.window is not None
        return self._tiling(self.window).predict(network, prepared.volume, read)

    def restore(self, scores: Tensor, prepared: PreparedVolume) -> NDArray[np.uint8]:
        """Return the labels `(x, y, z)` on the scan's own grid, every class resampled by itself."""
        if scores.shape[1] == 1:
            labels = (prepared.grid.restore(scores[0, 0].float()) > 0.5).to(torch.uint8)
        else:
            best = prepared.grid.restore(scores[0, 0].float()).clone()
            labels = torch.zeros(best.shape, dtype=torch.uint8)
            for label in range(1, scores.shape[1]):
                rival = prepared.grid.restore(scores[0, label].float())
                labels[rival > best] = label
                torch.maximum(best, rival, out=best)
        return np.ascontiguousarray(prepared.orientation.to_native(labels.cpu().numpy()))

    def restore_each(self, scores: Tensor, prepared: PreparedVolume) -> NDArray[np.uint8]:
        """Return maps of 0 and 1 of structures that may overlap, `(structures, x, y, z)`, on the scan's own grid."""
        return np.stack([self.restore(scores[:, [each]], prepared) for each in range(scores.shape[1])])

    def voxel_ml(self, prepared: PreparedVolume) -> float:
        """Return the volume in mL of a voxel of a prepared scan."""
        return prepared.voxel_ml

    def view(self, prepared: PreparedVolume, case: Case) -> Plane:
        """Return the plane of the slices on the scan's own grid."""
        return prepared.orientation.plane(case.affine)

    def record(self) -> dict[str, Any]:
        """Return all settings as plain JSON values."""
        plain = {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }
        return {"kind": "volumes", **plain}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> VolumePreprocessing:
        """Return the preprocessing of a `record`.

        Raises:
            InputError: An entry is unknown or wrong.
        """
        return settings_from_table(cls, record, "the recorded preprocessing")

    def _tiling(self, window: tuple[int, int, int]) -> Tiling:
        return Tiling(window, self.overlap, self.weighting)

    def _grid(self, case: Case, orientation: Orientation) -> tuple[VolumeGrid, float]:
        native = tuple(case.shape[axis] for axis in orientation.axes)
        sides = tuple(case.spacing[axis] for axis in orientation.axes)
        wanted = sides if self.spacing is None else self.spacing
        found = [max(1, round(n * side / new)) for n, side, new in zip(native, sides, wanted, strict=True)]
        if max(found) > LARGEST_AXIS:
            raise ScanError(
                f"{case.name} must become a volume of at most {LARGEST_AXIS} voxels along each axis, but would have "
                f"{max(found)}. Check its voxel sizes, and the model's."
            )
        size = [max(length, extent) for length, extent in zip(found, self.window or (1, 1, 1), strict=True)]
        voxel_ml = case.voxel_volume / 1000 * math.prod(native) / math.prod(found)
        grid = VolumeGrid(*((each[0], each[1], each[2]) for each in (native, found, size)))
        return grid, voxel_ml
