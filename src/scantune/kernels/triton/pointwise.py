"""Convolutions of kernel 1 to few channels, such as a classifier's: one pass each for result and gradients."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256
"""Pixels that a program processes at a time."""
SHARES = 528
"""Maximum number of programs that share the pixels to sum."""


def mix(features: Tensor, weights: Tensor) -> Tensor:
    """Multiply each pixel's features by a matrix.

    Args:
        features: `(slices, inputs, *spatial)`, in any floating precision up to single.
        weights: `(outputs, inputs)`, in the same.

    Returns:
        `(slices, outputs, *spatial)`, channels last in memory.
    """
    return _Mix.apply(features, weights)  # type: ignore[no-any-return, no-untyped-call]


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor) -> Tensor:
        table = features.movedim(1, -1).contiguous()
        ctx.save_for_backward(table, weights)
        return _times(table, weights.t()).movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        table, weights = ctx.saved_tensors
        incoming = gradients[0].movedim(1, -1).contiguous()
        to_features = _times(incoming, weights).movedim(-1, 1) if ctx.needs_input_grad[0] else None
        return to_features, _correlated(incoming, table).to(weights) if ctx.needs_input_grad[1] else None


def _times(table: Tensor, matrix: Tensor) -> Tensor:
    """Multiply `(..., inputs)` by `(inputs, outputs)`."""
    inputs, outputs = matrix.shape
    result = table.new_empty(*table.shape[:-1], outputs)
    pixels = table.numel() // inputs
    grid = (triton.cdiv(pixels, BLOCK),)
    sizes = (pixels, inputs, outputs, BLOCK, _wide(inputs), _wide(outputs))
    _times_kernel[grid](table, matrix.contiguous(), result, *sizes)
    return result


def _correlated(one: Tensor, other: Tensor) -> Tensor:
    """Sum the outer products of `(..., a)` and `(..., b)` over pixels, `(a, b)` in single precision."""
    a, b = one.shape[-1], other.shape[-1]
    pixels = one.numel() // a
    blocks = triton.cdiv(pixels, BLOCK)
    shares = min(blocks, SHARES)
    parts = torch.empty(shares, a, b, device=one.device)
    sizes = (pixels, a, b, BLOCK, _wide(a), _wide(b), triton.cdiv(blocks, shares))
    _correlate_kernel[(shares,)](one, other, parts, *sizes)
    return parts.sum(0)


def _wide(channels: int) -> int:
    return max(16, 1 << (channels - 1).bit_length())


@triton.jit
def _rows(table, row, column, number, channels):
    inside = (row < number)[:, None] & (column < channels)[None, :]
    return tl.load(table + row.to(tl.int64)[:, None] * channels + column[None, :], mask=inside, other=0.0)


@triton.jit
def _times_kernel(
    table, matrix, result, number, inputs, outputs, BLOCK: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    come, to = tl.arange(0, DEEP), tl.arange(0, WIDE)
    weights = _rows(matrix, come, to, inputs, outputs)
    answer = tl.dot(_rows(table, row, come, number, inputs), weights, input_precision="ieee")
    inside = (row < number)[:, None] & (to < outputs)[None, :]
    place = row.to(tl.int64)[:, None] * outputs + to[None, :]
    tl.store(result + place, answer.to(result.dtype.element_ty), mask=inside)


@triton.jit
def _correlate_kernel(
    one,
    other,
    parts,
    number,
    a,
    b,
    BLOCK: tl.constexpr,
    DEEP: tl.constexpr,
    WIDE: tl.constexpr,
    ROUNDS: tl.constexpr,
):
    share, shares = tl.program_id(0), tl.num_programs(0)
    first, second = tl.arange(0, DEEP), tl.arange(0, WIDE)
    total = tl.zeros((DEEP, WIDE), tl.float32)
    for turn in range(ROUNDS):
        row = (turn * shares + share) * BLOCK + tl.arange(0, BLOCK)
        left, right = _rows(one, row, first, number, a), _rows(other, row, second, number, b)
        total = tl.dot(tl.trans(left), right, total, input_precision="ieee")
    place = (share * a + first)[:, None] * b + second[None, :]
    tl.store(parts + place, total, mask=(first < a)[:, None] & (second < b)[None, :])
