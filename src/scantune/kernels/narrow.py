"""3 x 3 convolutions between one channel and many, which libraries pad to many on both sides.

Taps are numbered row by row, 4 is the centre; weights are `(9, channels)`. All three work in single precision inside.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
"""Pixels that a program looks at."""


def spread(picture: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """From one channel to many: y[p, c] = bias[c] + sum over taps of weights[t, c] picture[p + t].

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
    """From many channels to one: y[p] = bias + sum over taps and channels of weights[t, c] features[p + t, c].

    Args:
        features: `(slices, channels, height, width)`.
        weights: `(9, channels)`.
        bias: `(1,)`.

    Returns:
        `(slices, 1, height, width)`.
    """
    slices, channels, height, width = features.shape
    result = features.new_empty(slices, 1, height, width)
    number = slices * height * width
    shift = weights if bias is None else bias.float()
    table = features.movedim(1, -1).contiguous()
    _gather[(-(-number // BLOCK),)](
        table,
        weights.contiguous(),
        shift,
        result,
        number,
        height,
        width,
        channels,
        _power(channels),
        BLOCK,
        bias is not None,
    )
    return result


def correlate(picture: Tensor, features: Tensor) -> Tensor:
    """What both are to each other, `(9, channels)`: the sum over pixels of picture[p + t] features[p, c].

    Args:
        picture: `(slices, 1, height, width)`.
        features: `(slices, channels, height, width)`.
    """
    slices, channels, height, width = features.shape
    number = slices * height * width
    parts = torch.empty(-(-number // BLOCK), 9, channels, device=features.device)
    table = features.movedim(1, -1).contiguous()
    _correlate[(len(parts),)](
        picture.contiguous(), table, parts, number, height, width, channels, _power(channels), BLOCK
    )
    return parts.sum(0, dtype=torch.double).float()


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


@triton.jit
def _near(pixel, number, height, width, TAP: tl.constexpr):
    """The pixel at a tap from others, and whether there is one."""
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
def _gather(
    features,
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
        place = near.to(tl.int64)[:, None] * channels + column[None, :]
        value = tl.load(features + place, mask=there[:, None] & present[None, :], other=0.0).to(tl.float32)
        weight = tl.load(weights + tap * channels + column, mask=present, other=0.0).to(tl.float32)
        total += value * weight[None, :]
    value = tl.sum(total, 1)
    if BIASED:
        value += tl.load(bias)
    tl.store(result + pixel, value.to(result.dtype.element_ty), mask=pixel < number)


@triton.jit
def _correlate(picture, features, parts, number, height, width, channels, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    pixel = program * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, WIDE)
    present = column < channels
    place = pixel.to(tl.int64)[:, None] * channels + column[None, :]
    inside = (pixel < number)[:, None] & present[None, :]
    feature = tl.load(features + place, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(9):
        near, there = _near(pixel, number, height, width, tap)
        value = tl.load(picture + near, mask=there, other=0.0).to(tl.float32)
        total = tl.sum(value[:, None] * feature, 0)
        tl.store(parts + (program * 9 + tap) * channels + column, total, mask=present)
