"""What a convolution's outputs are measured by, in the pass that activates them."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from scantune.experts import activation as rows


class Meter(ABC):
    """Additive statistics of standardised experts, as their densities are estimated from."""

    @abstractmethod
    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """ReLU of values + bias, and the statistics of values + bias.

        Args:
            values: `(slices, channels, *spatial)`, channels last in memory.
            bias: `(channels,)`; None where it was added before, which is so on a CPU.
            weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.

        Returns:
            The activations, and `(statistics, channels)`, the first row of which is the number of pixels that count.
        """

    @abstractmethod
    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """The gradient with respect to the values, from those of the statistics and of the activations."""


class Moments(Meter):
    """Number, sum and sum of squares.

    Args:
        center: Training mean `(channels,)`.
        scale: Training deviation `(channels,)`.
    """

    def __init__(self, center: Tensor, scale: Tensor) -> None:
        self.center = center.float()
        each = scale.double().reciprocal()
        self.units = torch.stack([torch.ones_like(each), each, each.square()])

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The statistics are `(3, channels)`."""
        activations, sums = _programs(bias).activate(values, bias, self.center, weights)
        return activations, _numbered(sums, values, weights) * self.units

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """One multiplication and one addition a pixel, beside the ReLU's."""
        _, total, squares = statistics * self.units
        offset, factor = (total - 2 * squares * self.center).float(), (2 * squares).float()
        slopes: Tensor = _programs(bias).activation_slopes(values, bias, weights, offset, factor, activations)
        return slopes


class Counts(Meter):
    """What falls to the points of a grid; by kernels alone.

    Args:
        rise: Points that a value of 1 is above one of 0 `(channels,)`.
        start: Where a value of 0 is, in points from the first `(channels,)`.
        points: How many there are.
    """

    def __init__(self, rise: Tensor, start: Tensor, points: int) -> None:
        self.rise, self.start, self.points = rise, start, points

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The statistics are `(1 + points, channels)`."""
        from scantune.kernels import binning

        assert bias is not None
        activations, fallen = binning.activate(values, bias, weights, self.rise, self.start, self.points)
        return activations, _numbered(fallen.T, values, weights)

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """A look at a table a pixel, beside the ReLU's."""
        from scantune.kernels import binning

        assert bias is not None
        gradient = statistics[1:].T
        return binning.activation_slopes(values, bias, weights, self.rise, self.start, gradient, activations)


def _programs(bias: Tensor | None) -> Any:
    """Kernels where there is a bias to add, on a CPU rows."""
    if bias is None:
        return rows
    from scantune.kernels import activation as kernels

    return kernels


def _numbered(statistics: Tensor, values: Tensor, weights: Tensor | None) -> Tensor:
    """Statistics `(statistics, channels)` below the number of pixels that they are of."""
    pixels = values.numel() / values.shape[1]
    number = statistics.new_full((1,), pixels) if weights is None else weights.sum(dtype=statistics.dtype).view(1)
    return torch.cat([number.expand(1, values.shape[1]), statistics])
