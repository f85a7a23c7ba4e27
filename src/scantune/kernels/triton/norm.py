"""Norms in training and the ReLU behind them: two passes over the features, and two over their gradients."""

from typing import Any

import torch
import triton
from torch import Tensor, nn

from scantune.kernels.triton import norm_passes as passes

TILE = 2048
"""Numbers that a program looks at at once."""
PROGRAMS = 1024
"""The most programs that sum up pixels, each its share; a power of two."""


def norm_relu(features: Tensor, norm: nn.BatchNorm2d | nn.BatchNorm3d) -> Tensor:
    """The same as `relu(norm(features))` of a norm in training, whose running moments are brought up to date.

    Args:
        features: `(slices, channels, *spatial)`, in any floating precision; sums are in single precision.
        norm: With a scale and a shift, and running moments with a momentum.
    """
    running = (norm.running_mean, norm.running_var, norm.num_batches_tracked)
    arguments = (norm.weight, norm.bias, norm.eps, 1, running, norm.momentum)
    return _NormRelu.apply(features, *arguments)  # type: ignore[no-any-return, no-untyped-call]


def instance_relu(features: Tensor, eps: float = 1e-5) -> Tensor:
    """The same as `relu(F.instance_norm(features))`, of features `(slices, channels, *spatial)`."""
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
        passes.sums[tiles.shares](features, parts, *table, *tiles.block)
        facts = (tiles.pixels, tiles.channels, momentum, eps, tiles.shares[0], running is not None, PROGRAMS)
        passes.moments_of[tiles.channelwise](features, parts, *(running or (parts, parts, parts)), moments, *facts)
        passes.apply[tiles.grid](features, moments, scale, shift, result, *table, result.stride(-1), *tiles.block)
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
        passes.back_sums[tiles.shares](*known, parts, *table, *tiles.block)
        passes.totals_of[tiles.channelwise](parts, totals, tiles.channels, tiles.shares[0], PROGRAMS)
        passes.back_apply[tiles.grid](*known, totals, outgoing, *table, outgoing.stride(-1), *tiles.block)
        to_shift, to_scale = totals[0] if len(totals) == 1 else totals.sum(0)
        return outgoing, to_scale, to_shift, None, None, None, None


def _evenly(features: Tensor) -> Tensor:
    """With channels next to each other and pixels evenly spaced; a part of the channels of more is fine as it is."""
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
        """Room for two sums of each channel of each share."""
        return features.new_empty(self.grid[2], self.shares[0], 2, self.channels, dtype=torch.float32)
