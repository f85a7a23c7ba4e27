"""Linear upsampling of pictures by two, and its adjoint without atomics."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers of a row that a program computes."""


def double(pictures: Tensor) -> Tensor:
    """Upsample `(slices, channels, height, width)` by two; pixels are cells, ends are repeated."""
    return _Double.apply(pictures)  # type: ignore[no-any-return, no-untyped-call]


def double_beside(pictures: Tensor, beside: Tensor) -> Tensor:
    """Upsample pictures by two, and add others of that size as further channels.

    Args:
        pictures: `(slices, channels, height, width)`.
        beside: `(slices, others, 2 height, 2 width)`, of the same type.

    Returns:
        `(slices, channels + others, 2 height, 2 width)`, channels last in memory.
    """
    return _DoubleBeside.apply(pictures, beside)  # type: ignore[no-any-return, no-untyped-call]


class _Double(torch.autograd.Function):
    """A stencil, and its adjoint, which is one too: sums come in a fixed order."""

    @staticmethod
    def forward(ctx: Any, pictures: Tensor) -> Tensor:  # noqa: ARG004
        slices, channels, height, width = pictures.shape
        pictures = _channels_last(pictures)
        result = pictures.new_empty(slices, 2 * height, 2 * width, channels)
        grid = (slices * 2 * height, -(-2 * width * channels // BLOCK))
        _forward[grid](pictures, result, *_strides(pictures), height, width, channels, BLOCK)
        return result.movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return _halved(gradients[0])


class _DoubleBeside(torch.autograd.Function):
    """Writes both to where they belong."""

    @staticmethod
    def forward(ctx: Any, pictures: Tensor, beside: Tensor) -> Tensor:
        slices, channels, height, width = pictures.shape
        pictures, beside, ctx.channels = _channels_last(pictures), _channels_last(beside), channels
        total = channels + beside.shape[1]
        result = pictures.new_empty(slices, 2 * height, 2 * width, total)
        grid = (slices * 2 * height, -(-2 * width * total // BLOCK))
        strides = (*_strides(pictures), *_strides(beside))
        _forward_beside[grid](pictures, beside, result, *strides, height, width, channels, total, BLOCK)
        return result.movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return _halved(gradients[0][:, : ctx.channels]), gradients[0][:, ctx.channels :]


def _halved(gradient: Tensor) -> Tensor:
    """Apply the adjoint to a gradient `(slices, channels, 2 height, 2 width)`."""
    slices, channels, height, width = (*gradient.shape[:2], gradient.shape[2] // 2, gradient.shape[3] // 2)
    gradient = _channels_last(gradient)
    result: Tensor = gradient.new_empty(slices, height, width, channels)
    grid = (slices * height, -(-width * channels // BLOCK))
    _adjoint[grid](gradient, result, *_strides(gradient), height, width, channels, BLOCK)
    return result.movedim(-1, 1)


def _channels_last(pictures: Tensor) -> Tensor:
    """Return features with channels next to each other in memory; some channels of more are fine."""
    return pictures if pictures.stride(1) == 1 else pictures.contiguous(memory_format=torch.channels_last)


def _strides(pictures: Tensor) -> tuple[int, int, int]:
    """Return the strides from slice to slice, row to row, column to column."""
    return pictures.stride(0), pictures.stride(2), pictures.stride(3)


@triton.jit
def _between(pictures, slice, row, column, channel, by_slice, by_row, by_column, height, width, mask):
    """Interpolate at pixels of the larger pictures."""
    near_row, near_column = row // 2, column // 2
    far_row = tl.minimum(tl.maximum(near_row - 1 + 2 * (row % 2), 0), height - 1)
    far_column = tl.minimum(tl.maximum(near_column - 1 + 2 * (column % 2), 0), width - 1)
    start = pictures + slice * by_slice + channel
    near, far = start + near_row * by_row, start + far_row * by_row
    a = tl.load(near + near_column * by_column, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(near + far_column * by_column, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(far + near_column * by_column, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(far + far_column * by_column, mask=mask, other=0.0).to(tl.float32)
    return 0.5625 * a + 0.1875 * (b + c) + 0.0625 * d


@triton.jit
def _forward(pictures, result, by_slice, by_row, by_column, height, width, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = (line % (2 * height)).to(tl.int32)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = inner < 2 * width * CHANNELS
    column, channel = inner // CHANNELS, inner % CHANNELS
    slice = line // (2 * height)
    value = _between(pictures, slice, row, column, channel, by_slice, by_row, by_column, height, width, mask)
    tl.store(result + line * 2 * width * CHANNELS + inner, value.to(result.dtype.element_ty), mask=mask)


@triton.jit
def _forward_beside(
    pictures,
    beside,
    result,
    by_slice,
    by_row,
    by_column,
    beside_by_slice,
    beside_by_row,
    beside_by_column,
    height,
    width,
    CHANNELS: tl.constexpr,
    TOTAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    row = (line % (2 * height)).to(tl.int32)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = inner < 2 * width * TOTAL
    column, channel = inner // TOTAL, inner % TOTAL
    slice = line // (2 * height)
    ours = mask & (channel < CHANNELS)
    value = _between(pictures, slice, row, column, channel, by_slice, by_row, by_column, height, width, ours)
    place = slice * beside_by_slice + row * beside_by_row + column * beside_by_column + channel - CHANNELS
    theirs = tl.load(beside + place, mask=mask & (channel >= CHANNELS), other=0.0).to(tl.float32)
    kind = result.dtype.element_ty
    tl.store(result + line * 2 * width * TOTAL + inner, (value + theirs).to(kind), mask=mask)


@triton.jit
def _adjoint(incoming, result, by_slice, by_row, by_column, height, width, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    row = (line % height).to(tl.int32)
    inner = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = inner < width * CHANNELS
    column = inner // CHANNELS
    start = incoming + (line // height) * by_slice + inner % CHANNELS
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(4):
        above = 2 * row - 1 + i
        # The ends stand in for what is beyond them.
        high = 0.25 if i == 0 or i == 3 else 0.75
        tall = tl.where((above == 0) | (above == 2 * height - 1), high + 0.25, high)
        within = (above >= 0) & (above < 2 * height)
        for j in tl.static_range(4):
            beside = 2 * column - 1 + j
            wide = 0.25 if j == 0 or j == 3 else 0.75
            broad = tl.where((beside == 0) | (beside == 2 * width - 1), wide + 0.25, wide)
            there = mask & within & (beside >= 0) & (beside < 2 * width)
            g = tl.load(start + above * by_row + beside * by_column, mask=there, other=0.0).to(tl.float32)
            total += tall * broad * g
    tl.store(result + line * width * CHANNELS + inner, total.to(result.dtype.element_ty), mask=mask)
