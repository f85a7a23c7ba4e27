"""The normaliser N_phi: the shallow image-to-image network in front, the part that adapts."""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from scantune.kernels import usable
from scantune.networks.dimensions import layer_types

MIN_EXPONENT = -50.0
"""Smallest exponent of a bump, about 1e-22: processors take many times longer for the tiniest numbers they hold."""


class Bump(nn.Module):
    """The paper's expressive activation exp(-x^2 / sigma^2), with one learnable sigma per channel."""

    def __init__(self, channels: int, dimensions: int = 2) -> None:
        super().__init__()
        self.sigma = nn.Parameter(torch.empty(channels, *[1] * dimensions))
        # The authors' code leaves sigma to the Glorot-uniform default of its framework.
        limit = (6 / (channels + 1)) ** 0.5
        nn.init.uniform_(self.sigma, -limit, limit)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(slices, channels, *spatial)` to the same shape, values in (0, 1]."""
        # The floor keeps a sigma that crosses zero from dividing by it.
        spread = self.sigma.square().clamp_min(1e-6)
        if usable(x):
            from scantune.kernels.triton.bump import bump

            return bump(x, spread.reciprocal().flatten())
        if self.training or torch.compiler.is_compiling():
            return torch.exp(-x.square() / spread)
        return _Exponential.apply(x, spread)  # type: ignore[no-any-return, no-untyped-call]


class _Exponential(torch.autograd.Function):
    """exp(-x^2 / spread) in place of its own intermediate results; differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spread: Tensor) -> Tensor:
        exponent = x.square() if x.dtype == spread.dtype else x.to(spread.dtype).square()
        result = exponent.mul_(spread.reciprocal().neg_()).clamp_min_(MIN_EXPONENT).exp_()
        ctx.save_for_backward(x, spread, result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, spread, result = ctx.saved_tensors
        slope = (gradients[0] * result).mul_(x)
        over = (0, *range(2, x.ndim))
        wider = (slope * x).sum(over).view_as(spread) / spread.square()
        return slope.mul_(-2 / spread).to(x.dtype), wider


class Normalizer(nn.Module):
    """N_phi: three convolutions of kernel 3, z = x + delta(x).

    Args:
        channels: Channels of the image, in and out.
        hidden: Channels of the two hidden layers.
        dimensions: 2 or 3.
    """

    def __init__(self, channels: int = 1, hidden: int = 16, dimensions: int = 2) -> None:
        super().__init__()
        convolution = layer_types(dimensions).convolution
        self.residual = nn.Sequential(
            convolution(channels, hidden, 3, padding=1),
            Bump(hidden, dimensions),
            convolution(hidden, hidden, 3, padding=1),
            Bump(hidden, dimensions),
            convolution(hidden, channels, 3, padding=1),
        )
        for layer in self.residual:
            if isinstance(layer, convolution):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    @classmethod
    def identity(cls, channels: int = 1, hidden: int = 16, dimensions: int = 2) -> Self:
        """Build a normaliser that changes nothing until it is adapted: its last convolution is zero."""
        normalizer = cls(channels, hidden, dimensions)
        last = normalizer.residual[-1]
        assert isinstance(last, nn.Conv2d | nn.Conv3d)
        nn.init.zeros_(last.weight)
        return normalizer

    def forward(self, x: Tensor) -> Tensor:
        """Map an image `(slices, channels, *spatial)` to the normalised image z of the same shape."""
        delta: Tensor = self.residual(x)
        return x + delta
