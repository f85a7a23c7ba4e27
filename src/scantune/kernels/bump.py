"""The normaliser's activation exp(-k x^2) in one pass, and its gradients in one pass."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.layout import cells, like, table, tiling


def bump(values: Tensor, sharpness: Tensor) -> Tensor:
    """exp(-k x^2), differentiable once in both.

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
        grid, block, wide = tiling(pixels)
        parts = torch.empty(grid[0], pixels.shape[1], device=values.device)
        arguments = (pixels, incoming, sharpness.float().contiguous(), outgoing, parts, *pixels.shape)
        _slopes[grid](*arguments, block, wide)
        return like(outgoing, values), parts.sum(0, dtype=torch.double).to(sharpness)


@triton.jit
def _heights(values, sharpness, result, number, channels, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    _, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    k = tl.load(sharpness + column, mask=present, other=0.0)[None, :]
    x = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + place, tl.exp(-k * x * x).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _slopes(values, incoming, sharpness, outgoing, parts, number, channels, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    _, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    k = tl.load(sharpness + column, mask=present, other=0.0)[None, :]
    x = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(incoming + place, mask=inside, other=0.0).to(tl.float32)
    share = g * tl.exp(-k * x * x) * x
    tl.store(outgoing + place, (-2.0 * k * share).to(outgoing.dtype.element_ty), mask=inside)
    tl.store(parts + tl.program_id(0) * channels + column, -tl.sum(share * x, 0), mask=present)
