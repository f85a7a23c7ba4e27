"""Work of a GPU that is recorded once, as a CUDA graph, and from then on asked for as a whole.

A recording that fails leaves the process unable to draw random numbers on the GPU, so that it must not be tried: work
is rehearsed, which shows whether it could be recorded.
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


class CudaGraph:
    """The one holder of a CUDA graph.

    Args:
        generators: Those that the work draws from, beside the device's own; whoever replays it seeds them before.
        stream: Where to record; by default on one of its own.
    """

    def __init__(self, generators: Iterable[torch.Generator] = (), stream: torch.cuda.Stream | None = None) -> None:
        self.graph, self.stream = torch.cuda.CUDAGraph(), stream
        for generator in generators:
            self.graph.register_generator_state(generator)

    def rehearse(self, work: Callable[[], Result]) -> tuple[Result, str]:
        """Does the work, and watches whether the host waits for the device on the way, which no recording may.

        Returns:
            The result, and what keeps the work from being recorded; empty where nothing does.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = work()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = any("synchronizing CUDA operation" in str(warning.message) for warning in caught)
        return result, "the network waits for the GPU while it computes" if waits else ""

    def record(self, work: Callable[[], Result]) -> Result:
        """Notes the work without doing it; gives the tensors in which each replay leaves the result."""
        # Other threads may go on using the GPU meanwhile.
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Does what was recorded, on what now stands in the tensors that the work reads."""
        self.graph.replay()
