"""Convolutions with a ReLU behind them, whose moments are taken on the way, in the same pass."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.experts import activation as rows
from scantune.experts.base import inside


class MeasuredReLU(nn.Module):
    """Adds a convolution's bias, takes moments of the sum, gives its positive part.

    Args:
        bias: `(channels,)`; None where the convolution has added it.
        center: What moments are taken about `(channels,)`.
    """

    def __init__(self, bias: Tensor | None, center: Tensor) -> None:
        super().__init__()
        self.bias, self.center = None if bias is None else bias.float(), center.float()
        self.padding: Tensor | None = None
        self.moments: Tensor | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Maps outputs `(slices, channels, *spatial)` of a convolution to activations."""
        weights = inside(self.padding, values)
        values = values.contiguous(memory_format=torch.channels_last)
        result: tuple[Tensor, Tensor] = _Activate.apply(values, self.bias, self.center, weights)  # type: ignore[no-untyped-call]
        activations, self.moments = result
        return activations


class Units:
    """The units of a network, by the names of their convolutions.

    Args:
        activations: The activations behind them.
    """

    def __init__(self, activations: Mapping[str, MeasuredReLU]) -> None:
        self.activations = activations

    @classmethod
    def of(cls, task: nn.Module, centers: Mapping[str, Tensor], others: Collection[str]) -> Self:
        """Finds units in a frozen task network, and changes them in place; kernels compute what the network did.

        Args:
            task: The task network, whose batch norms are folded.
            centers: Training means of the layers that are measured.
            others: Layers whose features are wanted themselves.
        """
        found = {}
        for name, container, conv, relu in _measured(task, centers):
            if name not in others:
                bias = torch.zeros_like(centers[name]) if conv.bias is None else conv.bias.detach()
                conv.bias = None
                found[name] = container._modules[relu] = MeasuredReLU(bias, centers[name])
        return cls(found)

    @classmethod
    def by_rows(cls, task: nn.Module, centers: Mapping[str, Tensor]) -> Self:
        """The same on a CPU, of convolutions whose weights, and so their features, lie channels last."""
        found = {}
        for name, container, conv, relu in _measured(task, centers):
            if conv.weight.stride(1) == 1 and conv.weight.dtype == torch.float32:
                found[name] = container._modules[relu] = MeasuredReLU(None, centers[name])
        return cls(found)

    def expect(self, padding: Tensor | None) -> None:
        """Says which pixels of the next batch are padding."""
        for activation in self.activations.values():
            activation.padding = padding

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """Number, sum and sum of squares about the center `(3, channels)`, of the latest batch by layer."""
        for name, activation in self.activations.items():
            assert activation.moments is not None
            yield name, activation.moments
            # Whoever runs the network next may have other slices.
            activation.moments = activation.padding = None


def _measured(task: nn.Module, centers: Mapping[str, Tensor]) -> list[tuple[str, nn.Sequential, nn.Conv2d, str]]:
    """Those of `_pairs` that are measured; only a layer that is called once has one set of moments."""
    return [pair for pair in _pairs(task) if pair[0] in centers and f"{pair[0]}@2" not in centers]


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
    """Keeps the values alone; by kernels where there is a bias to add, on a CPU by rows."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, bias: Tensor | None, center: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, bias, center, weights)
        activations, sums = _programs(bias).activate(values, bias, center, weights)
        return activations, _numbered(sums, values, weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        values, bias, center, weights = ctx.saved_tensors
        activations, (_, total, squares) = gradients
        offset, factor = (total - 2 * squares * center).float(), (2 * squares).float()
        slopes = _programs(bias).activation_slopes(values, bias, weights, offset, factor, activations)
        return slopes, None, None, None


def _programs(bias: Tensor | None) -> Any:
    if bias is None:
        return rows
    from scantune.kernels import activation as kernels

    return kernels


def _numbered(sums: Tensor, values: Tensor, weights: Tensor | None) -> Tensor:
    """Sums `(2, channels)` below the number of pixels that they are of, `(3, channels)`."""
    pixels = values.numel() / values.shape[1]
    number = sums.new_full((1,), pixels) if weights is None else weights.sum(dtype=sums.dtype).view(1)
    return torch.cat([number.expand(1, values.shape[1]), sums])
