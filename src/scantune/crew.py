"""Batches of a volume side by side on a CPU: one thread a core, each with batches of its own.

Threads that share the work of every single operation wait for each other a thousand times a step; threads that share
the batches wait once.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor, nn

from scantune.prior import Statistics

Item = TypeVar("Item")
Result = TypeVar("Result")


MOST = 8
"""Threads, each of which has a batch in memory."""


class Crew:
    """Threads that share the cores; they end when the crew is let go of.

    Args:
        moving: The parameters whose gradient is wanted.
        threads: How many.
    """

    def __init__(self, moving: Sequence[nn.Parameter], threads: int) -> None:
        self.moving, self.threads = moving, threads
        self.kept: float | None = None
        """Bytes that a slice keeps for its gradient, once they are known."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="crew")
        self._settle()

    def _settle(self) -> None:
        """Starts the threads, and has each use its share of the cores; others are left with as many as they had."""
        together = torch.get_num_threads()
        everyone = Barrier(self.threads)

        def alone(_: int) -> None:
            torch.get_num_threads()  # a thread's first question sets its number to the process's
            torch.set_num_threads(max(together // self.threads, 1))
            everyone.wait()

        list(self._pool.map(alone, range(self.threads)))
        torch.set_num_threads(together)

    def each(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results of all items, in their order, with gradients where the caller has them."""
        recorded = torch.is_grad_enabled()

        def one(item: Item) -> Result:
            with torch.set_grad_enabled(recorded):
                return work(item)

        return list(self._pool.map(one, items))

    def slopes(self, parts: Statistics, slope: Statistics) -> list[Tensor | None]:
        """The gradient at the moving parameters of what one batch adds, in one of the threads.

        Args:
            parts: The statistics of the batch.
            slope: The objective's gradient with respect to their sum over all batches, where it has one.
        """
        used = [(part, slope[key].to(part)) for key, part in parts.items() if key in slope and part.requires_grad]
        if not used:
            return [None] * len(self.moving)
        outputs, theirs = [part for part, _ in used], [one for _, one in used]
        return list(torch.autograd.grad(outputs, self.moving, theirs, allow_unused=True))

    def add(self, gradients: Iterable[Sequence[Tensor | None]]) -> None:
        """Adds the batches' gradients to `.grad` in their order, so that sums do not depend on who was first."""
        for each in gradients:
            for parameter, found in zip(self.moving, each, strict=True):
                if found is not None:
                    parameter.grad = found if parameter.grad is None else parameter.grad + found
