"""Where on a grid a thing can be: looking at it only there saves most of the time of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Window = tuple[slice, slice, slice]
"""Slices, rows and columns of a grid."""

_OTHERS = ((1, 2), (0, 2), (0, 1))  # the axes across slices, rows and columns


@dataclass(frozen=True, eq=False)
class Extents:
    """Between which coordinates the slices, rows and columns of a grid lie.

    They are found once, in one transfer from the device, and asked many times.

    Attributes:
        lows: Lowest z of each slice, lowest y of each row and lowest x of each column.
        highs: The highest ones.
        step: Rows and columns that each of the grid's stands for.
    """

    lows: tuple[NDArray[np.float32], ...]
    highs: tuple[NDArray[np.float32], ...]
    step: int = 1

    @classmethod
    def of(cls, z: Tensor, y: Tensor, x: Tensor, step: int = 1) -> Extents:
        """Compute the extents of coordinates `(depth, height, width)` in mm."""
        axes = list(zip((z, y, x), _OTHERS, strict=True))
        ends = [axis.amin(others) for axis, others in axes] + [axis.amax(others) for axis, others in axes]
        borders = np.cumsum([len(end) for end in ends])[:-1]
        parts = np.split(torch.cat(ends).cpu().numpy(), borders)
        return cls(tuple(parts[:3]), tuple(parts[3:]), step)

    @property
    def heights(self) -> tuple[float, float]:
        """Return the lowest and highest z."""
        return float(self.lows[0].min()), float(self.highs[0].max())

    def window(self, low: Sequence[float], high: Sequence[float]) -> Window:
        """Return a part of the grid, perhaps empty, that holds all points between two corners `(z, y, x)`."""
        spans = []
        for axis, (least, most) in enumerate(zip(low, high, strict=True)):
            near = np.flatnonzero((self.lows[axis] < most) & (self.highs[axis] > least))
            spans.append(self._span(near, self.step if axis else 1))
        return spans[0], spans[1], spans[2]

    def around(self, middle: Sequence[float], reach: Sequence[float]) -> Window:
        """Return the part of the grid that holds all points up to a reach `(y, x)` from a middle `(y, x)`, at any z."""
        low, high = ([at + side * far for at, far in zip(middle, reach, strict=True)] for side in (-1, 1))
        return self.window((-np.inf, *low), (np.inf, *high))

    def cut(self, window: Window) -> Extents:
        """Return the extents of a part of the grid."""
        lows, highs = (
            tuple(end[part] for end, part in zip(ends, window, strict=True)) for ends in (self.lows, self.highs)
        )
        return Extents(lows, highs, self.step)

    @staticmethod
    def _span(near: NDArray[Any], step: int) -> slice:
        """Return the slice from the first to the last, with one more on either side if they stand for others."""
        if not near.size:
            return slice(0, 0)
        margin = step > 1
        return slice(max(int(near[0]) - margin, 0) * step, (int(near[-1]) + 1 + margin) * step)
