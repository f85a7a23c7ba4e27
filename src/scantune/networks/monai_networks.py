"""MONAI's networks for segmentation, built from plain arguments and without pretrained weights."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from scantune.errors import InputError, error_message

MONAI_NETWORKS = (
    "AttentionUnet",
    "BasicUNet",
    "BasicUNetPlusPlus",
    "DynUNet",
    "HighResNet",
    "MedNeXt",
    "SegResNet",
    "SegResNetDS",
    "SwinUNETR",
    "UNet",
    "UNETR",
    "VNet",
)
"""Classes of `monai.networks.nets` that a recipe or a model file may name. No other class is looked up."""

LARGEST_ARGUMENT = 2**16
"""Upper limit of whole numbers in arguments, which are widths, counts of layers and sizes."""


def monai_network(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Build an untrained network of MONAI.

    Args:
        name: A name of `MONAI_NETWORKS`.
        arguments: MONAI's own arguments, as JSON has them.

    Raises:
        InputError: There is no such network here, or it does not take the arguments.
    """
    kind = _find_class(name)
    known = inspect.signature(kind).parameters
    for argument, value in arguments.items():
        if argument not in known:
            raise InputError(f"monai:{name} has no argument {argument[:100]!r}; known: {', '.join(known)}.")
        _require_usable(name, argument, value)
    try:
        return kind(**arguments)
    except Exception as error:  # MONAI checks its arguments with exceptions of many types
        raise InputError(
            f"monai:{name} does not take these arguments ({type(error).__name__}: {error_message(error)}); see the "
            f"documentation of monai.networks.nets.{name}."
        ) from error


def monai_defaults(name: str, **usual: Any) -> dict[str, Any]:
    """Return the usual arguments that a network of MONAI has, such as `out_channels`."""
    known = inspect.signature(_find_class(name)).parameters
    return {argument: value for argument, value in usual.items() if argument in known}


def _find_class(name: str) -> type[nn.Module]:
    if name not in MONAI_NETWORKS:
        raise InputError(
            f"Unknown network 'monai:{name[:100]}'. Available: {', '.join(f'monai:{one}' for one in MONAI_NETWORKS)}."
        )
    from monai.networks import nets

    kind: type[nn.Module] | None = getattr(nets, name, None)
    if kind is None:
        raise InputError(f"The installed MONAI has no network {name}; install a newer one: pip install -U monai.")
    return kind


def _require_usable(name: str, argument: str, value: object) -> None:
    """Check one argument: no package beside MONAI is imported for it, and no list is made as long as it says."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for entry in inner:
        _require_usable(name, argument, entry)
    if isinstance(value, int) and abs(value) > LARGEST_ARGUMENT:
        raise InputError(
            f"The argument {argument} of monai:{name} must hold whole numbers up to {LARGEST_ARGUMENT}, got "
            f"{str(value)[:60]}."
        )
    if isinstance(value, str) and "nvfuser" in value.lower():
        raise InputError(f"The argument {argument} of monai:{name} must not need further packages, got {value[:60]!r}.")
