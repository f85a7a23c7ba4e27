"""Slices of a scan for a 2D network, and predictions back on the scan's own grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scantune.backends.base import Backend, Prepared
from scantune.backends.scaling import Content, IntensityScaling, ScalingName
from scantune.config.settings import MAX_CHANNELS, settings_from_table
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case
from scantune.scans.grid import PLANES, Orientation, Plane, Slab, SliceGrid
from scantune.scans.volume import Volume

LARGEST_SLICE = 8192
"""Largest number of pixels along an axis of a slice. Scans have a few hundred, damaged headers any number."""

_CHUNK = 16  # slices that are resampled at once, to bound the memory


@dataclass(frozen=True, eq=False)
class PreparedSlices(Prepared):
    """Slices as a 2D network sees them: intensities in [0, 1]; slabs have heights as second channel.

    Attributes:
        limits: Intensities of the first channel that became 0 and 1.
        orientation: Array axes that became slices, rows and columns.
        grid: Resampling and cropping of slices.
        distance: Distance of the slices in mm.
        slab: Slices of the scan that were kept. None for all.
    """

    limits: tuple[float, float]
    orientation: Orientation
    grid: SliceGrid
    distance: float | None = None
    slab: Slab | None = None

    def record(self) -> dict[str, Any]:
        """Return how the scan was prepared, as plain JSON values."""
        parts = {"limits": self.limits} | dataclasses.asdict(self.orientation) | dataclasses.asdict(self.grid)
        return {name: list(values) for name, values in parts.items()}

    def to_native(self, probabilities: Tensor) -> NDArray[np.uint8]:
        """Return the most probable label of every voxel `(x, y, z)` of the scan's own grid.

        Every class is resampled by itself. Voxels beyond the picture are background. The probability of a single
        class is compared to 0.5.

        Args:
            probabilities: Class probabilities `(slices, classes, height, width)`. Class 0 is the background.
        """
        slices, classes = probabilities.shape[:2]
        if (slices, *probabilities.shape[2:]) != (self.volume.shape[0], *self.grid.size):
            expected = (self.volume.shape[0], "classes", *self.grid.size)
            raise ValueError(f"probabilities must have the shape {expected}, not {tuple(probabilities.shape)}")
        labels = np.empty((slices, *self.grid.native), np.uint8)
        with torch.no_grad():
            for start in range(0, slices, _CHUNK):
                chunk = probabilities[start : start + _CHUNK]
                found = self._threshold(chunk[:, 0]) if classes == 1 else self._most_probable(chunk)
                labels[start : start + _CHUNK] = found.to("cpu", torch.uint8).numpy()
        whole = labels if self.slab is None else self.slab.restore(labels)
        return np.ascontiguousarray(self.orientation.to_native(whole))

    def to_world(self, case: Case) -> NDArray[np.float64]:
        """Return the map from slice, row and column numbers of pictures to the case's world in mm (RAS+), `(4, 4)`."""
        start = np.eye(4)
        start[0, 3] = 0 if self.slab is None else self.slab.first
        return case.affine @ self.orientation.matrix(case.shape) @ self.grid.matrix() @ start

    def _threshold(self, foreground: Tensor) -> Tensor:
        return self.grid.restore(foreground.float(), outside=0.0) > 0.5

    def _most_probable(self, probabilities: Tensor) -> Tensor:
        """Return the running arg-max over classes, `(slices, rows, columns)`. The lower class wins a tie."""
        best = self.grid.restore(probabilities[:, 0].float(), outside=1.0)
        labels = torch.zeros(best.shape, dtype=torch.uint8, device=best.device)
        for label in range(1, probabilities.shape[1]):
            rival = self.grid.restore(probabilities[:, label].float(), outside=0.0)
            labels[rival > best] = label
            best = torch.maximum(best, rival)
        return labels


@dataclass(frozen=True)
class Preprocessing(Backend[PreparedSlices]):
    """Settings of the preparation of a scan, which are part of the model file.

    Attributes:
        plane: Plane of the slices.
        size: Rows and columns after cropping or zero-padding.
        spacing: In-plane spacing in mm, rounded so that the field of view stays. None keeps the scan's own.
        percentiles: Intensity percentiles that become 0 and 1. Values beyond are clipped.
        content: Voxels that percentiles are computed over and pictures are centred on.
        n4: Whether the bias field is removed first (N4).
        slab: Extent in mm along the slices that is kept, and depth of its middle below the top of the content. A scan
            hardly taller than the extent keeps its own middle. The network gets the heights of slices above the
            middle, in mm, as a second channel. None keeps all slices.
        channels: Number of images that a scan consists of.
        scaling: `percentiles`; or `z-score` for mean 0 and deviation 1, without clipping. Each channel by itself.
    """

    plane: Plane = "axial"
    size: tuple[int, int] = (256, 256)
    spacing: float | None = None
    percentiles: tuple[float, float] = (1.0, 99.0)
    content: Content = "all"
    n4: bool = False
    slab: tuple[float, float] | None = None
    channels: int = 1
    scaling: ScalingName = "percentiles"

    def __post_init__(self) -> None:
        low, high = self.percentiles
        for good, name, expected in (
            (self.plane in PLANES, "plane", f"one of {', '.join(PLANES)}"),
            (
                len(self.size) == 2 and 0 < min(self.size) <= max(self.size) <= LARGEST_SLICE,
                "size",
                f"two of 1 to {LARGEST_SLICE} pixels",
            ),
            (
                self.spacing is None or 0 < self.spacing < math.inf,
                "spacing",
                "a positive number of mm or nothing",
            ),
            (0 <= low < high <= 100, "percentiles", "two rising numbers from 0 to 100"),
            (self.content in ("all", "nonzero"), "content", "all or nonzero"),
            (
                self.slab is None or (len(self.slab) == 2 and min(self.slab) > 0),
                "slab",
                "two positive numbers of mm or nothing",
            ),
            (1 <= self.channels <= MAX_CHANNELS, "channels", f"from 1 to {MAX_CHANNELS}"),
            (self.slab is None or self.channels == 1, "channels", "1 with a slab"),
        ):
            if not good:
                raise InputError(f"The preprocessing's {name} must be {expected}, not {getattr(self, name)!r}.")

    def voxel_ml(self, prepared: PreparedSlices) -> float:
        """Return the volume in mL of a voxel of a prepared scan, counting 1 mm for what is not known."""
        side = self.spacing or 1.0
        return side * side * (prepared.distance or 1.0) / 1000

    def windows(self, prepared: PreparedSlices) -> Volume:
        """Return all slices."""
        return Volume(prepared.volume, prepared.padding, prepared.distance, reference=prepared.reference)

    def restore(self, scores: Tensor, prepared: PreparedSlices) -> NDArray[np.uint8]:
        """Return the labels `(x, y, z)` on the scan's own grid."""
        return prepared.to_native(scores)

    def restore_each(self, scores: Tensor, prepared: PreparedSlices) -> NDArray[np.uint8]:
        """Return maps of 0 and 1 of structures that may overlap, `(structures, x, y, z)`, on the scan's own grid."""
        return np.stack([prepared.to_native(scores[:, [each]]) for each in range(scores.shape[1])])

    def remarks(self, prepared: PreparedSlices) -> list[str]:
        """Return which slices are labelled, if not all are."""
        slab, distance = prepared.slab, prepared.distance
        if slab is None or slab.count == slab.native or distance is None:
            return []
        return [
            f"Only {slab.count} of {slab.native} slices are labelled, {slab.count * distance:.0f} mm of "
            f"{slab.native * distance:.0f} mm: volumes are of this slab, and beyond it lies background."
        ]

    def view(self, prepared: PreparedSlices, case: Case) -> Plane:
        """Return the plane of the slices on the scan's own grid."""
        return prepared.orientation.plane(case.affine)

    def record(self) -> dict[str, Any]:
        """Return all settings as plain JSON values."""
        record = dataclasses.asdict(self) | {"size": list(self.size), "percentiles": list(self.percentiles)}
        # What is as in version 0.1 is left out, so that its records and those of today are equal.
        defaults = {"slab": None, "channels": 1, "scaling": "percentiles"}
        later = {name: record.pop(name) for name in defaults}
        if self.slab is not None:
            later["slab"] = list(self.slab)
        return record | {name: value for name, value in later.items() if value != defaults[name]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing of a `record`.

        Raises:
            InputError: An entry is unknown or wrong.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(record) - known):
            raise InputError(
                f"The recorded preprocessing has the unknown entries {', '.join(unknown)}; known are "
                f"{', '.join(sorted(known))}. Use the version of scantune that wrote it, or a newer one."
            )
        return settings_from_table(cls, record, "the recorded preprocessing")

    def prepare(self, case: Case) -> PreparedSlices:
        """Prepare a scan for the network.

        Raises:
            ScanError: The scan's intensities cannot be scaled.
        """
        content = None
        if self.content == "nonzero":
            content = np.any([image != 0 for image in case.channels], axis=0)
        scaling = IntensityScaling(self.scaling, self.percentiles, self.content, self.n4)
        channels = [scaling.channel(case, image) for image in case.channels]
        orientation = Orientation.closest(case.affine, self.plane)
        grid = self._grid(case, orientation, content)
        slab = self._slab(case, orientation, content)
        cut = orientation.to_slices if slab is None else lambda array: slab.cut(orientation.to_slices(array))
        volume = torch.stack(
            [torch.cat([grid.place(scale.apply(part)) for part in _chunks(cut(image))]) for image, scale in channels], 1
        )
        reference = None
        if case.reference is not None:
            parts = _chunks(cut(case.reference))
            reference = torch.cat([grid.place_labels(torch.from_numpy(part.astype(np.int64))) for part in parts])
        padding = grid.padding
        if padding is not None:
            padding = padding.expand(len(volume), 1, *self.size)
        distance = case.spacing[orientation.axes[0]]
        if slab is not None:
            heights = slab.heights(distance).to(volume).view(-1, 1, 1, 1)
            volume = torch.cat([volume, heights.expand_as(volume)], dim=1)
        limits = (channels[0][1].low, channels[0][1].high)
        return PreparedSlices(volume, padding, reference, limits, orientation, grid, distance, slab)

    def _slab(self, case: Case, orientation: Orientation, content: NDArray[np.bool_] | None) -> Slab | None:
        if self.slab is None:
            return None
        slices, distance = case.shape[orientation.axes[0]], case.spacing[orientation.axes[0]]
        extent, depth = (length / distance for length in self.slab)
        middle = (slices - 1) / 2
        if slices > 1.5 * extent:
            seen = np.arange(slices)
            if content is not None:
                seen = np.flatnonzero(orientation.to_slices(content).any(axis=(1, 2)))
            middle = max(seen[-1] + 0.5 - depth, float(seen[0]))
        return Slab.about(middle, extent, slices)

    def _grid(self, case: Case, orientation: Orientation, content: NDArray[np.bool_] | None) -> SliceGrid:
        _, *native = (case.shape[axis] for axis in orientation.axes)
        _, *pixel = (case.spacing[axis] for axis in orientation.axes)
        resampled, offset = [], []
        for axis in (0, 1):
            length = native[axis]
            if self.spacing is not None:
                length = max(1, round(native[axis] * pixel[axis] / self.spacing))
            centre = 0.5
            if content is not None:
                seen = np.flatnonzero(orientation.to_slices(content).any(axis=(0, 2 - axis)))
                centre = (seen[0] + seen[-1] + 1) / (2 * native[axis])
            if length > LARGEST_SLICE:
                raise ScanError(
                    f"{case.name} must become slices of at most {LARGEST_SLICE} rows and columns, but would have "
                    f"{length}: there are {native[axis]}, of {pixel[axis]:g} mm each. Check its voxel sizes, and "
                    "the model's."
                )
            resampled.append(length)
            offset.append(math.floor(centre * length - self.size[axis] / 2))
        return SliceGrid((native[0], native[1]), (resampled[0], resampled[1]), (offset[0], offset[1]), self.size)


def _chunks(slices: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(slices), _CHUNK):
        yield slices[start : start + _CHUNK]
