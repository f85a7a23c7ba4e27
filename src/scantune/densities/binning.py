"""Linear binning: how much of each expert's values falls to each point of a grid, differentiably."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**21
"""Values that are binned at a time; what is held beside the values themselves is bounded by it."""


@dataclass(frozen=True)
class Grid:
    """Equally spaced points, in training deviations.

    Args:
        low: The first point.
        high: The last point.
        step: Between two points.
    """

    low: float = -5.0
    high: float = 5.0
    step: float = 0.1

    @property
    def size(self) -> int:
        """Number of points."""
        return round((self.high - self.low) / self.step) + 1

    def points(self) -> Tensor:
        """`(points,)`, in double precision."""
        return torch.linspace(self.low, self.high, self.size, dtype=torch.double)

    def place(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The point left of each value, and the share of the way to the next; the ends hold what is beyond them."""
        position = ((values - self.low) / self.step).clamp_(0, self.size - 1)
        # A NaN has no point, but its share stays NaN, so that whoever sums the shares gets to know.
        left = position.nan_to_num(0).floor_().clamp_(max=self.size - 2)
        return left.long(), position.sub_(left)


def counts(values: Tensor, weights: Tensor | None, grid: Grid) -> Tensor:
    """What falls to each point, a value's weight being shared by its two neighbours.

    Args:
        values: `(slices, experts, *spatial)`.
        weights: `(slices, 1, *spatial)`; None for ones.
        grid: The points.

    Returns:
        `(experts, points)`; no tensor of pixels times points is made on the way.
    """
    flat = None if weights is None else weights.flatten(2)
    return _Counts.apply(values.flatten(2), flat, grid)  # type: ignore[no-any-return, no-untyped-call]


class _Counts(torch.autograd.Function):
    """Keeps the values alone for the backward pass, not where they fell: that is 3 times less memory."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, grid: Grid) -> Tensor:
        ctx.save_for_backward(values, weights)
        ctx.grid = grid
        slices, experts, _ = values.shape
        # Each slice fills bins of its own: sums stay small, and fewer additions meet at an address.
        total = values.new_zeros(slices * experts * grid.size)
        first = (torch.arange(slices * experts, device=values.device) * grid.size).view(slices, experts, 1)
        for part in _chunks(values):
            left, share = grid.place(values[..., part])
            counted = torch.ones_like(share) if weights is None else weights[..., part].expand_as(share)
            right = share.mul_(counted)
            index = left.add_(first).flatten()
            total.scatter_add_(0, index, (counted - right).flatten())
            total.scatter_add_(0, index.add_(1), right.flatten())
        return total.view(slices, experts, grid.size).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        values, weights = ctx.saved_tensors
        grid: Grid = ctx.grid
        rise = gradients[0].diff(dim=1) / grid.step
        rise = rise.expand(len(values), *rise.shape)
        result = torch.empty_like(values)
        for part in _chunks(values):
            chunk = values[..., part]
            slope = rise.gather(2, grid.place(chunk)[0])
            slope *= (chunk > grid.low) & (chunk < grid.high)
            if weights is not None:
                slope *= weights[..., part]
            result[..., part] = slope
        return result, None, None


def _chunks(values: Tensor) -> Iterator[slice]:
    """Parts of the last axis."""
    size = max(CHUNK // max(values.shape[0] * values.shape[1], 1), 1)
    for start in range(0, values.shape[2], size):
        yield slice(start, start + size)
