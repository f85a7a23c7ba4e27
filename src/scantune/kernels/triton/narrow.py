"""3 x 3 convolutions between one channel and many, which libraries pad to many on both sides.

Taps are numbered row by row, 4 is the centre; weights are `(9, channels)`. All three work in single precision inside.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.triton.totals import totals

BLOCK = 256
"""Pixels that a program spreads."""
TILE, RUN = 1024, 32
"""Numbers of a row that a program gathers at a time, and rows that it makes."""
PIXELS, PROGRAMS = 64, 4096
"""Pixels that a program correlates at a time, and about how many programs there are."""


def spread(picture: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve one channel to many: y[p, c] = bias[c] + sum over taps of weights[t, c] picture[p + t].

    Args:
        picture: `(slices, 1, height, width)`.
        weights: `(9, channels)`.
        bias: `(channels,)`.

    Returns:
        `(slices, channels, height, width)`, channels last in memory.
    """
    slices, _, height, width = picture.shape
    channels = weights.shape[1]
    result = picture.new_empty(slices, height, width, channels)
    number = slices * height * width
    shift = weights if bias is None else bias.float()
    shape = (number, height, width, channels, _power(channels))
    grid = (-(-number // BLOCK),)
    _spread[grid](picture.contiguous(), weights.contiguous(), shift, result, *shape, BLOCK, bias is not None)
    return result.movedim(-1, 1)


def gather(features: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve many channels to one: y[p] = bias + sum over taps, channels of weights[t, c] features[p + t, c].

    Args:
        features: `(slices, channels, height, width)`.
        weights: `(9, channels)`.
        bias: `(1,)`.

    Returns:
        `(slices, 1, height, width)`.
    """
    slices, channels, height, width = features.shape
    result = features.new_empty(slices, 1, height, width)
    shift = weights if bias is None else bias.float()
    table = features.movedim(1, -1).contiguous()
    wide = _power(channels)
    block = min(max(TILE // wide, 1), _power(width))
    columns, strips = -(-width // block), -(-height // RUN)
    sizes = (height, width, channels, columns, strips, wide, block, RUN)
    grid = (slices * strips * columns,)
    _gather[grid](table, weights.contiguous(), shift, result, *sizes, bias is not None)
    return result


def correlate(picture: Tensor, features: Tensor) -> Tensor:
    """Return the sum over pixels of picture[p + t] features[p, c], `(9, channels)`.

    Args:
        picture: `(slices, 1, height, width)`.
        features: `(slices, channels, height, width)`, in the same precision.
    """
    slices, channels, height, width = features.shape
    number = slices * height * width
    blocks = -(-number // PIXELS)
    rounds = _power(-(-blocks // PROGRAMS))
    parts = torch.empty(-(-blocks // rounds), 9, channels, device=features.device)
    table = features.movedim(1, -1).contiguous()
    sizes = (number, height, width, channels, rounds, max(_power(channels), 16), PIXELS)
    _correlate[(len(parts),)](picture.contiguous(), table, parts, *sizes, num_warps=1)
    return totals(parts).float()


def _power(number: int) -> int:
    """Return the next power of two."""
    return 1 << (number - 1).bit_length()


@triton.jit
def _near(pixel, number, height, width, TAP: tl.constexpr):
    """Return the pixel at a tap from others, and whether it exists."""
    row = (pixel // width) % height + TAP // 3 - 1
    column = pixel % width + TAP % 3 - 1
    there = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (pixel < number)
    return pixel + (TAP // 3 - 1) * width + TAP % 3 - 1, there


@triton.jit
def _spread(
    picture,
    weights,
    bias,
    result,
    number,
    height,
    width,
    channels,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    BIASED: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDE)
    present = column < channels
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    for tap in tl.static_range(9):
        near, there = _near(pixel, number, height, width, tap)
        value = tl.load(picture + near, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weights + tap * channels + column, mask=present, other=0.0).to(tl.float32)
        total += value[:, None] * weight[None, :]
    if BIASED:
        total += tl.load(bias + column, mask=present, other=0.0)[None, :]
    place = pixel.to(tl.int64)[:, None] * channels + column[None, :]
    inside = (pixel < number)[:, None] & present[None, :]
    tl.store(result + place, total.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _row(weights, channel, channels, ROW: tl.constexpr):
    """Load the weights of a row of taps."""
    start, present = weights + 3 * ROW * channels + channel, channel < channels
    left = tl.load(start, mask=present, other=0.0)[None, :]
    middle = tl.load(start + channels, mask=present, other=0.0)[None, :]
    return left, middle, tl.load(start + 2 * channels, mask=present, other=0.0)[None, :]


@triton.jit
def _gather(
    features,
    weights,
    bias,
    result,
    height,
    width,
    channels,
    columns,
    strips,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    RUN: tl.constexpr,
    BIASED: tl.constexpr,
):
    program = tl.program_id(0)
    pixel = (program % columns) * BLOCK + tl.arange(0, BLOCK)
    strip = program // columns
    first, top = (strip % strips) * RUN, (strip // strips) * height
    channel = tl.arange(0, WIDE)
    a0, b0, c0 = _row(weights, channel, channels, 0)
    a1, b1, c1 = _row(weights, channel, channels, 1)
    a2, b2, c2 = _row(weights, channel, channels, 2)
    shift = 0.0
    if BIASED:
        shift = tl.load(bias)
    # Down the rows: one is read at a time, and is a part of the one above it, of its own and of the one below.
    above = tl.zeros((BLOCK, WIDE), tl.float32)
    here = tl.zeros((BLOCK, WIDE), tl.float32)
    for turn in range(RUN + 2):
        row = first + turn - 1
        start = features + (top + row).to(tl.int64) * width * channels
        place = pixel[:, None] * channels + channel[None, :]
        there = ((row >= 0) & (row < height)) & (channel < channels)[None, :]
        before, after = (pixel > 0) & (pixel <= width), pixel + 1 < width
        left = tl.load(start + place - channels, mask=there & before[:, None], other=0.0).to(tl.float32)
        middle = tl.load(start + place, mask=there & (pixel < width)[:, None], other=0.0).to(tl.float32)
        right = tl.load(start + place + channels, mask=there & after[:, None], other=0.0).to(tl.float32)
        above += left * a2 + middle * b2 + right * c2
        answer = tl.sum(above, 1) + shift
        made = (turn > 1) & (row <= height) & (pixel < width)
        into = result + (top + row - 1).to(tl.int64) * width + pixel
        tl.store(into, answer.to(result.dtype.element_ty), mask=made)
        above = here + left * a1 + middle * b1 + right * c1
        here = left * a0 + middle * b0 + right * c0


@triton.jit
def _correlate(
    picture,
    features,
    parts,
    number,
    height,
    width,
    channels,
    ROUNDS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tap = tl.arange(0, 16)
    down, right = (tap // 3 - 1)[:, None], (tap % 3 - 1)[:, None]
    column = tl.arange(0, WIDE)
    present = column < channels
    total = tl.zeros((16, WIDE), tl.float32)
    for turn in range(ROUNDS):
        pixel = (turn * tl.num_programs(0) + tl.program_id(0)) * BLOCK + tl.arange(0, BLOCK)
        y, x = ((pixel // width) % height)[None, :] + down, (pixel % width)[None, :] + right
        there = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (pixel < number)[None, :] & (tap < 9)[:, None]
        value = tl.load(picture + pixel[None, :] + down * width + right, mask=there, other=0.0)
        place = pixel.to(tl.int64)[:, None] * channels + column[None, :]
        inside = (pixel < number)[:, None] & present[None, :]
        feature = tl.load(features + place, mask=inside, other=0.0)
        total = tl.dot(value, feature, total, input_precision="ieee")
    place = (tl.program_id(0) * 9 + tap)[:, None] * channels + column[None, :]
    tl.store(parts + place, total, mask=(tap < 9)[:, None] & present[None, :])
