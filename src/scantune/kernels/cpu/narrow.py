"""3 x 3 convolutions from one channel to many and back, on a CPU: the plain twins of the kernels of that name."""

import torch
from torch import Tensor
from torch.nn import functional as F


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
