"""Max-pooling by two of features that are also passed on: no indices, and the gradients of both uses in one pass."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Numbers that a program computes."""


def halve(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return features as they are, and their maxima over squares of two by two pixels.

    Args:
        features: `(slices, channels, height, width)`, of even height and width.
    """
    return _Halve.apply(features)  # type: ignore[no-any-return, no-untyped-call]


class _Halve(torch.autograd.Function):
    """Of equal maxima, the first gets the gradient."""

    @staticmethod
    def forward(ctx: Any, features: Tensor) -> tuple[Tensor, Tensor]:
        features = _channels_last(features)
        slices, channels, height, width = features.shape
        pooled = features.new_empty(slices, height // 2, width // 2, channels)
        grid = (triton.cdiv(pooled.numel(), BLOCK),)
        _forward[grid](features, pooled, pooled.numel(), width, channels, features.stride(3), BLOCK)
        ctx.save_for_backward(features)
        return features.view_as(features), pooled.movedim(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        kept, pooled = _channels_last(gradients[0]), gradients[1].contiguous(memory_format=torch.channels_last)
        slices, channels, height, width = features.shape
        result: Tensor = features.new_empty(slices, height, width, channels)
        grid = (triton.cdiv(pooled.numel(), BLOCK),)
        steps = (features.stride(3), kept.stride(3))
        _backward[grid](features, kept, pooled, result, pooled.numel(), width, channels, *steps, BLOCK)
        return result.movedim(-1, 1)


def _channels_last(features: Tensor) -> Tensor:
    """Return features with neighbouring channels and evenly spaced pixels; some channels of more are fine."""
    _, _, height, width = features.shape
    step = features.stride(3)
    if features.stride() == (height * width * step, 1, width * step, step) and step >= features.shape[1]:
        return features
    return features.contiguous(memory_format=torch.channels_last)


@triton.jit
def _corner(place, width, channels):
    """Return the first pixel of the square of a number in the pooled table, and its channel."""
    pixel = place // channels
    half = width // 2
    return (pixel // half) * 2 * width + (pixel % half) * 2, place % channels


@triton.jit
def _forward(features, pooled, number, width, channels, step, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < number
    first, channel = _corner(place, width, channels)
    start = features + first * step + channel
    a = tl.load(start, mask=inside, other=0.0)
    b = tl.load(start + step, mask=inside, other=0.0)
    c = tl.load(start + width * step, mask=inside, other=0.0)
    d = tl.load(start + (width + 1) * step, mask=inside, other=0.0)
    tl.store(pooled + place, tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), mask=inside)


@triton.jit
def _backward(features, kept, pooled, result, number, width, channels, step, kept_step, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < number
    first, channel = _corner(place, width, channels)
    start = features + first * step + channel
    a = tl.load(start, mask=inside, other=0.0)
    b = tl.load(start + step, mask=inside, other=0.0)
    c = tl.load(start + width * step, mask=inside, other=0.0)
    d = tl.load(start + (width + 1) * step, mask=inside, other=0.0)
    most = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    slope = tl.load(pooled + place, mask=inside, other=0.0).to(tl.float32)
    at_a, at_b, at_c = a == most, b == most, c == most
    sent_a = tl.where(at_a, slope, 0.0)
    sent_b = tl.where(at_b & (at_a == 0), slope, 0.0)
    sent_c = tl.where(at_c & (at_a == 0) & (at_b == 0), slope, 0.0)
    sent_d = tl.where((at_a == 0) & (at_b == 0) & (at_c == 0), slope, 0.0)
    other, into = kept + first * kept_step + channel, result + first * channels + channel
    kind = result.dtype.element_ty
    below = width * kept_step
    passed = tl.load(other, mask=inside, other=0.0).to(tl.float32)
    tl.store(into, (passed + sent_a).to(kind), mask=inside)
    passed = tl.load(other + kept_step, mask=inside, other=0.0).to(tl.float32)
    tl.store(into + channels, (passed + sent_b).to(kind), mask=inside)
    passed = tl.load(other + below, mask=inside, other=0.0).to(tl.float32)
    tl.store(into + width * channels, (passed + sent_c).to(kind), mask=inside)
    passed = tl.load(other + below + kept_step, mask=inside, other=0.0).to(tl.float32)
    tl.store(into + (width + 1) * channels, (passed + sent_d).to(kind), mask=inside)
