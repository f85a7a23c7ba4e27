"""The task network S_theta of the paper: a U-Net of 14 convolution units."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.kernels import usable
from scantune.kernels.cpu.convolution import UpsampledAndSkip
from scantune.networks.convolution import CHANNELS_LAST_FORMATS, FastConvolution
from scantune.networks.dimensions import layer_types


class ConvUnit(nn.Sequential):
    """Convolution, batch norm, ReLU. The convolution's outputs are the CNN experts."""

    def __init__(self, inputs: int, outputs: int, dimensions: int) -> None:
        kind = layer_types(dimensions)
        super().__init__()
        self.conv = kind.convolution(inputs, outputs, 3, padding=1, bias=False)
        # Momentum and eps are those of the authors' framework, in PyTorch's convention.
        self.norm = kind.batch_norm(outputs, eps=1e-3, momentum=0.01)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, input: Tensor) -> Tensor:
        """Map `(slices, inputs, *spatial)` to `(slices, outputs, *spatial)`."""
        norm = self.norm
        if not (self.training and usable(input) and isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d)):
            result: Tensor = super().forward(input)  # type: ignore[no-untyped-call]
            return result
        from scantune.kernels.triton.norm import norm_relu

        return norm_relu(self.conv(input), norm)


class UNetLevel(nn.Sequential):
    """Two convolution units at one resolution."""

    def __init__(self, inputs: int, outputs: int, dimensions: int) -> None:
        super().__init__()
        self.first = ConvUnit(inputs, outputs, dimensions)
        self.second = ConvUnit(outputs, outputs, dimensions)


class UNet(nn.Module):
    """S_theta: four levels, three poolings, skip connections, linear upsampling, a 1x1 classifier.

    With the default width the 14 units have 2 (16 + 32 + 64 + 128 + 64 + 32 + 16) = 704 channels.

    Args:
        channels: Channels of the image.
        classes: Output channels (background included).
        width: Channels of the first level.
        dimensions: 2 or 3.
    """

    def __init__(self, channels: int = 1, classes: int = 4, width: int = 16, dimensions: int = 2) -> None:
        super().__init__()
        kind = layer_types(dimensions)
        self.linear = kind.linear
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            UNetLevel(inputs, outputs, dimensions)
            for inputs, outputs in zip([channels, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(
            UNetLevel(deep + skip, skip, dimensions) for deep, skip in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.pool = kind.max_pool(2)
        self.classify = kind.convolution(width, classes, 1, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        """Map normalised images `(slices, channels, *spatial)` to logits `(slices, classes, *spatial)`."""
        least = 2 ** (len(self.down) - 1)
        if min(z.shape[2:]) < least:
            raise InputError(
                f"The network halves pictures {len(self.down) - 1} times and needs at least {least} pixels along each "
                f"axis, but got {tuple(z.shape[2:])}; give a larger size in the preprocessing."
            )
        skips: list[Tensor] = []
        x = z
        for level in self.down[:-1]:
            skip, x = self._pooled(level(x))
            skips.append(skip)
        x = self.down[-1](x)
        for level, skip in zip(self.up, reversed(skips), strict=True):
            x = level(self._joined(x, skip, level.get_submodule("first.conv")))
        return self.classify(x)  # type: ignore[no-any-return]

    def _pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features as they are, and pooled."""
        if usable(x) and x.ndim == 4 and not any(size % 2 for size in x.shape[2:]):
            from scantune.kernels.triton.pooling import halve

            return halve(x)
        if x.device.type == "cpu" and x.ndim == 4 and x.requires_grad and not self.training:
            return x, _Pooled.apply(x)  # type: ignore[no-untyped-call]
        return x, self.pool(x)

    def _joined(self, x: Tensor, skip: Tensor, conv: nn.Module) -> Tensor | UpsampledAndSkip:
        """Join features, upsampled to the size of the skip connection, with the skip, for a convolution."""
        doubled = all(new == 2 * old for new, old in zip(skip.shape[2:], x.shape[2:], strict=True))
        if usable(x) and x.ndim == 4 and doubled and x.dtype == skip.dtype:
            from scantune.kernels.triton.upsampling import double_beside

            return double_beside(x, skip)
        if doubled and isinstance(conv, FastConvolution) and conv.takes(beside := UpsampledAndSkip(x, skip)):
            return beside
        return torch.cat([self._upsample(x, skip.shape[2:]), skip], dim=1)

    def _upsample(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if x.is_cuda and all(new == 2 * old for new, old in zip(size, x.shape[2:], strict=True)):
            return upsample_by_two(x)
        up = F.interpolate(x, size=list(size), mode=self.linear, align_corners=False)
        if up.requires_grad and x.stride(1) == 1 and not torch.compiler.is_compiling():
            # Its gradient comes as a part of the concatenation's, which PyTorch's adjoint takes five times longer for.
            up.register_hook(_compact)  # type: ignore[no-untyped-call]
        return up


class _Pooled(torch.autograd.Function):
    """The largest of each four pixels; keeps where they are, not all pixels, which PyTorch keeps for their shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result, places = F.max_pool2d(x, 2, return_indices=True)
        ctx.save_for_backward(places)
        ctx.like = torch.empty_like(x, device="meta")
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (places,) = ctx.saved_tensors
        like = torch.empty_like(ctx.like, device=gradients[0].device)  # its shape and layout are read, not its numbers
        settings = ([2, 2], [2, 2], [0, 0], [1, 1], False)
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(gradients[0], like, *settings, places)  # type: ignore[no-any-return]


def _compact(gradient: Tensor) -> Tensor:
    """Make a gradient channels last, without gaps in memory."""
    return gradient.contiguous(memory_format=CHANNELS_LAST_FORMATS[gradient.ndim])


def upsample_by_two(x: Tensor) -> Tensor:
    """Upsample `(slices, channels, *spatial)` linearly by two, as a stencil.

    The same numbers as `F.interpolate`, whose gradient on a GPU adds up with atomics: slow, and in no fixed order.
    """
    if not usable(x):
        for axis in range(2, x.ndim):
            x = _doubled(x, axis)
        return x
    from scantune.kernels.triton import upsampling

    if x.ndim == 4:
        return upsampling.double(x)
    # A volume is a stack of pictures, once its depth is doubled.
    pictures = _doubled(x, 2).movedim(2, 1)
    larger = upsampling.double(pictures.flatten(0, 1))
    return larger.view(*pictures.shape[:2], *larger.shape[1:]).movedim(1, 2)


def _doubled(x: Tensor, axis: int) -> Tensor:
    size = x.shape[axis]
    before = torch.cat([x.narrow(axis, 0, 1), x.narrow(axis, 0, size - 1)], axis)
    after = torch.cat([x.narrow(axis, 1, size - 1), x.narrow(axis, size - 1, 1)], axis)
    pair = torch.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis + 1)
    return pair.flatten(axis, axis + 1)
