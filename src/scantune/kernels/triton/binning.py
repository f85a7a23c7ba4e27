"""How much falls to each point of a grid in one pass, by matrix products, and the gradient of that in one pass.

A point is one of a stretch of eight. Which stretch a value falls to, and which point of it, are two rows of zeros with
a one each; their outer products, summed over pixels, are the counts: a matrix product, which needs no atomics and adds
up in a fixed order. Beside counts, the same product sums how far values are on their way to the next point.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.triton.layout import cells, like, shares, table, tiling, weighed

STRETCH = 8
"""Points of a stretch."""
STRETCHES = 16
MAX_POINTS = STRETCH * STRETCHES
"""Maximum number of points of a grid."""
BLOCK, WIDE = 128, 4
"""Pixels and channels that a program processes at a time."""
PROGRAMS = 4096
"""Approximate number of programs that share the pixels."""
ROWS, POINTS_AT_A_TIME = 128, 16
"""Programs and points whose counts are added up at a time."""


def counts(values: Tensor, weights: Tensor | None, rise: Tensor, start: Tensor, points: int) -> Tensor:
    """Count the values at each point; a value's weight is shared by its two neighbours.

    Args:
        values: `(slices, channels, *spatial)`, in half or single precision.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
        rise: Points that a value of 1 is above one of 0, `(channels,)` in single precision.
        start: Where a value of 0 is, in points from the first, `(channels,)` in single precision.
        points: Up to `MAX_POINTS`; the ends hold what is beyond them.

    Returns:
        Number of pixels, and what falls to the points, `(1 + points, channels)` in double precision; shares are rounded
        to half precision.
    """
    return _counted(values, start, values, weights, rise, start, points, False)


def slopes(values: Tensor, weights: Tensor | None, rise: Tensor, start: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to the values, in their shape and precision.

    Args:
        values: As in `counts`.
        weights: As in `counts`.
        rise: As in `counts`.
        start: As in `counts`.
        gradient: Of the number and the counts, `(1 + points, channels)`.
    """
    return _sloped(values, start, weights, rise, start, gradient, values, False)


def activate(
    values: Tensor, bias: Tensor, weights: Tensor | None, rise: Tensor, start: Tensor, points: int
) -> tuple[Tensor, Tensor]:
    """Return ReLU of values + bias `(channels,)`, and the counts of values + bias."""
    result = torch.empty_like(table(values))
    found = _counted(values, bias, result, weights, rise, start, points, True)
    return like(result, values), found


def activation_slopes(
    values: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    rise: Tensor,
    start: Tensor,
    gradient: Tensor,
    activations: Tensor,
) -> Tensor:
    """Return the gradient of both with respect to the values.

    `activations` is the gradient of the ReLU, in the values' shape.
    """
    return _sloped(values, bias, weights, rise, start, gradient, activations, True)


def _counted(
    values: Tensor,
    bias: Tensor,
    result: Tensor,
    weights: Tensor | None,
    rise: Tensor,
    start: Tensor,
    points: int,
    activated: bool,
) -> Tensor:
    pixels = table(values)
    number, channels = pixels.shape
    groups = -(-channels // WIDE)
    programs, rounds = shares(-(-number // BLOCK), max(PROGRAMS // groups, 1))
    parts = torch.empty(programs, channels, STRETCHES, 2 * STRETCH, device=values.device)
    arguments = (pixels, bias, weighed(weights, pixels), rise, start, result, parts, *pixels.shape, points - 1, rounds)
    _counts[(groups, programs)](*arguments, BLOCK, WIDE, STRETCH, STRETCHES, weights is not None, activated)
    found = torch.empty(1 + points, channels, dtype=torch.double, device=values.device)
    counted = found if weights is None else weights.sum(dtype=torch.double)
    chunks = triton.next_power_of_2(-(-programs // ROWS))
    sizes = (number, channels, points, programs, chunks, ROWS, POINTS_AT_A_TIME, STRETCH, STRETCHES)
    _totals[(channels, -(-points // POINTS_AT_A_TIME))](parts, counted, found, *sizes, weights is not None)
    return found


def _sloped(
    values: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    rise: Tensor,
    start: Tensor,
    gradient: Tensor,
    activations: Tensor,
    activated: bool,
) -> Tensor:
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    result = torch.empty_like(pixels)
    steps = gradient[1:].diff(dim=0).float()
    incoming = table(activations)
    shape = (*pixels.shape, len(steps))
    arguments = (pixels, bias, weighed(weights, pixels), rise, start, steps, incoming, result, *shape)
    _slopes[grid](*arguments, block, wide, weights is not None, activated)
    return like(result, values)


@triton.jit
def _counts(
    values,
    bias,
    weights,
    rise,
    start,
    result,
    parts,
    number,
    channels,
    last,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    STRETCH: tl.constexpr,
    STRETCHES: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ACTIVATED: tl.constexpr,
):
    # Channels of the same pixels are looked at next to each other in time.
    share, shares = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    present = column < channels
    slope = tl.load(rise + column, mask=present, other=0.0)[:, None]
    first = tl.load(start + column, mask=present, other=0.0)[:, None]
    stretch = tl.arange(0, STRETCHES)[None, :, None]
    kind = tl.arange(0, 2 * STRETCH)[None, :, None]
    total = tl.zeros((WIDE, STRETCHES, 2 * STRETCH), tl.float32)
    for turn in range(ROUNDS):
        row = (turn * shares + share).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = present[:, None] & (row < number)[None, :]
        place = row[None, :] * channels + column[:, None]
        value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
        if ACTIVATED:
            value += tl.load(bias + column, mask=present, other=0.0)[:, None]
            tl.store(result + place, tl.maximum(value, 0.0).to(result.dtype.element_ty), mask=inside)
        amount = tl.where(inside, 1.0, 0.0)
        if WEIGHTED:
            amount *= tl.load(weights + row, mask=row < number, other=0.0)[None, :]
        position = value * slope + first
        # A NaN has no point, but its share stays NaN, so that the sum of shares becomes NaN too.
        known = position == position
        held = tl.minimum(tl.maximum(tl.where(known, position, 0.0), 0.0), last * 1.0)
        left = tl.minimum(held.to(tl.int32), last - 1)
        onwards = tl.where(known, held - left, position) * amount
        at = tl.where((left // STRETCH)[:, None, :] == stretch, 1.0, 0.0).to(tl.float16)
        shared = tl.where(kind < STRETCH, amount[:, None, :], onwards[:, None, :])
        among = tl.where((left % STRETCH)[:, None, :] == kind % STRETCH, shared, 0.0).to(tl.float16)
        total = tl.dot(at, tl.permute(among, (0, 2, 1)), total)
    place = ((share * channels + column)[:, None, None] * STRETCHES + stretch) * 2 * STRETCH
    tl.store(parts + place + tl.permute(kind, (0, 2, 1)), total, mask=present[:, None, None])


@triton.jit
def _totals(
    parts,
    counted,
    found,
    number,
    channels,
    points,
    shares,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS_AT_A_TIME: tl.constexpr,
    STRETCH: tl.constexpr,
    STRETCHES: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    """Sum over programs in a fixed order: counts at a point, less what goes on, plus what comes from before."""
    channel = tl.program_id(0)
    point = tl.program_id(1) * POINTS_AT_A_TIME + tl.arange(0, POINTS_AT_A_TIME)
    before = point - 1
    here = (point // STRETCH) * 2 * STRETCH + point % STRETCH
    come = (before // STRETCH) * 2 * STRETCH + before % STRETCH + STRETCH
    total = tl.zeros((ROWS, POINTS_AT_A_TIME), tl.float64)
    for chunk in range(CHUNKS):
        row = chunk * ROWS + tl.arange(0, ROWS)
        start = parts + ((row * channels + channel) * STRETCHES * 2 * STRETCH)[:, None]
        inside = (row < shares)[:, None] & (point < points)[None, :]
        total += tl.load(start + here[None, :], mask=inside, other=0.0).to(tl.float64)
        total -= tl.load(start + here[None, :] + STRETCH, mask=inside, other=0.0).to(tl.float64)
        total += tl.load(start + come[None, :], mask=inside & (before >= 0)[None, :], other=0.0).to(tl.float64)
    tl.store(found + (1 + point) * channels + channel, tl.sum(total, 0), mask=point < points)
    if tl.program_id(1) == 0:
        count = tl.zeros((), tl.float64) + number
        if WEIGHTED:
            count = tl.load(counted)
        tl.store(found + channel, count)


@triton.jit
def _slopes(
    values,
    bias,
    weights,
    rise,
    start,
    steps,
    incoming,
    result,
    number,
    channels,
    last,
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
    slope = tl.load(rise + column, mask=present, other=0.0)[None, :]
    position = value * slope + tl.load(start + column, mask=present, other=0.0)[None, :]
    between = (position > 0) & (position < last)
    left = tl.where(between, position, 0.0).to(tl.int32)
    answer = tl.load(steps + left * channels + column[None, :], mask=inside & between, other=0.0) * slope
    if WEIGHTED:
        answer *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    if ACTIVATED:
        answer += tl.where(value > 0, tl.load(incoming + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(result + place, answer.to(result.dtype.element_ty), mask=inside)
