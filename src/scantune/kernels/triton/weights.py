"""Gradients by the weights of 3 x 3 convolutions of few channels in half precision."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Pixels of a row that a program processes at a time."""
PROGRAMS = 528
"""Maximum number of programs that share the rows."""


def correlate(features: Tensor, gradient: Tensor, warps: int = 4, stages: int = 3) -> Tensor:
    """Return the gradient by the weights, `(outputs, inputs, 3, 3)` in single precision, in a fixed order.

    Args:
        features: What was convolved, `(slices, inputs, height, width)`, inputs a multiple of 16; in half precision.
        gradient: By the result, `(slices, outputs, height, width)`, outputs a multiple of 16; in the same.
        warps: Warps of a program.
        stages: Loads that are under way while a program computes, and one.
    """
    slices, inputs, height, width = features.shape
    outputs, lines = gradient.shape[1], slices * height
    deep, wide = (32 if channels % 32 == 0 else 16 for channels in (inputs, outputs))
    block = min(BLOCK, max(16, triton.next_power_of_2(width)))
    columns, chunks = triton.cdiv(width, block), (inputs // deep) * (outputs // wide)
    run = triton.next_power_of_2(triton.cdiv(lines, max(PROGRAMS // columns // chunks, 1)))
    shares = columns * triton.cdiv(lines, run)
    parts = torch.empty(shares, 3, inputs, 3, outputs, device=features.device)
    tables = (features.movedim(1, -1).contiguous(), gradient.movedim(1, -1).contiguous())
    sizes = (lines, height, width, inputs, outputs, columns)
    grid = (shares, inputs // deep, outputs // wide)
    _correlate[grid](*tables, parts, *sizes, block, deep, wide, run, num_warps=warps, num_stages=stages)
    return parts.sum(0).permute(3, 1, 0, 2)


@triton.jit
def _correlate(
    features,
    gradient,
    parts,
    lines,
    height,
    width,
    inputs,
    outputs,
    columns,
    BLOCK: tl.constexpr,
    DEEP: tl.constexpr,
    WIDE: tl.constexpr,
    RUN: tl.constexpr,
):
    share = tl.program_id(0)
    column = (share % columns) * BLOCK + tl.arange(0, BLOCK)
    first = (share // columns) * RUN
    # Features of three rows and gradients of three columns, side by side; a fourth makes a power of two.
    come, to = tl.arange(0, 4 * DEEP), tl.arange(0, 4 * WIDE)
    tall, broad = come // DEEP, to // WIDE
    source, target = tl.program_id(1) * DEEP + come % DEEP, tl.program_id(2) * WIDE + to % WIDE
    other = column[:, None] - (broad - 1)[None, :]
    within = (other >= 0) & (other < width) & (broad < 3)[None, :]
    total = tl.zeros((4 * DEEP, 4 * WIDE), tl.float32)
    # Row by row, so that two of three are at hand.
    for turn in range(RUN):
        line = first + turn
        row = line % height + tall - 1
        rows = (row >= 0) & (row < height) & (tall < 3) & (line < lines)
        there = (column < width)[:, None] & rows[None, :]
        place = ((line + tall - 1) * width * inputs + source)[None, :] + (column * inputs)[:, None]
        feature = tl.load(features + place, mask=there, other=0.0)
        place = (line * width + other) * outputs + target[None, :]
        slope = tl.load(gradient + place, mask=within & (line < lines), other=0.0)
        total = tl.dot(tl.trans(feature), slope, total)
    place = ((share * 3 + tall) * inputs + source)[:, None] * 3 * outputs + (broad * outputs + target)[None, :]
    tl.store(parts + place, total, mask=(tall < 3)[:, None] & (broad < 3)[None, :])
