"""Convolutions with a ReLU behind them, whose outputs are measured on the way, in the same pass."""

import threading
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.experts.base import image_weights
from scantune.experts.meters import StatisticsProgram


class BatchState(threading.local):
    """What a thread's latest batch comes with and leaves; a copy of a network has its own."""

    expected = False
    padding: Tensor | None = None
    statistics: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()


class MeasuredReLU(nn.Module):
    """Adds a convolution's bias, measures the sum where that is expected, gives its positive part.

    Args:
        bias: `(channels,)`; None where the convolution has added it.
        meter: What measures.
    """

    def __init__(self, bias: Tensor | None, meter: StatisticsProgram) -> None:
        super().__init__()
        self.bias, self.meter = None if bias is None else bias.float(), meter
        self.batch = BatchState()

    def forward(self, values: Tensor) -> Tensor:
        """Maps outputs `(slices, channels, *spatial)` of a convolution to activations."""
        if not self.batch.expected:
            return torch.relu(values if self.bias is None else values + self.bias.to(values.dtype).view(-1, 1, 1))
        weights = image_weights(self.batch.padding, values)
        values = values.contiguous(memory_format=torch.channels_last)
        result: tuple[Tensor, Tensor] = _Activate.apply(values, self.bias, self.meter, weights)  # type: ignore[no-untyped-call]
        activations, self.batch.statistics = result
        return activations


class FusedLayers:
    """The units of a network, by the names of their convolutions.

    Args:
        activations: The activations behind them.
    """

    def __init__(self, activations: Mapping[str, MeasuredReLU]) -> None:
        self.activations = activations

    @classmethod
    def of(cls, task: nn.Module, meters: Mapping[str, StatisticsProgram], others: Collection[str]) -> Self:
        """Finds units in a frozen task network, and changes them in place; kernels compute what the network did.

        Args:
            task: The task network, whose batch norms are folded.
            meters: What measures, by layer.
            others: Layers whose features are wanted themselves.
        """
        found = {}
        for name, container, conv, relu in _measured(task, meters):
            if name not in others:
                bias = conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()
                conv.bias = None
                found[name] = container._modules[relu] = MeasuredReLU(bias, meters[name])
        return cls(found)

    @classmethod
    def by_rows(cls, task: nn.Module, meters: Mapping[str, StatisticsProgram]) -> Self:
        """The same on a CPU, of convolutions whose weights, and so their features, lie channels last."""
        found = {}
        for name, container, conv, relu in _measured(task, meters):
            if conv.weight.stride(1) == 1 and conv.weight.dtype == torch.float32:
                found[name] = container._modules[relu] = MeasuredReLU(None, meters[name])
        return cls(found)

    def expect(self, padding: Tensor | None) -> None:
        """Says that the next batch is to be measured, and which of its pixels are padding."""
        for activation in self.activations.values():
            activation.batch.expected, activation.batch.padding = True, padding

    def statistics(self) -> Iterator[tuple[str, Tensor]]:
        """What was measured of the latest batch, `(statistics, channels)` by layer."""
        for name, activation in self.activations.items():
            assert activation.batch.statistics is not None
            yield name, activation.batch.statistics
            # Whoever runs the network next may have other slices, and look at predictions alone.
            activation.batch.expected = False
            activation.batch.statistics = activation.batch.padding = None


def _measured(
    task: nn.Module, meters: Mapping[str, StatisticsProgram]
) -> list[tuple[str, nn.Sequential, nn.Conv2d, str]]:
    """Those of `_pairs` that are measured; only a layer that is called once has one set of statistics."""
    return [pair for pair in _pairs(task) if pair[0] in meters and f"{pair[0]}@2" not in meters]


def _pairs(task: nn.Module) -> Iterator[tuple[str, nn.Sequential, nn.Conv2d, str]]:
    """Names and convolutions that feed nothing but a ReLU, their containers and the ReLUs' names there."""
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
        ctx: Any, values: Tensor, bias: Tensor | None, meter: StatisticsProgram, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, bias, weights)
        ctx.set_materialize_grads(False)
        activations, statistics = meter.activate(values, bias, weights)
        ctx.meter, ctx.form = meter, (statistics.shape, statistics.dtype)
        return activations, statistics

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None, None, None]:
        activations, statistics = gradients
        values, bias, weights = ctx.saved_tensors
        # Zeros that PyTorch would make have another layout in memory.
        activations = torch.zeros_like(values) if activations is None else activations
        shape, dtype = ctx.form
        statistics = values.new_zeros(shape, dtype=dtype) if statistics is None else statistics
        return ctx.meter.slopes(values, bias, weights, statistics, activations), None, None, None
