"""What a convolution's outputs are measured by, in the pass that activates them."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from scantune.kernels.cpu import activation as rows


class StatisticsProgram(ABC):
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


class MomentsOnGPU(StatisticsProgram):
    """Number, sum and sum of squares, by kernels.

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
        from scantune.kernels.triton import moments

        assert bias is not None
        return moments.activate(values, bias, weights, self.center, self.units)

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """One multiplication and one addition a pixel, beside the ReLU's."""
        from scantune.kernels.triton import moments

        assert bias is not None
        return moments.activation_slopes(values, bias, weights, self.center, self.units, statistics, activations)


class MomentsOnCPU(MomentsOnGPU):
    """The same on a CPU, where the bias was added before."""

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The statistics are `(3, channels)`."""
        assert bias is None
        activations, sums = rows.activate(values, weights, self.center)
        return activations, _numbered(sums, values, weights) * self.units

    def slopes(
        self,
        values: Tensor,
        bias: Tensor | None,
        weights: Tensor | None,
        statistics: Tensor,
        activations: Tensor,
    ) -> Tensor:
        """One multiplication and one addition a pixel, beside the ReLU's."""
        assert bias is None
        _, total, squares = statistics * self.units
        offset, factor = (total - 2 * squares * self.center).float(), (2 * squares).float()
        return rows.activation_slopes(values, weights, offset, factor, activations)


class BinCountsOnGPU(StatisticsProgram):
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
        from scantune.kernels.triton import binning

        assert bias is not None
        return binning.activate(values, bias, weights, self.rise, self.start, self.points)

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """A look at a table a pixel, beside the ReLU's."""
        from scantune.kernels.triton import binning

        assert bias is not None
        return binning.activation_slopes(values, bias, weights, self.rise, self.start, statistics, activations)


def _numbered(statistics: Tensor, values: Tensor, weights: Tensor | None) -> Tensor:
    """Statistics `(statistics, channels)` below the number of pixels that they are of."""
    pixels = values.numel() / values.shape[1]
    number = statistics.new_full((1,), pixels) if weights is None else weights.sum(dtype=statistics.dtype).view(1)
    return torch.cat([number.expand(1, values.shape[1]), statistics])
