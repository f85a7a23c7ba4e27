"""The normaliser's activation exp(-k x^2) in one pass, and its gradients in one pass."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.triton.layout import cells, like, share, sharing, table, tiling
from scantune.kernels.triton.totals import totals


def bump(values: Tensor, sharpness: Tensor) -> Tensor:
    """Compute exp(-k x^2), differentiable once in both.

    Args:
        values: x, `(slices, channels, *spatial)`.
        sharpness: k, `(channels,)`.
    """
    return _Bump.apply(values, sharpness)  # type: ignore[no-any-return, no-untyped-call]


class _Bump(torch.autograd.Function):
    """Keeps x alone."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sharpness: Tensor) -> Tensor:
        ctx.save_for_backward(values, sharpness)
        pixels = table(values)
        result = torch.empty_like(pixels)
        grid, block, wide = tiling(pixels)
        _heights[grid](pixels, sharpness.float().contiguous(), result, *pixels.shape, block, wide)
        return like(result, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        values, sharpness = ctx.saved_tensors
        pixels, incoming = table(values), table(gradients[0])
        outgoing = torch.empty_like(pixels)
        grid, block, wide, rounds = sharing(pixels)
        parts = torch.empty(grid[0], pixels.shape[1], device=values.device)
        arguments = (pixels, incoming, sharpness.float().contiguous(), outgoing, parts, *pixels.shape)
        _slopes[grid](*arguments, rounds, block, wide)
        return like(outgoing, values), totals(parts).to(sharpness)


@triton.jit
def _heights(values, sharpness, result, number, channels, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    _, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    k = tl.load(sharpness + column, mask=present, other=0.0)[None, :]
    x = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + place, tl.exp(-k * x * x).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _slopes(
    values,
    incoming,
    sharpness,
    outgoing,
    parts,
    number,
    channels,
    ROUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    present = column < channels
    k = tl.load(sharpness + column, mask=present, other=0.0)[None, :]
    total = tl.zeros((BLOCK, WIDE), tl.float32)
    for turn in range(ROUNDS):
        _, place, inside = share(turn, column, number, channels, BLOCK)
        x = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(incoming + place, mask=inside, other=0.0).to(tl.float32)
        part = g * tl.exp(-k * x * x) * x
        tl.store(outgoing + place, (-2.0 * k * part).to(outgoing.dtype.element_ty), mask=inside)
        total -= part * x
    tl.store(parts + tl.program_id(0) * channels + column, tl.sum(total, 0), mask=present)
