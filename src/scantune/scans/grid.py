"""From a scan's own grid to a network's slices and back: axes, in-plane resampling, crop and zero-padding.

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
    """Which axes of a scan's array become slices, rows and columns.

    Attributes:
        axes: Array axis of the slices, rows and columns.
        flips: Whether the slices, rows and columns run against their array axis.
    """

    axes: tuple[int, int, int]
    flips: tuple[bool, bool, bool]

    @classmethod
    def closest(cls, affine: NDArray[np.float64], plane: Plane) -> Orientation:
        """The orientation of a plane, with every array axis taken for the world axis it is closest to.

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
        """A view `(slices, rows, columns)` of an array `(x, y, z)`."""
        return np.flip(np.transpose(array, self.axes), self._flipped)

    def to_native(self, slices: NDArray[Any]) -> NDArray[Any]:
        """A view `(x, y, z)` of an array `(slices, rows, columns)`; the inverse of `to_slices`."""
        return np.transpose(np.flip(slices, self._flipped), np.argsort(self.axes))

    def matrix(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """From slice, row and column numbers to array indices, `(4, 4)`, for an array of a shape."""
        matrix = np.zeros((4, 4))
        matrix[3, 3] = 1
        for number, (axis, flip) in enumerate(zip(self.axes, self.flips, strict=True)):
            matrix[axis, number] = -1 if flip else 1
            matrix[axis, 3] = shape[axis] - 1 if flip else 0
        return matrix

    def plane(self, affine: NDArray[np.float64]) -> Plane:
        """The plane of the slices, on the grid of this affine."""
        return next((name for name in _LAYOUT if Orientation.closest(affine, name) == self), "axial")

    @property
    def _flipped(self) -> tuple[int, ...]:
        return tuple(axis for axis, flip in enumerate(self.flips) if flip)


@dataclass(frozen=True)
class Slab:
    """The slices of a scan that a network sees, and where the middle is that their heights are counted from.

    Attributes:
        first: Number of the first slice.
        count: How many there are.
        native: How many the scan has.
        middle: The place of height 0, as a slice number that need not be whole.
    """

    first: int
    count: int
    native: int
    middle: float

    @classmethod
    def about(cls, middle: float, extent: float, native: int) -> Slab:
        """The slices whose centres lie less than half an extent, in slices, from a middle."""
        first = max(math.ceil(middle - extent / 2 - 1e-6), 0)
        end = min(math.ceil(middle + extent / 2 - 1e-6), native)
        return cls(first, max(end - first, 0), native, middle)

    def cut(self, slices: NDArray[Any]) -> NDArray[Any]:
        """A view of the slab's slices."""
        return slices[self.first : self.first + self.count]

    def restore(self, slices: NDArray[Any]) -> NDArray[Any]:
        """All slices of the scan, with 0 beyond the slab."""
        margins = [(self.first, self.native - self.first - self.count), *[(0, 0)] * (slices.ndim - 1)]
        return np.pad(slices, margins)

    def heights(self, distance: float) -> Tensor:
        """Of the slab's slices in mm `(slices,)`, by the distance of slices."""
        return distance * (self.first - self.middle + torch.arange(self.count))


@dataclass(frozen=True)
class SliceGrid:
    """The way of a slice to the network's picture: resampled over its field of view, then cropped or padded.

    Attributes:
        native: Rows and columns of the scan's own slices.
        resampled: Rows and columns after resampling; pixel i lies at `(i + 0.5) * native / resampled - 0.5`.
        offset: Row and column of the resampled slice where the picture begins; negative where padding does.
        size: Rows and columns of the picture.
    """

    native: tuple[int, int]
    resampled: tuple[int, int]
    offset: tuple[int, int]
    size: tuple[int, int]

    def place(self, slices: Tensor) -> Tensor:
        """Intensities `(slices, rows, columns)` as pictures `(slices, height, width)`, zero-padded."""
        return F.pad(_averaged(slices, self.resampled), self._margins)

    def place_labels(self, labels: Tensor) -> Tensor:
        """Labels `(slices, rows, columns)` as pictures `(slices, height, width)`, by nearest neighbour."""
        rows, columns = (_nearest(n, m) for n, m in zip(self.native, self.resampled, strict=True))
        return F.pad(labels[:, rows][:, :, columns], self._margins)

    def restore(self, pictures: Tensor, outside: float) -> Tensor:
        """Pictures `(slices, height, width)` back as `(slices, rows, columns)`, linearly.

        Values are taken at the native pixels' centres, which undoes `place_labels` where that refined.

        Args:
            pictures: One value per pixel, such as the probability of one class.
            outside: The value where the picture does not reach.
        """
        left, right, top, bottom = self._margins
        return _interpolated(F.pad(pictures, (-left, -right, -top, -bottom), value=outside), self.native)

    def matrix(self) -> NDArray[np.float64]:
        """From slice, row and column numbers of pictures to those of the scan's own slices, `(4, 4)`."""
        matrix = np.eye(4)
        for axis in (0, 1):
            step = self.native[axis] / self.resampled[axis]
            matrix[axis + 1, axis + 1] = step
            matrix[axis + 1, 3] = (self.offset[axis] + 0.5) * step - 0.5
        return matrix

    @property
    def padding(self) -> Tensor | None:
        """Pixels `(height, width)` that zero-padding added; None if there are none."""
        if max(self._margins) <= 0:
            return None
        inside = torch.zeros(1, *self.resampled, dtype=torch.bool)
        return F.pad(inside, self._margins, value=True)[0]

    @property
    def _margins(self) -> tuple[int, int, int, int]:
        """Left, right, top and bottom, as `torch.nn.functional.pad` takes them: negative where cropped."""
        (top, left), (rows, columns), (height, width) = self.offset, self.resampled, self.size
        return -left, left + width - columns, -top, top + height - rows


def _averaged(slices: Tensor, size: tuple[int, int]) -> Tensor:
    """Separable linear resampling of `(slices, rows, columns)` between pixel centres; what shrinks is averaged."""
    if tuple(slices.shape[1:]) == size:
        return slices
    rows, columns = (_hats(n, m).to(slices) for n, m in zip(slices.shape[1:], size, strict=True))
    return rows @ slices @ columns.T


def _hats(native: int, resampled: int) -> Tensor:
    """Weights `(resampled, native)` of linear resampling; their hats are wider where they shrink."""
    step = native / resampled
    centres = (torch.arange(resampled, dtype=torch.float64) + 0.5) * step - 0.5
    distances = (torch.arange(native, dtype=torch.float64) - centres[:, None]).abs()
    weights = (1 - distances / max(step, 1.0)).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


def _interpolated(slices: Tensor, size: tuple[int, int]) -> Tensor:
    """Linear interpolation of `(slices, rows, columns)` at the centres of other pixels."""
    if tuple(slices.shape[1:]) == size:
        return slices
    return F.interpolate(slices[None], size=size, mode="bilinear", align_corners=False)[0]


def _nearest(native: int, resampled: int) -> Tensor:
    """The native pixel under the centre of every resampled one, `(resampled,)`."""
    return (2 * torch.arange(resampled) + 1) * native // (2 * resampled)
