"""Sums of values and of squares over all pixels in one pass, and their gradient in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.layout import cells, like, table, tiling, weighed


def sums(values: Tensor, weights: Tensor | None, center: Tensor) -> Tensor:
    """Sums of values and of squares about a center.

    Args:
        values: `(slices, channels, *spatial)`, in any floating precision.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
        center: `(channels,)`, in single precision.

    Returns:
        `(2, channels)` in double precision; tiles are summed in single precision.
    """
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    parts = torch.empty(grid[0], 2, pixels.shape[1], device=values.device)
    arguments = (pixels, weighed(weights, pixels), center, parts, *pixels.shape)
    _sums[grid](*arguments, block, wide, weights is not None)
    return parts.sum(0, dtype=torch.double)


def slopes(values: Tensor, weights: Tensor | None, offset: Tensor, factor: Tensor) -> Tensor:
    """The gradient of sums: offset + factor * values where pixels count, in the values' shape and precision.

    Args:
        values: `(slices, channels, *spatial)`.
        weights: As in `sums`.
        offset: `(channels,)`, in single precision.
        factor: `(channels,)`, in single precision.
    """
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    result = torch.empty_like(pixels)
    arguments = (pixels, weighed(weights, pixels), offset, factor, result, *pixels.shape)
    _slopes[grid](*arguments, block, wide, weights is not None)
    return like(result, values)


@triton.jit
def _sums(
    values,
    weights,
    center,
    parts,
    number,
    channels,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    row, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    middle = tl.load(center + column, mask=present, other=0.0)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    away = tl.where(inside, value - middle[None, :], 0.0)
    if WEIGHTED:
        away *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    into = parts + tl.program_id(0) * 2 * channels + column
    tl.store(into, tl.sum(away, 0), mask=present)
    tl.store(into + channels, tl.sum(away * away, 0), mask=present)


@triton.jit
def _slopes(
    values,
    weights,
    offset,
    factor,
    result,
    number,
    channels,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    row, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    start = tl.load(offset + column, mask=present, other=0.0)
    rise = tl.load(factor + column, mask=present, other=0.0)
    slope = start[None, :] + rise[None, :] * value
    if WEIGHTED:
        slope *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    tl.store(result + place, slope.to(result.dtype.element_ty), mask=inside)
