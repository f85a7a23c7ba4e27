"""3 x 3 convolutions of few channels in half precision, for which libraries' tiles are too wide."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128
"""Pixels that a program makes."""


def convolve(
    features: Tensor, weights: Tensor, bias: Tensor | None = None, block: int = BLOCK, warps: int = 4
) -> Tensor:
    """Features in half precision, convolved; sums are single.

    Args:
        features: `(slices, inputs, height, width)`; inputs are a multiple of 16.
        weights: `(9, inputs, outputs)`, taps row by row, outputs a multiple of 16; in the features' precision.
        bias: `(outputs,)`.
        block: Pixels that a program makes.
        warps: Warps that work on them.

    Returns:
        `(slices, outputs, height, width)`, channels last in memory.
    """
    slices, inputs, height, width = features.shape
    outputs = weights.shape[2]
    result = features.new_empty(slices, height, width, outputs)
    number = slices * height * width
    deep = 64 if inputs % 64 == 0 else 32 if inputs % 32 == 0 else 16
    wide = 64 if outputs % 64 == 0 else 32 if outputs % 32 == 0 else 16
    shift = weights if bias is None else bias.float()
    grid = (-(-number // block), outputs // wide)
    table = features.movedim(1, -1).contiguous()
    shape = (number, height, width, inputs, outputs)
    _convolve[grid](
        table, weights.contiguous(), shift, result, *shape, block, wide, deep, bias is not None, num_warps=warps
    )
    return result.movedim(-1, 1)


@triton.jit
def _convolve(
    features,
    weights,
    bias,
    result,
    number,
    height,
    width,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    BIASED: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, column = (pixel // width) % height, pixel % width
    to = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    come = tl.arange(0, DEEP)
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    for tap in tl.static_range(9):
        down, right = tap // 3 - 1, tap % 3 - 1
        there = (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
        there = there & (pixel < number)
        start = (pixel + down * width + right) * INPUTS
        for first in tl.static_range(0, INPUTS, DEEP):
            feature = tl.load(features + start[:, None] + first + come[None, :], mask=there[:, None], other=0.0)
            weight = tl.load(weights + (tap * INPUTS + first + come)[:, None] * OUTPUTS + to[None, :])
            total = tl.dot(feature, weight, total)
    if BIASED:
        total += tl.load(bias + to)[None, :]
    place = pixel[:, None] * OUTPUTS + to[None, :]
    tl.store(result + place, total.to(result.dtype.element_ty), mask=(pixel < number)[:, None])
