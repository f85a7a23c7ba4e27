"""Moments and positive parts of features on a CPU, a few rows of pixels at a time: twins of the kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

NUMBERS_IN_CACHE = 2**17
"""Numbers that are processed at a time, so that they and their results stay in a processor's second-level cache."""

ROW_LENGTH = 1024
"""Approximate length of a row of several pixels, since short rows of channels are slow."""


def activate(values: Tensor, weights: Tensor | None, center: Tensor) -> tuple[Tensor, Tensor]:
    """Return positive parts, and sums about a center.

    Args:
        values: `(slices, channels, height, width)`, channels last in memory.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, height, width)`; None counts every pixel.
        center: `(channels,)`.

    Returns:
        The positive parts, as `values`, and the sums of values and of squares `(2, channels)`, in double precision.
    """
    result = torch.empty_like(values)
    side = _side(values, weights)
    middle = _wide(center, side)
    parts, counts = _parts(values, side), _counts(values, weights)
    found = []
    for number, (part, positive) in enumerate(zip(parts, _parts(result, side), strict=True)):
        torch.clamp_min(part, 0, out=positive)
        found.append(_weighted(part, middle, counts[number]) if counts else _moments(part))
    first, second = (torch.stack(each).double() for each in zip(*found, strict=True))
    if not counts:
        pixels = torch.tensor([[len(part)] for part in parts], dtype=torch.double)
        away = first - middle
        first, second = pixels * away, pixels * (second + away.square())
    return result, torch.stack([first, second]).view(2, -1, len(center)).sum(1)


def _moments(part: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and variances of columns, by the pass that a batch norm takes over its inputs."""
    means, variances = torch.ops.aten.batch_norm_update_stats(part, None, None, 0.0)
    return means, variances


def _weighted(part: Tensor, middle: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of columns about a middle, and of squares, of the rows that count."""
    away = (part - middle).mul_(counts)
    return away.sum(0), away.square_().sum(0)


def activation_slopes(
    values: Tensor, weights: Tensor | None, offset: Tensor, factor: Tensor, gradient: Tensor
) -> Tensor:
    """Return the gradient of both: weights (offset + factor values), plus that of positive parts.

    Args:
        values: `(slices, channels, height, width)`, channels last in memory.
        weights: 1 where a pixel counts, 0 where not, `(slices, 1, height, width)`; None counts every pixel.
        offset: `(channels,)`.
        factor: `(channels,)`.
        gradient: Of the positive parts, as `values`.
    """
    gradient = gradient.contiguous(memory_format=torch.channels_last)
    result = torch.empty_like(values)
    side = _side(values, weights)
    offset, factor = _wide(offset, side), _wide(factor, side)
    counts = _counts(values, weights)
    triples = zip(_parts(values, side), _parts(gradient, side), _parts(result, side), strict=True)
    for number, (part, slope, sum_of_both) in enumerate(triples):
        torch.ops.aten.threshold_backward(slope, part, 0, grad_input=sum_of_both)
        if counts:
            sum_of_both.add_(torch.addcmul(offset, part, factor).mul_(counts[number]))
        else:
            sum_of_both.addcmul_(part, factor).add_(offset)
    return result


def _side(values: Tensor, weights: Tensor | None) -> int:
    """Return how many pixels make a row: one, if each has its own weight."""
    channels, pixels = values.shape[1], values.numel() // values.shape[1]
    side = 1
    while weights is None and 2 * side * channels <= ROW_LENGTH and pixels % (2 * side) == 0:
        side *= 2
    return side


def _wide(each: Tensor, side: int) -> Tensor:
    """Repeat numbers of channels `(channels,)` for each of a row's pixels, `(side * channels,)`."""
    return each.expand(side, -1).reshape(-1)


def _parts(values: Tensor, side: int) -> Sequence[Tensor]:
    """Split values into parts of some rows, `(rows, side * channels)`, as views."""
    width = side * values.shape[1]
    return torch.split(values.movedim(1, -1).view(-1, width), max(NUMBERS_IN_CACHE // width, 1))


def _counts(values: Tensor, weights: Tensor | None) -> Sequence[Tensor]:
    """Split weights into parts whose rows are single pixels, `(rows, 1)`."""
    return () if weights is None else torch.split(weights.reshape(-1, 1), max(NUMBERS_IN_CACHE // values.shape[1], 1))
