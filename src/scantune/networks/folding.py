"""Batch norm folded into the convolution before it: same function, fewer operations."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

NORMS = (nn.BatchNorm2d, nn.BatchNorm3d)
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)


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
