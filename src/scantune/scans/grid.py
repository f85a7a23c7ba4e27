"""From a scan's own grid to a network's slices and back: axes, in-plane resampling, cropping and zero-padding.

Slices are laid out as radiologists look at them, whatever the axis order of the file:

| plane    | slices run            | rows run (down the picture) | columns run (to the right) |
|----------|-----------------------|-----------------------------|----------------------------|
| axial    | inferior to superior  | anterior to posterior       | right to left              |
| coronal  | posterior to anterior | superior to inferior        | right to left              |
| sagittal | left to right         | superior to inferior        | anterior to posterior      |
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Plane: TypeAlias = Literal["axial", "coronal", "sagittal"]

# Per plane, for slices, rows and columns: the world axis they run along (0 right, 1 anterior, 2 superior) and
# whether with it or against it.
_LAYOUT: dict[Plane, tuple[tuple[int, int], tuple[int, int], tuple[int, int]]] = {
    "axial": ((2, 1), (1, -1), (0, -1)),
    "coronal": ((1, 1), (2, -1), (0, -1)),
    "sagittal": ((0, 1), (2, -1), (1, -1)),
}
PLANES = tuple(_LAYOUT)


@dataclass(frozen=True)
class Orientation:
    """Axes of a scan's array that become slices, rows and columns.

    Attributes:
        axes: Array axis of the slices, rows and columns.
        flips: Whether the slices, rows and columns run against their array axis.
    """

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    @classmethod
    def closest(cls, affine: NDArray[np.float64], plane: Plane) -> Orientation:
        """Return the orientation of a plane, with every array axis taken as the world axis it is closest to.

        Args:
            affine: Voxel to world, `(4, 4)`, RAS+.
            plane: The plane of the slices.
        """
        directions = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)

        def agreement(axes: tuple[int, ...]) -> float:
            return float(sum(abs(directions[world, axis]) for world, axis in enumerate(axes)))

        axis_of_world = max(itertools.permutations(range(3)), key=agreement)
        layout = [
            (axis_of_world[world], sign * directions[world, axis_of_world[world]]) for world, sign in _LAYOUT[plane]
        ]
        (a, forward_a), (b, forward_b), (c, forward_c) = layout
        return cls((a, b, c), (bool(forward_a < 0), bool(forward_b < 0), bool(forward_c < 0)))

    def to_slices(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a view `(slices, rows, columns)` of an array `(x, y, z)`."""
        return np.flip(np.transpose(array, self.axes), self._flipped)

    def to_native(self, slices: NDArray[Any]) -> NDArray[Any]:
        """Return a view `(x, y, z)` of an array `(slices, rows, columns)`, the inverse of `to_slices`."""
        return np.transpose(np.flip(slices, self._flipped), np.argsort(self.axes))

    def matrix(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the map from slice, row and column numbers to indices of an array of this shape, `(4, 4)`."""
        matrix = np.zeros((4, 4))
        matrix[3, 3] = 1
        for number, (axis, flip) in enumerate(zip(self.axes, self.flips, strict=True)):
            matrix[axis, number] = -1 if flip else 1
            matrix[axis, 3] = shape[axis] - 1 if flip else 0
        return matrix

    def plane(self, affine: NDArray[np.float64]) -> Plane:
        """Return the plane of the slices on the grid of an affine."""
        return next((name for name in _LAYOUT if Orientation.closest(affine, name) == self), "axial")

    @property
    def _flipped(self) -> tuple[int, ...]:
        return tuple(axis for axis, flip in enumerate(self.flips) if flip)


@dataclass(frozen=True)
class Slab:
    """Slices of a scan that a network sees, and the middle from which their heights are counted.

    Attributes:
        first: Number of the first slice.
        count: Number of slices.
        native: Number of slices of the scan.
        middle: Place of height 0, as a slice number that need not be whole.
    """

    first: int
    count: int
    native: int
    middle: float

    @classmethod
    def about(cls, middle: float, extent: float, native: int) -> Slab:
        """Return the slices whose centres lie less than half an extent from a middle, both in slices."""
        first = max(math.ceil(middle - extent / 2 - 1e-6), 0)
        end = min(math.ceil(middle + extent / 2 - 1e-6), native)
        return cls(first, max(end - first, 0), native, middle)

    def cut(self, slices: NDArray[Any]) -> NDArray[Any]:
        """Return a view of the slab's slices."""
        return slices[self.first : self.first + self.count]

    def restore(self, slices: NDArray[Any]) -> NDArray[Any]:
        """Return all slices of the scan, with 0 beyond the slab."""
        margins = [(self.first, self.native - self.first - self.count), *[(0, 0)] * (slices.ndim - 1)]
        return np.pad(slices, margins)

    def heights(self, distance: float) -> Tensor:
        """Return the heights of the slab's slices in mm, `(slices,)`, for a distance of slices in mm."""
        return distance * (self.first - self.middle + torch.arange(self.count))


@dataclass(frozen=True)
class SliceGrid:
    """Map from a slice to the network's picture: resampling over the field of view, then cropping or padding.

    Attributes:
        native: Rows and columns of the scan's own slices.
        resampled: Rows and columns after resampling. Pixel i lies at `(i + 0.5) * native / resampled - 0.5`.
        offset: Row and column of the resampled slice where the picture begins. Negative for padding.
        size: Rows and columns of the picture.
    """

    native: tuple[int, int]
    resampled: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def place(self, slices: Tensor) -> Tensor:
        """Return intensities `(slices, rows, columns)` as zero-padded pictures `(slices, height, width)`."""
        return F.pad(_averaged(slices, self.resampled), self._margins)

    def place_labels(self, labels: Tensor) -> Tensor:
        """Return labels `(slices, rows, columns)` as pictures `(slices, height, width)`, by nearest neighbour."""
        rows, columns = (_nearest(n, m) for n, m in zip(self.native, self.resampled, strict=True))
        return F.pad(labels[:, rows][:, :, columns], self._margins)

    def restore(self, pictures: Tensor, outside: float) -> Tensor:
        """Resample pictures `(slices, height, width)` linearly back to `(slices, rows, columns)`.

        Values are taken at the centres of the native pixels, which undoes `place_labels` where that refined pixels.

        Args:
            pictures: One value per pixel, such as the probability of one class.
            outside: Value beyond the picture.
        """
        left, right, top, bottom = self._margins
        return _interpolated(F.pad(pictures, (-left, -right, -top, -bottom), value=outside), self.native)

    def matrix(self) -> NDArray[np.float64]:
        """Return the map from slice, row and column numbers of pictures to those of the scan's own slices, `(4, 4)`."""
        matrix = np.eye(4)
        for axis in (0, 1):
            step = self.native[axis] / self.resampled[axis]
            matrix[axis + 1, axis + 1] = step
            matrix[axis + 1, 3] = (self.offset[axis] + 0.5) * step - 0.5
        return matrix

    @property
    def padding(self) -> Tensor | None:
        """Return True at the pixels `(height, width)` that zero-padding added, or None if there are none."""
        if max(self._margins) <= 0:
            return None
        inside = torch.zeros(1, *self.resampled, dtype=torch.bool)
        return F.pad(inside, self._margins, value=True)[0]

    @property
    def _margins(self) -> tuple[int, int, int, int]:
        """Return left, right, top and bottom for `torch.nn.functional.pad`, negative where pictures are cropped."""
        (top, left), (rows, columns), (height, width) = self.offset, self.resampled, self.size
        return -left, left + width - columns, -top, top + height - rows


@dataclass(frozen=True)
class VolumeGrid:
    """Map from the voxels of a scan, in the order of a plane, to a network's volume: resampling, then padding.

    Attributes:
        native: Slices, rows and columns of the scan.
        resampled: The same after resampling.
        size: The same after padding, half of it before the scan.
    """

    native: tuple[int, int, int]
    resampled: tuple[int, int, int]
    size: tuple[int, int, int]

    def place(self, volume: Tensor) -> Tensor:
        """Return intensities `(slices, rows, columns)` resampled and zero-padded, `(depth, height, width)`."""
        depth, *picture = self.resampled
        found = _averaged(volume, (picture[0], picture[1]))
        if len(found) != depth:
            found = (_hats(len(found), depth).to(found) @ found.flatten(1)).view(depth, *picture)
        return F.pad(found, self._margins)

    def place_labels(self, labels: Tensor) -> Tensor:
        """Return labels `(slices, rows, columns)` by nearest neighbour, `(depth, height, width)`."""
        planes, rows, columns = (_nearest(n, m) for n, m in zip(self.native, self.resampled, strict=True))
        return F.pad(labels[planes][:, rows][:, :, columns], self._margins)

    def restore(self, volume: Tensor) -> Tensor:
        """Resample `(depth, height, width)` linearly back to `(slices, rows, columns)`."""
        inside = F.pad(volume, [-margin for margin in self._margins])
        if self.resampled == self.native:
            return inside
        return F.interpolate(inside[None, None], size=self.native, mode="trilinear", align_corners=False)[0, 0]

    @property
    def padding(self) -> Tensor | None:
        """Return True at voxels `(depth, height, width)` that padding added, or None if there are none."""
        if not any(self._margins):
            return None
        return F.pad(torch.zeros(self.resampled, dtype=torch.bool), self._margins, value=True)

    @property
    def _margins(self) -> list[int]:
        margins = []
        for length, wanted in zip(reversed(self.resampled), reversed(self.size), strict=True):
            margins += [(wanted - length) // 2, wanted - length - (wanted - length) // 2]
        return margins


def _averaged(slices: Tensor, size: tuple[int, int]) -> Tensor:
    """Resample `(slices, rows, columns)` linearly between pixel centres, and average where pixels grow."""
    if tuple(slices.shape[1:]) == size:
        return slices
    rows, columns = (_hats(n, m).to(slices) for n, m in zip(slices.shape[1:], size, strict=True))
    return rows @ slices @ columns.T


def _hats(native: int, resampled: int) -> Tensor:
    """Return the weights `(resampled, native)` of linear resampling, hat functions that are wider where pixels grow."""
    step = native / resampled
    centres = (torch.arange(resampled, dtype=torch.float64) + 0.5) * step - 0.5
    distances = (torch.arange(native, dtype=torch.float64) - centres[:, None]).abs()
    weights = (1 - distances / max(step, 1.0)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def _interpolated(slices: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate `(slices, rows, columns)` linearly at the centres of other pixels."""
    if tuple(slices.shape[1:]) == size:
        return slices
    return F.interpolate(slices[None], size=size, mode="bilinear", align_corners=False)[0]


def _nearest(native: int, resampled: int) -> Tensor:
    """Return the native pixel under the centre of every resampled one, `(resampled,)`."""
    return (2 * torch.arange(resampled) + 1) * native // (2 * resampled)
