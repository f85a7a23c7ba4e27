"""Threads of this process that share work on a CPU: each takes some items, instead of a part of every operation.

Threads that share every operation wait for each other a thousand times in a forward pass.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor, nn

from scantune.runtime.cuda_graph import unrepeatable_layer

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

MAX_THREADS = 8
"""Upper limit of threads, as each has a batch in memory."""


class Threads:
    """Threads that share the cores; they end with this object.

    Args:
        number: Number of threads.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="scantune")
        self._settle()

    def _settle(self) -> None:
        """Start the threads, each with its share of the cores; other threads keep theirs."""
        together = torch.get_num_threads()
        everyone = Barrier(self.number)

        def alone(_: int) -> None:
            torch.get_num_threads()  # a thread's first question sets its number to the process's
            torch.set_num_threads(max(together // self.number, 1))
            everyone.wait()

        list(self._pool.map(alone, range(self.number)))
        torch.set_num_threads(together)

    def each(self, work: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
        """Return the results of all items, in their order, with gradients if the caller has them enabled."""
        recorded = torch.is_grad_enabled()

        def one(item: ItemT) -> ResultT:
            with torch.set_grad_enabled(recorded):
                return work(item)

        return list(self._pool.map(one, items))


def thread_count(network: nn.Module, images: Tensor) -> int:
    """Return the number of threads for images `(slices, channels, *spatial)`; 1 if a layer is not thread-safe."""
    number = min(torch.get_num_threads(), len(images), MAX_THREADS)
    if number < 2 or images.device.type != "cpu" or unrepeatable_layer([network]) is not None:
        return 1
    return 1 if any(getattr(part, "alone", False) for part in network.modules()) else number


def threads_for(network: nn.Module, images: Tensor) -> Threads | None:
    """Return threads to predict images with, or None if one is enough."""
    number = thread_count(network, images)
    return Threads(number) if number > 1 else None
