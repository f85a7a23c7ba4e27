"""Which parameters an adaptation moves: one choice, shared by all methods."""

from collections.abc import Callable
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from scantune.errors import InputError
from scantune.networks import AdaptableNetwork

MovingChoice = Literal["normalizer", "norm-affine", "adaptors", "all"]

Parameters = dict[str, nn.Parameter]


def normalizer(network: AdaptableNetwork) -> Parameters:
    """Return the parameters of N_phi, as in the paper."""
    return {f"normalizer.{name}": parameter for name, parameter in network.normalizer.named_parameters()}


def norm_affine(network: AdaptableNetwork) -> Parameters:
    """Return scales and shifts of the task network's norm layers, as in Wang et al. 2020; any norm, 2D or 3D."""
    found = {
        f"{name}.{key}": parameter
        for name, module in network.named_modules()
        if isinstance(module, _NormBase | nn.GroupNorm | nn.LayerNorm)
        for key, parameter in module.named_parameters(recurse=False)
    }
    if not found:
        raise InputError(
            "The network has no norm layer with a scale and a shift, so norm-affine has nothing to move; choose "
            "another setting of moving, such as normalizer."
        )
    return found


def adaptors(network: AdaptableNetwork) -> Parameters:
    """Return the parameters of the inserted adaptors, as in He et al. 2021."""
    found = {name: parameter for name, parameter in network.named_parameters() if name.startswith("adaptors.")}
    if not found:
        raise InputError(
            "The network has no adaptors to move; insert them with Method.equip or "
            "scantune.networks.insert_default_adaptors."
        )
    return found


def everything(network: AdaptableNetwork) -> Parameters:
    """Return every parameter of normaliser, task network and adaptors."""
    return dict(network.named_parameters())


PARAMETER_CHOICES: dict[MovingChoice, Callable[[AdaptableNetwork], Parameters]] = {
    "normalizer": normalizer,
    "norm-affine": norm_affine,
    "adaptors": adaptors,
    "all": everything,
}
