"""The same work on many scans, by several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 16
"""So many scans are done before a process would be ready, which has to import everything first."""


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], workers: int | None = None) -> Iterator[Result]:
    """Results of a function, in the order of the items.

    New processes import the program that started them: a script of one's own must have its work under
    `if __name__ == "__main__":`.

    Args:
        work: A function that other processes can import.
        items: What it is called with, and sent to other processes.
        workers: Number of processes; by default one for each core. With one, or few items, no other is started.
    """
    if workers is None:
        workers = 1 if len(items) <= FEW else cores()
    count = min(len(items), workers)
    if count <= 1:
        yield from map(work, items)
        return
    # Not forked: a process that has used torch's threads may hang in its copies.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_alone) as pool:
        try:
            yield from pool.map(work, items)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """Those that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_gpu(number: int) -> None:
    """Show the process of a number one of several GPUs; to be called before torch has looked for them."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        import torch

        shown = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = [name for name in shown.split(",") if name]
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def when_gone(parent: int, then: Callable[[], object]) -> None:
    """Do something when the process that started this one is gone, even without a word; returns only then."""
    while os.getppid() == parent:
        time.sleep(0.5)
    then()


def _alone() -> None:
    """One thread each, since there is a process for every core."""
    import torch

    torch.set_num_threads(1)
    os.environ["ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"] = "1"  # read when SimpleITK is imported, which is later
