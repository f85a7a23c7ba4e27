"""Number, sum and sum of squares over all pixels in one pass, with a ReLU or without, and their gradient in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.triton.layout import cells, like, share, sharing, table, tiling, weighed
from scantune.kernels.triton.totals import totals


def measure(values: Tensor, weights: Tensor | None, center: Tensor, units: Tensor) -> Tensor:
    """Return number of pixels, sum of values and sum of squares about a center, each in units.

    Args:
        values: `(slices, channels, *spatial)`, in half or single precision.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
        center: `(channels,)`, in single precision.
        units: What each is multiplied by, `(3, channels)` in double precision.

    Returns:
        `(3, channels)` in double precision; programs sum in single precision.
    """
    return _measured(values, center, values, weights, center, units, False)


def slopes(values: Tensor, weights: Tensor | None, center: Tensor, units: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to the values, in their shape and precision.

    Args:
        values: As in `measure`.
        weights: As in `measure`.
        center: As in `measure`.
        units: As in `measure`.
        gradient: Of what was measured, `(3, channels)`.
    """
    return _sloped(values, center, weights, center, units, gradient, values, False)


def activate(
    values: Tensor, bias: Tensor, weights: Tensor | None, center: Tensor, units: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ReLU of values + bias `(channels,)`, and the moments of values + bias."""
    result = torch.empty_like(table(values))
    found = _measured(values, bias, result, weights, center, units, True)
    return like(result, values), found


def activation_slopes(
    values: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    center: Tensor,
    units: Tensor,
    gradient: Tensor,
    activations: Tensor,
) -> Tensor:
    """Return the gradient of both with respect to the values.

    `activations` is the gradient of the ReLU, in the values' shape.
    """
    return _sloped(values, bias, weights, center, units, gradient, activations, True)


def _measured(
    values: Tensor,
    bias: Tensor,
    result: Tensor,
    weights: Tensor | None,
    center: Tensor,
    units: Tensor,
    activated: bool,
) -> Tensor:
    pixels = table(values)
    grid, block, wide, rounds = sharing(pixels)
    parts = torch.empty(grid[0], 3, pixels.shape[1], device=values.device)
    arguments = (pixels, bias, weighed(weights, pixels), center, result, parts, *pixels.shape)
    _sums[grid](*arguments, rounds, block, wide, weights is not None, activated)
    return totals(parts, units)


def _sloped(
    values: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    center: Tensor,
    units: Tensor,
    gradient: Tensor,
    activations: Tensor,
    activated: bool,
) -> Tensor:
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    result = torch.empty_like(pixels)
    numbers = (center, units, gradient.to(units).contiguous())
    arguments = (pixels, bias, weighed(weights, pixels), *numbers, table(activations), result, *pixels.shape)
    _slopes[grid](*arguments, block, wide, weights is not None, activated)
    return like(result, values)


@triton.jit
def _sums(
    values,
    bias,
    weights,
    center,
    result,
    parts,
    number,
    channels,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    present = column < channels
    shift = tl.zeros((WIDE,), tl.float32)
    if ACTIVATED:
        shift = tl.load(bias + column, mask=present, other=0.0)
    middle = tl.load(center + column, mask=present, other=0.0)
    counted = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    squares = tl.zeros((BLOCK, WIDE), tl.float32)
    for turn in range(ROUNDS):
        row, place, inside = share(turn, column, number, channels, BLOCK)
        value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
        if ACTIVATED:
            tl.store(result + place, tl.maximum(value, 0.0).to(result.dtype.element_ty), mask=inside)
        counts = tl.where(row < number, 1.0, 0.0)
        away = tl.where(inside, value - middle[None, :], 0.0)
        if WEIGHTED:
            counts = tl.load(weights + row, mask=row < number, other=0.0)
            away *= counts[:, None]
        counted += counts
        total += away
        squares += away * away
    into = parts + tl.program_id(0) * 3 * channels + column
    tl.store(into, tl.zeros((WIDE,), tl.float32) + tl.sum(counted, 0), mask=present)
    tl.store(into + channels, tl.sum(total, 0), mask=present)
    tl.store(into + 2 * channels, tl.sum(squares, 0), mask=present)


@triton.jit
def _slopes(
    values,
    bias,
    weights,
    center,
    units,
    gradient,
    incoming,
    result,
    number,
    channels,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    row, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATED:
        value += tl.load(bias + column, mask=present, other=0.0)[None, :]
    one, two = channels + column, 2 * channels + column
    total = tl.load(gradient + one, mask=present, other=0.0) * tl.load(units + one, mask=present, other=0.0)
    rise = 2 * tl.load(gradient + two, mask=present, other=0.0) * tl.load(units + two, mask=present, other=0.0)
    start = total - rise * tl.load(center + column, mask=present, other=0.0)
    slope = start.to(tl.float32)[None, :] + rise.to(tl.float32)[None, :] * value
    if WEIGHTED:
        slope *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    if ACTIVATED:
        slope += tl.where(value > 0, tl.load(incoming + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(result + place, slope.to(result.dtype.element_ty), mask=inside)
