"""Threads of this process that share work on a CPU: each takes a part of it, instead of a part of every operation.

Threads that share every single operation wait for each other a thousand times in a forward pass.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor, nn

from scantune.runtime.cuda_graph import unrepeatable_layer

Item = TypeVar("Item")
ResultT = TypeVar("ResultT")

MOST = 8
"""Threads, each of which has a batch in memory."""


class Threads:
    """Threads that share the cores; they end when they are let go of.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool = ThreadPoolExecutor(number, thread_name_prefix="crew")
        self._settle()

    def _settle(self) -> None:
        """Starts the threads, and has each use its share of the cores; others are left with as many as they had."""
        together = torch.get_num_threads()
        everyone = Barrier(self.number)

        def alone(_: int) -> None:
            torch.get_num_threads()  # a thread's first question sets its number to the process's
            torch.set_num_threads(max(together // self.number, 1))
            everyone.wait()

        list(self._pool.map(alone, range(self.number)))
        torch.set_num_threads(together)

    def each(self, work: Callable[[Item], ResultT], items: Iterable[Item]) -> list[ResultT]:
        """The results of all items, in their order, with gradients where the caller has them."""
        recorded = torch.is_grad_enabled()

        def one(item: Item) -> ResultT:
            with torch.set_grad_enabled(recorded):
                return work(item)

        return list(self._pool.map(one, items))


def number_for(network: nn.Module, images: Tensor) -> int:
    """How many threads pay for images `(slices, channels, *spatial)`; 1 where a layer may mind to be called by two."""
    number = min(torch.get_num_threads(), len(images), MOST)
    minds = unrepeatable_layer([network]) is not None or any(
        getattr(part, "alone", False) for part in network.modules()
    )
    return number if number > 1 and images.device.type == "cpu" and not minds else 1


def threads_for(network: nn.Module, images: Tensor) -> Threads | None:
    """Threads to predict images with; None where one does."""
    number = number_for(network, images)
    return Threads(number) if number > 1 else None
