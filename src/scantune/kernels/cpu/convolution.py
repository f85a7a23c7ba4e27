"""3 x 3 convolutions on a CPU: from one channel to many and back, and of upsampled features beside others.

Those from and to one channel are the plain twins of `kernels/triton/narrow.py`.

Upsampled features are convolved without upsampling them, and without joining them to the others. Features that are
linearly upsampled by two are features whose pixels are repeated, then smoothed by [1 2 1] / 4 along each axis.
Smoothing may as well come after the convolution, whose outputs are fewer than its inputs; and of repeated pixels a
convolution sees 2 x 2 at a time, not 3 x 3, so that four convolutions of 2 x 2 on the small picture, one for each place
in a repeated pixel, give it at 4/9 of the multiplications.

In this account features go on beyond the border, where to a convolution they are zero: what they would add to the
outermost rows and columns is subtracted.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

TAPS_BY_NEIGHBOUR = (((1, 1, 0), (0, 0, 1)), ((1, 0, 0), (0, 1, 1)))
"""Which of three weights meet a repeated pixel: at the last place of one pixel and at the first of the next, those that
meet the one and those that meet the next."""

BORDER_TAPS = ((0, 0), (-1, 2))
"""The outermost pixels of an axis, and the weights that reach beyond them."""


def spread(picture: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve one channel to many: y[p, c] = bias[c] + sum over taps of weights[t, c] picture[p + t].

    Args:
        picture: `(slices, 1, height, width)`.
        weights: `(9, channels)`.
        bias: `(channels,)`.

    Returns:
        `(slices, channels, height, width)`, channels last in memory.
    """
    filters = weights.T.reshape(-1, 1, 3, 3)
    # With one channel the two layouts are the same to PyTorch, but not to its convolutions.
    filters = torch.empty_like(filters, memory_format=torch.channels_last).copy_(filters)
    return F.conv2d(picture, filters, bias, padding=1)


def gather(features: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve many channels to one: y[p] = bias + sum over taps, channels of weights[t, c] features[p + t, c].

    One matrix product gives what every pixel sends to each of its neighbours; a library's convolution takes as long for
    one channel as for sixteen.

    Args:
        features: `(slices, channels, height, width)`.
        weights: `(9, channels)`.
        bias: `(1,)`.

    Returns:
        `(slices, 1, height, width)`.
    """
    slices, channels, height, width = features.shape
    sent = (weights @ features.movedim(1, -1).reshape(-1, channels).T).view(9, slices, height, width)
    result = features.new_zeros(slices, 1, height, width) + (0 if bias is None else bias)
    for tap in range(9):
        (above, at_row), (left, at_column) = _shifted(tap // 3 - 1, height), _shifted(tap % 3 - 1, width)
        result[:, 0, above, left] += sent[tap, :, at_row, at_column]
    return result


def correlate(picture: Tensor, features: Tensor) -> Tensor:
    """Return the sum over pixels of picture[p + t] features[p, c], `(9, channels)`.

    Args:
        picture: `(slices, 1, height, width)`.
        features: `(slices, channels, height, width)`.
    """
    height, width = picture.shape[2:]
    wide = F.pad(picture[:, 0], (1, 1, 1, 1))
    shifted = [wide[:, row : row + height, column : column + width] for row in range(3) for column in range(3)]
    return torch.stack(shifted).view(9, -1) @ features.movedim(1, -1).reshape(-1, features.shape[1])


def _shifted(offset: int, length: int) -> tuple[slice, slice]:
    """Return places along an axis whose neighbour at an offset exists, and those neighbours."""
    first, last = max(-offset, 0), length - max(offset, 0)
    return slice(first, last), slice(first + offset, last + offset)


@dataclass(frozen=True)
class UpsampledAndSkip:
    """Features at half the size of others, and these: what a convolution of both is to take.

    Args:
        small: `(slices, channels, height / 2, width / 2)`, to be upsampled.
        large: `(slices, others, height, width)`.
    """

    small: Tensor
    large: Tensor


def mirrored(weight: Tensor) -> Tensor:
    """Return weights of the convolution that maps gradients of outputs to those of inputs."""
    return weight.flip(2, 3).transpose(0, 1).contiguous(memory_format=torch.channels_last)


def convolve(features: UpsampledAndSkip, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve both, upsampled features first.

    Args:
        features: The features.
        weight: `(outputs, channels + others, 3, 3)`, which do not move.
        bias: `(outputs,)`, likewise.

    Returns:
        `(slices, outputs, height, width)`, channels last in memory.
    """
    return _Convolve.apply(features.small, features.large, weight, bias)  # type: ignore[no-any-return, no-untyped-call]


class _Convolve(torch.autograd.Function):
    """Keeps the weights alone."""

    @staticmethod
    def forward(ctx: Any, small: Tensor, large: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.channels = small.shape[1]
        ours, theirs = _parted(weight, ctx.channels)
        result = F.conv2d(_repeated(small, ours), _smoothing(ours), bias, groups=len(ours))
        _trim(result, small, ours)
        return result.add_(F.conv2d(large, theirs, padding=1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (weight,) = ctx.saved_tensors
        (gradient,) = gradients
        ours, theirs = _parted(weight, ctx.channels)
        small = large = None
        if ctx.needs_input_grad[0]:
            small = _gathered(F.conv2d(gradient, _smoothing(ours), padding=2, groups=len(ours)), ours)
            _trim_gradient(small, gradient, ours)
        if ctx.needs_input_grad[1]:
            large = F.conv2d(gradient, mirrored(theirs), padding=1)
        return small, large, None, None


def _parted(weight: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    """Split weights into those of upsampled features and those of the others."""
    first, second = weight[:, :channels], weight[:, channels:]
    return first.contiguous(memory_format=torch.channels_last), second.contiguous(memory_format=torch.channels_last)


def _corners(weight: Tensor) -> Tensor:
    """Return the four 2 x 2 convolutions, `(2 * 2 * outputs, channels, 2, 2)`: by place in a pixel, row and column."""
    outputs, channels = weight.shape[:2]
    found = _seen(weight.dtype) @ weight.permute(0, 2, 3, 1).reshape(outputs, 9, channels)
    by_place = found.view(outputs, 2, 2, 2, 2, channels).permute(1, 2, 0, 5, 3, 4)
    return by_place.flatten(0, 2).contiguous(memory_format=torch.channels_last)


@cache
def _seen(dtype: torch.dtype) -> Tensor:
    """Return which of nine weights meet which of four pixels, by place: `(16, 9)`."""
    seen = torch.tensor(TAPS_BY_NEIGHBOUR, dtype=dtype)
    return torch.einsum("pkr,qlc->pqklrc", seen, seen).reshape(16, 9)


def _smoothing(weight: Tensor) -> Tensor:
    each = weight.new_tensor((0.25, 0.5, 0.25))
    return (each[:, None] * each).expand(len(weight), 1, 3, 3).contiguous(memory_format=torch.channels_last)


def _repeated(small: Tensor, weight: Tensor) -> Tensor:
    """Convolve repeated pixels and one more on each side: `(slices, outputs, height + 2, width + 2)`."""
    wide = F.pad(small, (1, 1, 1, 1), mode="replicate")
    places = F.conv2d(wide, _corners(weight)).movedim(1, -1)
    slices, rows, columns, _ = places.shape
    in_rows = places.reshape(slices, rows, columns, 2, 2, -1).transpose(2, 3)
    return in_rows.reshape(slices, 2 * rows, 2 * columns, -1).movedim(-1, 1)


def _gathered(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of `_repeated`."""
    slices, outputs, height, width = gradient.shape
    in_rows = gradient.movedim(1, -1).reshape(slices, height // 2, 2, width // 2, 2, outputs)
    places = in_rows.transpose(2, 3).reshape(slices, height // 2, width // 2, 4 * outputs).movedim(-1, 1)
    wide = F.conv2d(places, mirrored(_corners(weight)), padding=1)
    for axis in (2, 3):
        for inner, outer in ((1, 0), (-2, -1)):
            wide.select(axis, inner).add_(wide.select(axis, outer))
    return wide[:, :, 1:-1, 1:-1].contiguous(memory_format=torch.channels_last)


def _trim(result: Tensor, small: Tensor, weight: Tensor) -> None:
    """Subtract what features beyond the border have added."""
    slices, outputs = result.shape[:2]
    for axis in (2, 3):
        reach = _reach(small.shape[5 - axis], axis == 2, small.dtype)
        for side, tap in BORDER_TAPS:
            each = weight.select(axis, tap).transpose(1, 2).flatten(0, 1) @ small.select(axis, side)
            result.select(axis, side).sub_(each.reshape(slices, outputs, -1) @ reach)


def _trim_gradient(small: Tensor, gradient: Tensor, weight: Tensor) -> None:
    """Subtract the gradient of `_trim`."""
    slices, outputs = gradient.shape[:2]
    for axis in (2, 3):
        reach = _reach(small.shape[5 - axis], axis == 2, small.dtype)
        for side, tap in BORDER_TAPS:
            each = (gradient.select(axis, side) @ reach.T).reshape(slices, 3 * outputs, -1)
            small.select(axis, side).sub_(weight.select(axis, tap).permute(1, 0, 2).flatten(1) @ each)


@cache
def _reach(length: int, beyond: bool, dtype: torch.dtype) -> Tensor:
    """Return what three weights see of a row that is upsampled, `(3 * length, 2 * length)`.

    Args:
        length: Of the row.
        beyond: Whether the row goes on beyond its ends.
        dtype: Of the result.
    """
    row = F.interpolate(torch.eye(length, dtype=dtype)[None], scale_factor=2, mode="linear", align_corners=False)
    wide = F.pad(row, (1, 1), mode="replicate" if beyond else "constant")[0]
    return torch.cat([wide[:, tap : tap + 2 * length] for tap in range(3)])
