"""Whether work on a GPU could be recorded as a CUDA graph, found out without harm.

A recording that fails leaves the process unable to draw random numbers on the GPU, so that it must not be tried.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

Result = TypeVar("Result")

KNOWN = ("scantune", "torch", "torchvision", "monai")
"""Packages whose layers do the same work every time they are called."""


def foreign(networks: Iterable[nn.Module]) -> type | None:
    """The first layer of unknown make.

    A replay repeats what the device did, not what Python did: a layer that counts its calls in Python, or draws from
    Python's generator, would do the same for ever.
    """
    parts = (type(part) for network in networks for part in network.modules())
    return next((kind for kind in parts if kind.__module__.split(".")[0] not in KNOWN), None)


def rehearsed(work: Callable[[], Result]) -> tuple[Result, bool]:
    """Does the work, and watches whether the host waits for the device on the way, which no recording may."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return result, any("synchronizing CUDA operation" in str(warning.message) for warning in caught)
