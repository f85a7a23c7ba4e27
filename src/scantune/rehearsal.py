"""Whether work on a GPU could be recorded as a CUDA graph, found out without harm.

A recording that fails leaves the process unable to draw random numbers on the GPU, so that it must not be tried.
"""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


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
