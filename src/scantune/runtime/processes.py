"""Worker processes: one pool for cached cases, scans adapted side by side and jobs of a benchmark."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from scantune.errors import InputError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
TaskT = TypeVar("TaskT")

TASKS_BEFORE_WORKERS_PAY = 16
"""Short tasks that are done before a new process has imported everything."""

SHUTDOWN_SECONDS = 20.0
"""Time that a worker has to remove half-written files when it is interrupted."""


@dataclass(frozen=True)
class WorkerContext:
    """What a worker process knows about itself.

    Attributes:
        number: Its place in the pool, from 0; a replaced worker passes its number on.
        send: Sends a message about the current task to the process that owns the pool.
    """

    number: int
    send: Callable[[object], None]


@dataclass(frozen=True)
class TaskMessage(Generic[TaskT]):
    """A message that a worker sent while it was at a task."""

    task: TaskT
    content: Any


@dataclass(frozen=True)
class TaskDone(Generic[TaskT]):
    """A finished task."""

    task: TaskT
    result: Any


@dataclass(frozen=True)
class TaskFailed(Generic[TaskT]):
    """A task that raised an exception."""

    task: TaskT
    error: Exception


@dataclass(frozen=True)
class WorkerDied(Generic[TaskT]):
    """A task whose worker process ended without a result.

    Attributes:
        task: The task, which may be submitted again.
        started: Whether the worker had become ready; if not, it died while starting.
    """

    task: TaskT
    started: bool


PoolEvent = TaskMessage[TaskT] | TaskDone[TaskT] | TaskFailed[TaskT] | WorkerDied[TaskT]


class ProcessPool(Generic[TaskT]):
    """Worker processes that run one task each at a time; use as a context manager.

    Workers start when they are needed. A worker that dies takes only its own task with it: the task is reported by a
    `WorkerDied`, and a later `submit` starts a new worker. Ctrl-C reaches only the process that owns the pool, whose
    `with` block then ends the workers. Workers end by themselves when that process is gone.

    New processes import the program that started them, so a script must keep its own work under
    `if __name__ == "__main__":`.

    Args:
        prepare: Called once in each worker; returns the function that runs its tasks. Must be picklable.
        size: Number of workers.
        threads: Threads of each worker.
    """

    def __init__(
        self, prepare: Callable[[WorkerContext], Callable[[TaskT], object]], size: int, threads: int = 1
    ) -> None:
        self.prepare, self.size, self.threads = prepare, size, threads
        self._workers: dict[int, _Worker[TaskT]] = {}
        self.close = Finalize(self, _end_workers, (self._workers,), exitpriority=10)

    def __enter__(self) -> ProcessPool[TaskT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def busy(self) -> int:
        """Number of tasks that have been submitted and not ended."""
        return sum(worker.has_task for worker in self._workers.values())

    def submit(self, task: TaskT) -> None:
        """Give a task to a free worker; fewer than `size` tasks may be running."""
        self._free_worker().assign(task)

    def wait(self, seconds: float | None = None) -> list[PoolEvent[TaskT]]:
        """Return what has happened to running tasks, after `seconds` at the latest; possibly nothing."""
        events: list[PoolEvent[TaskT]] = []
        busy = {worker.pipe: number for number, worker in self._workers.items() if worker.has_task}
        for pipe in wait(list(busy), seconds):
            number = busy[pipe]  # type: ignore[index]
            try:
                event = self._workers[number].receive()
            except (EOFError, OSError):
                event = self._workers.pop(number).bury()
            if event is not None:
                events.append(event)
        return events

    def _free_worker(self) -> _Worker[TaskT]:
        for number in range(self.size):
            worker = self._workers.get(number)
            if worker is None or not (worker.has_task or worker.process.is_alive()):
                worker = self._workers[number] = _start_worker(self.prepare, number, self.threads)
            if not worker.has_task:
                return worker
        raise RuntimeError(f"All {self.size} workers of the pool are busy. Wait for one of them before you submit.")


def in_parallel(
    work: Callable[[ItemT], ResultT], items: Sequence[ItemT], workers: int | None = None
) -> Iterator[ResultT]:
    """Yield the results of a function in the order of the items.

    Args:
        work: A function that other processes can import.
        items: Its arguments, which are sent to other processes.
        workers: Number of processes; by default one for each core. One worker, or few items, run in this process.

    Raises:
        InputError: A worker process died.
    """
    if workers is None:
        workers = 1 if len(items) <= TASKS_BEFORE_WORKERS_PAY else cores()
    count = min(len(items), workers)
    if count <= 1:
        yield from map(work, items)
        return
    todo, results = enumerate(items), dict[int, ResultT]()
    with ProcessPool[tuple[int, ItemT]](functools.partial(_without_index, work), count) as pool:
        for index in range(len(items)):
            while index not in results:
                while pool.busy < count and (task := next(todo, None)) is not None:
                    pool.submit(task)
                for event in pool.wait():
                    if isinstance(event, TaskDone):
                        results[event.task[0]] = event.result
                    else:
                        _raise_failure(event)
            yield results.pop(index)


def _without_index(work: Callable[[ItemT], ResultT], _context: WorkerContext) -> Callable[[tuple[int, ItemT]], ResultT]:
    return lambda task: work(task[1])


def _raise_failure(event: PoolEvent[Any]) -> None:
    if isinstance(event, TaskFailed):
        raise event.error
    if isinstance(event, WorkerDied):
        require_started(event)
        raise InputError("A worker process died. Was there enough memory? Use fewer workers.")


def require_started(event: WorkerDied[Any]) -> None:
    """Raise an error if a worker died before it was ready, since its replacement would die, too.

    Raises:
        InputError: The worker never became ready.
    """
    if not event.started:
        raise InputError(
            "A worker process could not be started. Use one worker; a script of your own that uses several must keep "
            'its work under if __name__ == "__main__".'
        )


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_gpu(number: int) -> None:
    """Restrict a worker to one of several GPUs, by its number; call it before torch looks for GPUs."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        import torch

        shown = ",".join(map(str, range(torch.cuda.device_count())))
    gpus = [name for name in shown.split(",") if name]
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def when_gone(parent: int, then: Callable[[], object]) -> None:
    """Wait until a parent process is gone, even if it was killed, then call a function."""
    while os.getppid() == parent:
        time.sleep(0.5)
    then()


@dataclass
class _Worker(Generic[TaskT]):
    """A worker process, seen from the process that owns the pool.

    Attributes:
        process: The process.
        pipe: The pipe to it.
        tasks: Its current task, or nothing.
        started: Whether it has reported ready.
    """

    process: BaseProcess
    pipe: Connection
    tasks: list[TaskT]
    started: bool = False

    @property
    def has_task(self) -> bool:
        """Whether it is busy."""
        return bool(self.tasks)

    def assign(self, task: TaskT) -> None:
        """Send it a task."""
        self.tasks.append(task)
        try:
            self.pipe.send(task)
        except OSError:  # it has just died, which the next `receive` finds
            return

    def receive(self) -> PoolEvent[TaskT] | None:
        """Return the next event, or None for the report that the worker is ready."""
        kind, content = self.pipe.recv()
        self.started = True
        if kind is TaskMessage:
            return TaskMessage(self.tasks[0], content)
        if kind is TaskDone:
            return TaskDone(self.tasks.pop(), content)
        if kind is TaskFailed:
            return TaskFailed(self.tasks.pop(), content)
        return None

    def bury(self) -> WorkerDied[TaskT]:
        """Collect a process that has died."""
        self.process.join()
        self.pipe.close()
        return WorkerDied(self.tasks.pop(), self.started)


def _start_worker(
    prepare: Callable[[WorkerContext], Callable[[TaskT], object]], number: int, threads: int
) -> _Worker[TaskT]:
    context = multiprocessing.get_context("spawn")  # a fork of a process that has used torch's threads may hang
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, os.getpid(), prepare, number, threads))
    with _interrupts_ignored():
        process.start()
    theirs.close()
    return _Worker(process, ours, [])


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C, so that a process that is started meanwhile inherits this."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_workers(workers: dict[int, _Worker[Any]]) -> None:
    """End processes; one that is at a task is interrupted, and removes what it has half written."""
    for worker in workers.values():
        if worker.has_task:
            worker.process.terminate()
        worker.pipe.close()  # ends a worker that waits for a task
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    for worker in workers.values():
        worker.process.join(max(deadline - time.monotonic(), 0))
        worker.process.kill()
        worker.process.join()
    workers.clear()


def _serve(
    pipe: Connection,
    parent: int,
    prepare: Callable[[WorkerContext], Callable[[Any], object]],
    number: int,
    threads: int,
) -> None:
    """Run tasks in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=when_gone, args=(parent, _interrupt_then_exit), daemon=True).start()
    try:
        _limit_threads(threads)
        work = prepare(WorkerContext(number, lambda content: pipe.send((TaskMessage, content))))
        pipe.send((None, None))
        while True:
            task = pipe.recv()
            try:
                answer: tuple[type, object] = TaskDone, work(task)
            except Exception as error:
                answer = TaskFailed, _sendable(error)
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):  # the owner of the pool is gone, or wants no more
        return


def _limit_threads(threads: int) -> None:
    for name in ("OMP_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"):  # read when libraries are loaded
        os.environ[name] = str(threads)
    if "torch" in sys.modules:  # imported with the program that started this process
        sys.modules["torch"].set_num_threads(threads)


def _interrupt_then_exit() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SHUTDOWN_SECONDS)
    os._exit(1)


def _sendable(error: Exception) -> Exception:
    """Return an exception with its traceback as a note, or a plain one if it cannot be sent."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        ForkingPickler.dumps(error)
        copy.copy(error)  # fails as unpickling does, if the exception cannot be built from its arguments
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
