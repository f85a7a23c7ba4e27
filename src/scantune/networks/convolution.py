"""Convolutions made faster, with the same results: programs of our own, memory layout, and batch norms folded in."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight
from torch.nn.utils.fusion import fuse_conv_bn_eval

from scantune.kernels import usable
from scantune.kernels.cpu import convolution as on_cpu
from scantune.kernels.cpu.convolution import UpsampledAndSkip, mirrored

KERNEL_CHANNELS = {(16, 16), (16, 32), (32, 16), (16, 48), (48, 16)}
"""From and to how many channels our own kernel convolves faster than a library, in half precision."""

KERNEL_WEIGHT_INPUTS, KERNEL_WEIGHT_OUTPUTS = (16, 32, 48, 96), (16, 32)
"""From and to how many channels our own kernel gives the gradient by the weights faster than a library, likewise."""

MAX_NARROW_CHANNELS = 64
"""Channels up to which convolutions from or to one channel are done by our own kernels."""

MemoryLayout = Literal["channels first", "channels last"]

CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


class FastConvolution(nn.Conv2d):
    """A 3 x 3 convolution of stride 1 whose pictures keep their size."""

    def forward(self, input: Tensor | UpsampledAndSkip) -> Tensor:
        """Map `(slices, inputs, height, width)` to `(slices, outputs, height, width)`."""
        if isinstance(input, UpsampledAndSkip):
            return on_cpu.convolve(input, self.weight, self.bias)
        one, other = sorted((self.in_channels, self.out_channels))
        if not usable(input):
            # By its weights, features are channels last here: nothing else is known of what may follow.
            last = self.weight.stride(1) == 1 and not input.is_cuda
            if last and one == 1 and other <= MAX_NARROW_CHANNELS and input.dtype == torch.float32:
                return _Narrow.apply(input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
            if last and input.requires_grad and not self.weight.requires_grad:
                return _Frozen.apply(input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
            return super().forward(input)
        dtype = _precision(input)
        if one == 1 and other <= MAX_NARROW_CHANNELS:
            return _Narrow.apply(input.to(dtype), self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        if dtype.itemsize == 2 and self._is_few() and input.numel() // self.in_channels * other < 2**31:
            return _Few.apply(input.to(dtype), self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return super().forward(input)

    def takes(self, features: UpsampledAndSkip) -> bool:
        """Return whether features may come without being upsampled and joined."""
        frozen = not self.weight.requires_grad and (self.bias is None or not self.bias.requires_grad)
        last = self.weight.stride(1) == 1 and self.weight.dtype == features.small.dtype == features.large.dtype
        return frozen and last and features.small.device.type == "cpu" and not usable(features.small)

    def _is_few(self) -> bool:
        """Return whether there is a kernel for the convolution or for one of its gradients."""
        there, back = (self.in_channels, self.out_channels), (self.out_channels, self.in_channels)
        return there in KERNEL_CHANNELS or back in KERNEL_CHANNELS or (self.weight.requires_grad and _is_summed(*there))


class FastPointwise(nn.Conv2d):
    """A 1 x 1 convolution of stride 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Map `(slices, inputs, height, width)` to `(slices, outputs, height, width)`."""
        if not usable(input):
            if input.requires_grad and not self.weight.requires_grad and not input.is_cuda:
                return _Frozen.apply(input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
            return super().forward(input)
        if max(self.in_channels, self.out_channels) > MAX_NARROW_CHANNELS:
            return super().forward(input)
        from scantune.kernels.triton.pointwise import mix

        dtype = _precision(input)
        result = mix(input.to(dtype), self.weight.flatten(1).to(dtype))
        return result if self.bias is None else result + self.bias.to(dtype)[:, None, None]


def use_fast_convolutions(network: nn.Module) -> None:
    """Let our programs do a network's 3 x 3 and 1 x 1 convolutions; parameters, names and results stay."""
    for module in network.modules():
        if type(module) is not nn.Conv2d or (module.stride, module.dilation) != ((1, 1), (1, 1)) or not _plain(module):
            continue
        # They have nothing that an nn.Conv2d does not have, and hooks stay where they are.
        if module.kernel_size == (3, 3) and module.padding in ((1, 1), "same"):
            module.__class__ = FastConvolution
        if module.kernel_size == (1, 1) and module.padding in ((0, 0), "same", "valid"):
            module.__class__ = FastPointwise


def set_memory_layout(network: nn.Module, layout: MemoryLayout) -> None:
    """Lay out convolution weights in place, and so the features; numbers change by rounding only.

    Channels last is the faster layout for convolutions, on CPUs and GPUs, and for sums over all pixels.
    """
    for parameter in network.parameters():
        if parameter.ndim in CHANNELS_LAST_FORMATS:
            last = layout == "channels last"
            kind = CHANNELS_LAST_FORMATS[parameter.ndim] if last else torch.contiguous_format
            # A copy, because with one channel the two layouts are the same to PyTorch, but not to its convolutions.
            parameter.data = torch.empty_like(parameter, memory_format=kind).copy_(parameter.data)


@dataclass(frozen=True)
class Affine:
    """What folding does to a layer's outputs: new = scale * old + shift, `(channels,)` each."""

    scale: Tensor
    shift: Tensor


def fold_batch_norm(network: nn.Module) -> dict[str, Affine]:
    """Fold every batch norm that follows a convolution in an `nn.Sequential`, in place.

    Only neighbours in a sequential container are folded, because only there is it certain that nothing else reads
    the convolution's output. The network must be in evaluation mode and is meant to stay there.

    Returns:
        The name of each folded convolution, and the affine map of its outputs.
    """
    folded: dict[str, Affine] = {}
    for prefix, container, conv_name, norm_name in list(_pairs(network)):
        conv, norm = container._modules[conv_name], container._modules[norm_name]
        assert isinstance(conv, CONVOLUTIONS) and isinstance(norm, NORMS)
        assert norm.running_mean is not None and norm.running_var is not None
        gain = torch.ones_like(norm.running_mean) if norm.weight is None else norm.weight.detach()
        offset = torch.zeros_like(norm.running_mean) if norm.bias is None else norm.bias.detach()
        scale = gain * (norm.running_var + norm.eps).rsqrt()
        if bool((scale.abs() < 1e-6).any()):
            continue  # a gain of zero would erase what the experts see
        container._modules[conv_name] = fuse_conv_bn_eval(conv, norm)
        container._modules[norm_name] = nn.Identity()
        folded[f"{prefix}{conv_name}"] = Affine(scale, offset - scale * norm.running_mean)
    return folded


def _pairs(network: nn.Module) -> Iterator[tuple[str, nn.Sequential, str, str]]:
    """Yield prefix, container and child names of each convolution with a batch norm right behind it."""
    for name, container in network.named_modules():
        if not isinstance(container, nn.Sequential):
            continue
        children = list(container._modules.items())
        for (first, conv), (second, norm) in pairwise(children):
            foldable = isinstance(conv, CONVOLUTIONS) and isinstance(norm, NORMS)
            if foldable and norm.track_running_stats and not norm.training:
                yield (f"{name}." if name else ""), container, first, second


def _precision(features: Tensor) -> torch.dtype:
    """Return the precision in which a convolution of features is computed."""
    if torch.is_autocast_enabled(features.device.type):
        return torch.get_autocast_dtype(features.device.type)
    return features.dtype


def has_float32_weight_gradient(module: nn.Module) -> bool:
    """Return whether kernels sum the gradients of a module's parameters in single precision."""
    if not isinstance(module, FastConvolution) or not usable(module.weight):
        return False
    one, other = sorted((module.in_channels, module.out_channels))
    return (one == 1 and other <= MAX_NARROW_CHANNELS) or _is_summed(module.in_channels, module.out_channels)


def _plain(module: nn.Module) -> bool:
    return bool(module.groups == 1) and module.padding_mode == "zeros"


def taps(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights `(outputs, inputs, 3, 3)` as kernels read them, `(9, inputs, outputs)`."""
    return weight.detach().to(dtype).permute(2, 3, 1, 0).reshape(9, weight.shape[1], weight.shape[0])


class _Programs(Protocol):
    """What convolutions from and to one channel are made of."""

    def spread(self, picture: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor: ...

    def gather(self, features: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor: ...

    def correlate(self, picture: Tensor, features: Tensor) -> Tensor: ...


def _programs(features: Tensor) -> _Programs:
    if not usable(features):
        return on_cpu
    from scantune.kernels.triton import narrow as kernels

    return kernels


class _Narrow(torch.autograd.Function):
    """From one channel to many, or from many to one."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(features, weight)
        by = _programs(features)
        shift = None if bias is None else bias.detach()
        if weight.shape[1] == 1:
            return by.spread(features, taps(weight, torch.float32)[:, 0], shift)
        return by.gather(features, taps(weight, torch.float32)[..., 0], shift)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        features, weight = ctx.saved_tensors
        by = _programs(features)
        gradient, ours = gradients[0], None
        to_many = weight.shape[1] == 1
        # Seen from a pixel's input, its outputs lie on the other side.
        back = taps(weight, torch.float32).flip(0)
        if ctx.needs_input_grad[0]:
            ours = by.gather(gradient, back[:, 0], None) if to_many else by.spread(gradient, back[..., 0], None)
        if not ctx.needs_input_grad[1]:
            return ours, None, _sum(gradient, ctx.needs_input_grad[2])
        found = by.correlate(features, gradient) if to_many else by.correlate(gradient, features).flip(0)
        theirs = found.T.reshape(-1, 3, 3).unsqueeze(1 if to_many else 0)
        return ours, theirs.to(weight), _sum(gradient, ctx.needs_input_grad[2])


class _Frozen(torch.autograd.Function):
    """On a CPU, of weights that do not move: back by a convolution with the mirrored weights.

    That is what the gradient is. Libraries have programs of their own for it, which are slower where a convolution has
    more inputs than outputs.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.conv2d(features, weight, bias, padding="same")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return F.conv2d(gradients[0], mirrored(weight), padding="same"), None, None


def _is_summed(inputs: int, outputs: int) -> bool:
    return inputs in KERNEL_WEIGHT_INPUTS and outputs in KERNEL_WEIGHT_OUTPUTS


class _Few(torch.autograd.Function):
    """Between few channels: each of the three by our own kernel or by a library."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from scantune.kernels.triton.convolution import convolve

        ctx.save_for_backward(features if ctx.needs_input_grad[1] else None, weight)
        if weight.shape[1::-1] in KERNEL_CHANNELS:
            return convolve(features, taps(weight, features.dtype), None if bias is None else bias.detach())
        return F.conv2d(features, weight.to(features), None if bias is None else bias.to(features), padding=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        from scantune.kernels.triton.convolution import convolve
        from scantune.kernels.triton.weights import correlate

        features, weight = ctx.saved_tensors
        gradient, ours, theirs = gradients[0], None, None
        if ctx.needs_input_grad[0] and weight.shape[:2] in KERNEL_CHANNELS:
            ours = convolve(gradient, taps(weight, gradient.dtype).flip(0).transpose(1, 2))
        elif ctx.needs_input_grad[0]:
            ours = F.conv2d(gradient, mirrored(weight.to(gradient)), padding=1)
        if ctx.needs_input_grad[1] and _is_summed(*weight.shape[1::-1]):
            theirs = correlate(features, gradient).to(weight)
        elif ctx.needs_input_grad[1]:
            theirs = conv2d_weight(features, weight.shape, gradient, padding=1).to(weight)  # type: ignore[no-untyped-call]
        return ours, theirs, _sum(gradient, ctx.needs_input_grad[2])


def _sum(gradient: Tensor, wanted: bool) -> Tensor | None:
    """Return the bias's gradient."""
    precise = torch.float32 if gradient.is_cuda else torch.double
    return gradient.sum((0, 2, 3), dtype=precise).float() if wanted else None
