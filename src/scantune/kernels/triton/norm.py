"""Norms in training and the ReLU behind them: two passes over the features, and two over their gradients."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE = 2048
"""Numbers that a program processes at a time."""
PROGRAMS = 1024
"""Maximum number of programs that share the pixels to sum, a power of two."""


def norm_relu(features: Tensor, norm: nn.BatchNorm2d | nn.BatchNorm3d) -> Tensor:
    """Compute `relu(norm(features))` of a norm in training, and update its running moments.

    Args:
        features: `(slices, channels, *spatial)`, in any floating precision; sums are in single precision.
        norm: With a scale and a shift, and running moments with a momentum.
    """
    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    arguments = (norm.weight, norm.bias, norm.eps, 1, running, norm.momentum)
    return _NormRelu.apply(features, *arguments)  # type: ignore[no-any-return, no-untyped-call]


def instance_relu(features: Tensor, eps: float = 1e-5) -> Tensor:
    """Compute `relu(F.instance_norm(features))` of features `(slices, channels, *spatial)`."""
    channels = features.shape[1]
    scale, shift = features.new_ones(channels, dtype=torch.float), features.new_zeros(channels, dtype=torch.float)
    arguments = (scale, shift, eps, len(features), None, 0.0)
    return _NormRelu.apply(features, *arguments)  # type: ignore[no-any-return, no-untyped-call]


class _NormRelu(torch.autograd.Function):
    """Keeps what came in; the sign of what goes out is computed again."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, *norm: Any) -> Tensor:
        scale, shift, eps, groups, running, momentum = norm
        features, result = _evenly(features), torch.empty_like(features)
        tiles = _Tiles(features, groups)
        parts, moments = tiles.parts(features), features.new_empty(groups, 2, tiles.channels, dtype=torch.float32)
        table = tiles.pixels, tiles.channels, features.stride(-1)
        sums[tiles.shares](features, parts, *table, *tiles.block)
        facts = (tiles.pixels, tiles.channels, momentum, eps, tiles.shares[0], running is not None, PROGRAMS)
        moments_of[tiles.channelwise](features, parts, *(running or (parts, parts, parts)), moments, *facts)
        apply[tiles.grid](features, moments, scale, shift, result, *table, result.stride(-1), *tiles.block)
        ctx.save_for_backward(features, moments, scale, shift)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features, moments, scale, shift = ctx.saved_tensors
        incoming, outgoing = _evenly(gradients[0]), torch.empty_like(features)
        tiles = _Tiles(features, len(moments))
        parts, totals = tiles.parts(features), torch.empty_like(moments)
        known = (features, incoming, moments, scale, shift)
        table = tiles.pixels, tiles.channels, features.stride(-1), incoming.stride(-1)
        back_sums[tiles.shares](*known, parts, *table, *tiles.block)
        totals_of[tiles.channelwise](parts, totals, tiles.channels, tiles.shares[0], PROGRAMS)
        back_apply[tiles.grid](*known, totals, outgoing, *table, outgoing.stride(-1), *tiles.block)
        to_shift, to_scale = totals[0] if len(totals) == 1 else totals.sum(0)
        return outgoing, to_scale, to_shift, None, None, None, None


def _evenly(features: Tensor) -> Tensor:
    """Return features with neighbouring channels and evenly spaced pixels; some channels of more are fine."""
    step = features.stride(-1)
    even = features.stride(1) == 1
    for axis in (*range(features.ndim - 1, 1, -1), 0):
        even = even and (features.stride(axis) == step or features.shape[axis] == 1)
        step *= features.shape[axis]
    if even and features.stride(-1) >= features.shape[1]:
        return features
    return features.movedim(1, -1).contiguous().movedim(-1, 1)


class _Tiles:
    """How features are shared out among programs, in groups of pixels that are normed together."""

    def __init__(self, features: Tensor, groups: int) -> None:
        self.channels = features.shape[1]
        self.pixels = features.numel() // self.channels // groups
        wide = min(triton.next_power_of_2(self.channels), 128)
        self.block = TILE // wide, wide
        rows, columns = triton.cdiv(self.pixels, self.block[0]), triton.cdiv(self.channels, wide)
        shares = min(rows, max(PROGRAMS // groups, 1))
        self.grid, self.shares = (rows, columns, groups), (shares, columns, groups)
        self.channelwise = self.channels, groups

    def parts(self, features: Tensor) -> Tensor:
        """Allocate room for two sums of each channel of each share."""
        return features.new_empty(self.grid[2], self.shares[0], 2, self.channels, dtype=torch.float32)


@triton.jit
def _place(row, column, number, step):
    """Return where pixels of the program's group lie."""
    return (tl.program_id(2).to(tl.int64) * number + row)[:, None] * step + column[None, :]


@triton.jit
def _center(features, column, number, channels, step):
    """Load the first pixel, about which sums lose little even if a mean is large."""
    first = tl.program_id(2).to(tl.int64) * number * step
    return tl.load(features + first + column, mask=column < channels, other=0.0).to(tl.float32)


@triton.jit
def _keep(parts, share, shares, column, channels, one, two):
    place = parts + (tl.program_id(2) * shares + share) * 2 * channels + column
    tl.store(place, tl.sum(one, 0), mask=column < channels)
    tl.store(place + channels, tl.sum(two, 0), mask=column < channels)


@triton.jit
def sums(features, parts, number, channels, step, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Sum features and their squares about the first pixel, for each share."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    middle = _center(features, column, number, channels, step)[None, :]
    one = tl.zeros((BLOCK, WIDTH), tl.float32)
    two = tl.zeros((BLOCK, WIDTH), tl.float32)
    first = share * BLOCK
    while first < number:
        row = first + tl.arange(0, BLOCK)
        inside = (row < number)[:, None] & (column < channels)[None, :]
        value = tl.load(features + _place(row, column, number, step), mask=inside, other=0.0)
        away = tl.where(inside, value.to(tl.float32) - middle, 0.0)
        one += away
        two += away * away
        first += shares * BLOCK
    _keep(parts, share, shares, column, channels, one, two)


@triton.jit
def _summed(parts, channel, channels, shares, MAX_SHARES: tl.constexpr):
    """Sum over shares in a fixed order."""
    share = tl.arange(0, MAX_SHARES)
    place = (tl.program_id(1) * shares + share) * 2 * channels + channel
    one = tl.load(parts + place, mask=share < shares, other=0.0)
    two = tl.load(parts + place + channels, mask=share < shares, other=0.0)
    return tl.sum(one, 0), tl.sum(two, 0)


@triton.jit
def moments_of(
    features,
    parts,
    running_mean,
    running_var,
    batches,
    moments,
    number,
    channels,
    momentum,
    eps,
    shares,
    RUNNING: tl.constexpr,
    MAX_SHARES: tl.constexpr,
):
    """Compute means and precisions of channels, and update the running moments of the norm."""
    channel, group = tl.program_id(0), tl.program_id(1)
    one, two = _summed(parts, channel, channels, shares, MAX_SHARES)
    count = number * 1.0
    away = one / count
    variance = tl.maximum(two / count - away * away, 0.0)
    place = moments + group * 2 * channels + channel
    tl.store(place, away)
    tl.store(place + channels, 1.0 / tl.sqrt(variance + eps))
    if RUNNING:
        mean = tl.load(features + channel).to(tl.float32) + away
        before = tl.load(running_mean + channel)
        tl.store(running_mean + channel, before + momentum * (mean - before))
        before = tl.load(running_var + channel)
        unbiased = variance * (count / (count - 1.0))
        tl.store(running_var + channel, before + momentum * (unbiased - before))
        tl.store(batches, tl.load(batches) + 1, mask=channel == 0)


@triton.jit
def totals_of(parts, totals, channels, shares, MAX_SHARES: tl.constexpr):
    """Sum over shares."""
    channel = tl.program_id(0)
    one, two = _summed(parts, channel, channels, shares, MAX_SHARES)
    place = totals + tl.program_id(1) * 2 * channels + channel
    tl.store(place, one)
    tl.store(place + channels, two)


@triton.jit
def _normed(features, moments, scale, shift, row, column, number, channels, step):
    """Compute normed features, the input of the ReLU, and the factor from features to that."""
    present = column < channels
    inside = (row < number)[:, None] & present[None, :]
    place = moments + tl.program_id(2) * 2 * channels + column
    away = tl.load(place, mask=present, other=0.0)[None, :]
    precision = tl.load(place + channels, mask=present, other=0.0)[None, :]
    a = tl.load(scale + column, mask=present, other=0.0)[None, :]
    b = tl.load(shift + column, mask=present, other=0.0)[None, :]
    value = tl.load(features + _place(row, column, number, step), mask=inside, other=0.0).to(tl.float32)
    normed = (value - _center(features, column, number, channels, step)[None, :] - away) * precision
    return normed, normed * a + b, a * precision


@triton.jit
def apply(
    features,
    moments,
    scale,
    shift,
    result,
    number,
    channels,
    step,
    result_step,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute normed features and their ReLU."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    _, answer, _ = _normed(features, moments, scale, shift, row, column, number, channels, step)
    inside = (row < number)[:, None] & (column < channels)[None, :]
    place = result + _place(row, column, number, result_step)
    tl.store(place, tl.maximum(answer, 0.0).to(result.dtype.element_ty), mask=inside)


@triton.jit
def _let_through(incoming, seen, row, column, number, channels, step):
    """Load the gradients that the ReLU lets through."""
    inside = (row < number)[:, None] & (column < channels)[None, :]
    slope = tl.load(incoming + _place(row, column, number, step), mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside & (seen > 0), slope, 0.0)


@triton.jit
def back_sums(
    features,
    incoming,
    moments,
    scale,
    shift,
    parts,
    number,
    channels,
    step,
    incoming_step,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Sum the gradients that the ReLU lets through, and these times normed features, for each share."""
    share, shares = tl.program_id(0), tl.num_programs(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    one = tl.zeros((BLOCK, WIDTH), tl.float32)
    two = tl.zeros((BLOCK, WIDTH), tl.float32)
    first = share * BLOCK
    while first < number:
        row = first + tl.arange(0, BLOCK)
        normed, seen, _ = _normed(features, moments, scale, shift, row, column, number, channels, step)
        slope = _let_through(incoming, seen, row, column, number, channels, incoming_step)
        one += slope
        two += slope * normed
        first += shares * BLOCK
    _keep(parts, share, shares, column, channels, one, two)


@triton.jit
def back_apply(
    features,
    incoming,
    moments,
    scale,
    shift,
    totals,
    outgoing,
    number,
    channels,
    step,
    incoming_step,
    outgoing_step,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Compute the gradient by the features."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    present = column < channels
    normed, seen, factor = _normed(features, moments, scale, shift, row, column, number, channels, step)
    slope = _let_through(incoming, seen, row, column, number, channels, incoming_step)
    place = totals + tl.program_id(2) * 2 * channels + column
    one = tl.load(place, mask=present, other=0.0)[None, :]
    two = tl.load(place + channels, mask=present, other=0.0)[None, :]
    answer = factor * (slope - (one + normed * two) / (number * 1.0))
    inside = (row < number)[:, None] & present[None, :]
    target = outgoing + _place(row, column, number, outgoing_step)
    tl.store(target, answer.to(outgoing.dtype.element_ty), mask=inside)
