"""Bias, moments and ReLU of a convolution's outputs in one pass, and the gradient of all three in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from scantune.kernels.layout import cells, like, table, tiling, weighed


def activate(values: Tensor, bias: Tensor, center: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """ReLU of values + bias, and the sums of values + bias and of their squares about a center.

    Args:
        values: `(slices, channels, *spatial)`.
        bias: `(channels,)`, in single precision.
        center: `(channels,)`, in single precision.
        weights: 1 where a pixel counts for the sums, `(slices, 1, *spatial)`; None counts every pixel.

    Returns:
        The activations, and `(2, channels)` in double precision.
    """
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    result = torch.empty_like(pixels)
    parts = torch.empty(grid[0], 2, pixels.shape[1], device=values.device)
    arguments = (pixels, bias, weighed(weights, pixels), center, result, parts, *pixels.shape)
    _activate[grid](*arguments, block, wide, weights is not None)
    return like(result, values), parts.sum(0, dtype=torch.double)


def activation_slopes(
    values: Tensor, bias: Tensor, weights: Tensor | None, offset: Tensor, factor: Tensor, gradient: Tensor
) -> Tensor:
    """The gradient with respect to the values: the activations', and offset + factor (values + bias) for the sums.

    Args:
        values: `(slices, channels, *spatial)`.
        bias: `(channels,)`, in single precision.
        weights: As in `activate`.
        offset: `(channels,)`, in single precision.
        factor: `(channels,)`, in single precision.
        gradient: Of the activations, in their shape.
    """
    pixels = table(values)
    grid, block, wide = tiling(pixels)
    result = torch.empty_like(pixels)
    arguments = (pixels, bias, weighed(weights, pixels), offset, factor, table(gradient), result, *pixels.shape)
    _slopes[grid](*arguments, block, wide, weights is not None)
    return like(result, values)


@triton.jit
def _activate(
    values,
    bias,
    weights,
    center,
    result,
    parts,
    number,
    channels,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    row, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    shift = tl.load(bias + column, mask=present, other=0.0)
    middle = tl.load(center + column, mask=present, other=0.0)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    tl.store(result + place, tl.maximum(value, 0.0).to(result.dtype.element_ty), mask=inside)
    away = tl.where(inside, value - middle[None, :], 0.0)
    if WEIGHTED:
        away *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    sums = parts + tl.program_id(0) * 2 * channels + column
    tl.store(sums, tl.sum(away, 0), mask=present)
    tl.store(sums + channels, tl.sum(away * away, 0), mask=present)


@triton.jit
def _slopes(
    values,
    bias,
    weights,
    offset,
    factor,
    gradient,
    result,
    number,
    channels,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    WEIGHTED: tl.constexpr,
):
    row, column, place, inside = cells(number, channels, BLOCK, WIDE)
    present = column < channels
    shift = tl.load(bias + column, mask=present, other=0.0)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    start = tl.load(offset + column, mask=present, other=0.0)
    rise = tl.load(factor + column, mask=present, other=0.0)
    slope = start[None, :] + rise[None, :] * value
    if WEIGHTED:
        slope *= tl.load(weights + row, mask=row < number, other=0.0)[:, None]
    slope += tl.where(value > 0, tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32), 0.0)
    tl.store(result + place, slope.to(result.dtype.element_ty), mask=inside)
