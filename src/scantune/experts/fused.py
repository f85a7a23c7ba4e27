"""Statistics of experts that are computed while a convolution's outputs are activated, in one pass over memory.

They are those that a density measures from recorded features; see `scantune.methods.expert_statistics`.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.experts.base import image_weights
from scantune.kernels.cpu import activation as rows


class StatisticsProgram(ABC):
    """Program for a ReLU and the additive statistics of the standardised experts in front of it."""

    @abstractmethod
    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return ReLU(values + bias), and the statistics of values + bias.

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
        """Return the gradient with respect to the values, from those of statistics and activations."""


class MomentsOnGPU(StatisticsProgram):
    """Number, sum and sum of squares on a GPU, by kernels.

    Args:
        center: Training mean `(channels,)`.
        scale: Training deviation `(channels,)`.
    """

    def __init__(self, center: Tensor, scale: Tensor) -> None:
        self.center = center.float()
        each = scale.double().reciprocal()
        self.units = torch.stack([torch.ones_like(each), each, each.square()])

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the activations and moments `(3, channels)`."""
        from scantune.kernels.triton import moments

        assert bias is not None
        return moments.activate(values, bias, weights, self.center, self.units)

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """Return the gradient: one multiplication and one addition per pixel, beside the ReLU's."""
        from scantune.kernels.triton import moments

        assert bias is not None
        return moments.activation_slopes(values, bias, weights, self.center, self.units, statistics, activations)


class MomentsOnCPU(MomentsOnGPU):
    """Number, sum and sum of squares on a CPU, where the convolution has added the bias."""

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the activations and moments `(3, channels)`."""
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
        """Return the gradient: one multiplication and one addition per pixel, beside the ReLU's."""
        assert bias is None
        _, total, squares = statistics * self.units
        offset, factor = (total - 2 * squares * self.center).float(), (2 * squares).float()
        return rows.activation_slopes(values, weights, offset, factor, activations)


class BinCountsOnGPU(StatisticsProgram):
    """Counts of values at the points of a grid on a GPU, by kernels.

    Args:
        rise: Distance in points between a value of 0 and one of 1 `(channels,)`.
        start: Position of a value of 0, in points from the first `(channels,)`.
        points: Number of points.
    """

    def __init__(self, rise: Tensor, start: Tensor, points: int) -> None:
        self.rise, self.start, self.points = rise, start, points

    def activate(self, values: Tensor, bias: Tensor | None, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the activations and counts `(1 + points, channels)`."""
        from scantune.kernels.triton import binning

        assert bias is not None
        return binning.activate(values, bias, weights, self.rise, self.start, self.points)

    def slopes(
        self, values: Tensor, bias: Tensor | None, weights: Tensor | None, statistics: Tensor, activations: Tensor
    ) -> Tensor:
        """Return the gradient: one table look-up per pixel, beside the ReLU's."""
        from scantune.kernels.triton import binning

        assert bias is not None
        return binning.activation_slopes(values, bias, weights, self.rise, self.start, statistics, activations)


class BatchState(threading.local):
    """Padding and statistics of a thread's latest batch; a copy of a network has its own state."""

    expected = False
    padding: Tensor | None = None
    statistics: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()


class MeasuredReLU(nn.Module):
    """ReLU that adds a convolution's bias first and, on request, measures its input.

    Args:
        bias: `(channels,)`; None where the convolution has added it.
        program: Measures the input.
    """

    def __init__(self, bias: Tensor | None, program: StatisticsProgram) -> None:
        super().__init__()
        self.bias, self.program = None if bias is None else bias.float(), program
        self.batch = BatchState()

    def forward(self, values: Tensor) -> Tensor:
        """Map outputs `(slices, channels, *spatial)` of a convolution to activations."""
        if not self.batch.expected:
            return torch.relu(values if self.bias is None else values + self.bias.to(values.dtype).view(-1, 1, 1))
        weights = image_weights(self.batch.padding, values)
        values = values.contiguous(memory_format=torch.channels_last)
        result: tuple[Tensor, Tensor] = _Activate.apply(values, self.bias, self.program, weights)  # type: ignore[no-untyped-call]
        activations, self.batch.statistics = result
        return activations


class FusedLayers:
    """Convolutions of a network whose ReLUs measure their outputs.

    Args:
        activations: The measuring ReLUs, by the names of the convolutions.
    """

    def __init__(self, activations: Mapping[str, MeasuredReLU]) -> None:
        self.activations = activations

    @classmethod
    def on_gpu(cls, task: nn.Module, programs: Mapping[str, StatisticsProgram], others: Collection[str]) -> Self:
        """Replace the ReLUs of a frozen task network in place, whose outputs and statistics kernels compute.

        Args:
            task: The task network, whose batch norms are folded.
            programs: What measures, by layer.
            others: Layers whose features are wanted themselves.
        """
        found = {}
        for name, container, conv, relu in _measured(task, programs):
            if name not in others:
                bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
                conv.bias = None
                found[name] = container._modules[relu] = MeasuredReLU(bias, programs[name])
        return cls(found)

    @classmethod
    def on_cpu(cls, task: nn.Module, programs: Mapping[str, StatisticsProgram]) -> Self:
        """Replace ReLUs likewise on a CPU, behind convolutions whose weights lie channels last."""
        found = {}
        for name, container, conv, relu in _measured(task, programs):
            if conv.weight.stride(1) == 1 and conv.weight.dtype == torch.float32:
                found[name] = container._modules[relu] = MeasuredReLU(None, programs[name])
        return cls(found)

    def expect(self, padding: Tensor | None) -> None:
        """Measure the next batch, in which `padding` marks pixels to leave out."""
        for activation in self.activations.values():
            activation.batch.expected, activation.batch.padding = True, padding

    def statistics(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the statistics of the latest batch, `(statistics, channels)` by layer."""
        for name, activation in self.activations.items():
            assert activation.batch.statistics is not None
            yield name, activation.batch.statistics
            # The next run of the network may be for predictions alone, on other slices.
            activation.batch.expected = False
            activation.batch.statistics = activation.batch.padding = None


def _measured(
    task: nn.Module, programs: Mapping[str, StatisticsProgram]
) -> list[tuple[str, nn.Sequential, nn.Conv2d, str]]:
    """Return those of `_pairs` that are measured; a layer called twice would have two sets of statistics."""
    return [pair for pair in _pairs(task) if pair[0] in programs and f"{pair[0]}@2" not in programs]


def _pairs(task: nn.Module) -> Iterator[tuple[str, nn.Sequential, nn.Conv2d, str]]:
    """Yield each convolution that feeds only a ReLU: name, container, convolution, the ReLU's name there."""
    for prefix, container in task.named_modules():
        if not isinstance(container, nn.Sequential):
            continue
        children = [(name, m) for name, m in container._modules.items() if not isinstance(m, nn.Identity)]
        for (first, conv), (second, relu) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(relu, nn.ReLU):
                yield (f"{prefix}." if prefix else "") + first, container, conv, second


class _Activate(torch.autograd.Function):
    """Keeps the values alone."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, bias: Tensor | None, program: StatisticsProgram, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, bias, weights)
        ctx.set_materialize_grads(False)
        activations, statistics = program.activate(values, bias, weights)
        ctx.program, ctx.form = program, (statistics.shape, statistics.dtype)
        return activations, statistics

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None]:
        activations, statistics = gradients
        values, bias, weights = ctx.saved_tensors
        # Zeros that PyTorch would make have another layout in memory.
        activations = torch.zeros_like(values) if activations is None else activations
        shape, dtype = ctx.form
        statistics = values.new_zeros(shape, dtype=dtype) if statistics is None else statistics
        return ctx.program.slopes(values, bias, weights, statistics, activations), None, None, None


def _numbered(statistics: Tensor, values: Tensor, weights: Tensor | None) -> Tensor:
    """Put the number of counted pixels above statistics `(statistics, channels)`."""
    pixels = values.numel() / values.shape[1]
    number = statistics.new_full((1,), pixels) if weights is None else weights.sum(dtype=statistics.dtype).view(1)
    return torch.cat([number.expand(1, values.shape[1]), statistics])
