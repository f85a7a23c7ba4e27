"""Linear binning: how much of each expert's values falls to each point of a grid, differentiably."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scantune.densities.base import Standardization
from scantune.errors import InputError
from scantune.kernels import usable

MAX_POINTS = 100_000
"""Points of a grid; the densities' own have a hundred or so."""

MAX_KERNEL_POINTS = 128
"""Points of a grid up to which a kernel counts."""

VALUES_AT_A_TIME = 2**21
"""Values that are binned at a time; what is held beside the values themselves is bounded by it."""


@dataclass(frozen=True)
class BinGrid:
    """Equally spaced points, in training deviations.

    Args:
        low: The first point.
        high: The last point.
        step: Between two points.
    """

    low: float = -5.0
    high: float = 5.0
    step: float = 0.1

    def __post_init__(self) -> None:
        if not (
            -math.inf < self.low < self.high < math.inf and 0 < self.step < math.inf and 2 <= self.size <= MAX_POINTS
        ):
            raise InputError(
                f"The grid of a density must rise from a lower to a higher end in 2 to {MAX_POINTS} points, not from "
                f"{self.low} to {self.high} by {self.step}."
            )

    @property
    def size(self) -> int:
        """Number of points."""
        return round((self.high - self.low) / self.step) + 1

    def points(self) -> Tensor:
        """Return the points `(points,)`, in double precision."""
        return torch.linspace(self.low, self.high, self.size, dtype=torch.double)

    def place(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point left of each position and the share of the way to the next.

        The ends hold what is beyond them.

        Args:
            positions: In steps from the first point; used up.
        """
        positions.clamp_(0, self.size - 1)
        # A NaN has no point, but its share stays NaN, so that the sum of shares becomes NaN too.
        left = positions.nan_to_num(0).floor_().clamp_(max=self.size - 2)
        return left.long(), positions.sub_(left)


def bin_counts(
    values: Tensor, weights: Tensor | None, grid: BinGrid, standard: Standardization | None = None
) -> Tensor:
    """Count the values at each point; a value's weight is shared by its two neighbours.

    Args:
        values: `(slices, experts, *spatial)`.
        weights: `(slices, 1, *spatial)`; None for ones.
        grid: The points.
        standard: How the values are standardised; None where they are already.

    Returns:
        Number of pixels, and what falls to the points, `(1 + points, experts)`; no tensor of pixels times points is
        made on the way.
    """
    precise = torch.promote_types(values.dtype, torch.float32)
    by_kernel = has_kernel(values, grid) and precise == torch.float32
    rise, start = affine_to_grid(grid, standard, values.new_empty(values.shape[1], dtype=precise))
    if by_kernel:
        return _ByKernel.apply(values, weights, grid.size, rise, start)  # type: ignore[no-any-return, no-untyped-call]
    # Experts last, the order of channels in memory.
    flat = values.to(precise).movedim(1, -1).flatten(1, -2)
    counted = None if weights is None else weights.to(flat).flatten(1).unsqueeze(2)
    fallen: Tensor = _Counts.apply(flat, counted, grid, rise, start)  # type: ignore[no-untyped-call]
    number = fallen.new_full((), flat.shape[0] * flat.shape[1]) if weights is None else weights.sum().to(fallen)
    return torch.cat([number.expand(1, len(fallen)), fallen.T])


def has_kernel(values: Tensor, grid: BinGrid) -> bool:
    """Return whether a kernel can count values at the points of a grid."""
    return usable(values) and grid.size <= MAX_KERNEL_POINTS


def affine_to_grid(grid: BinGrid, standard: Standardization | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the affine map from values to steps above the grid's first point: slope and offset, `(experts,)` each.

    Args:
        grid: The points.
        standard: How values are standardised; None where they are already.
        like: Of the device, the precision and the shape that are wanted.
    """
    scale = torch.ones_like(like) if standard is None else standard.scale.to(like)
    center = torch.zeros_like(like) if standard is None else standard.center.to(like)
    rise = 1 / (scale * grid.step)
    return rise, -center * rise - grid.low / grid.step


class _Counts(torch.autograd.Function):
    """Keeps the values alone for the backward pass, not where they fell: that is 3 times less memory."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, grid: BinGrid, rise: Tensor, start: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, rise, start)
        ctx.grid = grid
        slices, _, experts = values.shape
        # Each slice fills bins of its own: sums stay small, and fewer additions meet at an address.
        total = values.new_zeros(slices * experts * grid.size)
        first = (torch.arange(slices * experts, device=values.device) * grid.size).view(slices, 1, experts)
        for part in _chunks(values):
            left, share = grid.place(torch.addcmul(start, values[:, part], rise))
            counted = torch.ones_like(share) if weights is None else weights[:, part].expand_as(share)
            right = share.mul_(counted)
            index = left.add_(first).flatten()
            total.scatter_add_(0, index, (counted - right).flatten())
            total.scatter_add_(0, index.add_(1), right.flatten())
        return total.view(slices, experts, grid.size).sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weights, rise, start = ctx.saved_tensors
        grid: BinGrid = ctx.grid
        # (experts, points - 1), and where each expert's begins
        slopes = gradients[0].diff(dim=1) * rise.unsqueeze(1)
        first = torch.arange(values.shape[2], device=values.device) * (grid.size - 1)
        result = torch.empty_like(values)
        for part in _chunks(values):
            positions = torch.addcmul(start, values[:, part], rise)
            between = (positions > 0) & (positions < grid.size - 1)
            slope = slopes.flatten().take(grid.place(positions)[0].add_(first)).mul_(between)
            if weights is not None:
                slope *= weights[:, part]
            result[:, part] = slope
        return result, None, None, None, None


class _ByKernel(torch.autograd.Function):
    """The same by kernels, for which values may be of half precision; counts are double."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor | None, points: int, rise: Tensor, start: Tensor) -> Tensor:
        from scantune.kernels.triton.binning import counts

        ctx.save_for_backward(values, weights, rise, start)
        return counts(values, weights, rise, start, points)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from scantune.kernels.triton.binning import slopes

        values, weights, rise, start = ctx.saved_tensors
        return slopes(values, weights, rise, start, gradients[0]), None, None, None, None


def _chunks(values: Tensor) -> Iterator[slice]:
    """Yield parts of the pixels."""
    size = max(VALUES_AT_A_TIME // max(values.shape[0] * values.shape[2], 1), 1)
    for start in range(0, values.shape[1], size):
        yield slice(start, start + size)
