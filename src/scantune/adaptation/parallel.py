"""Several processes that adapt to the scans of a run side by side; what comes of a scan is the same."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from scantune.adaptation.scan_run import Outcome, ScanObserver, ScanRun
from scantune.runtime.processes import (
    ProcessPool,
    TaskDone,
    TaskFailed,
    TaskMessage,
    WorkerContext,
    WorkerDied,
    choose_gpu,
    cores,
    require_started,
)
from scantune.scans.channels import ScanFiles

Scan = tuple[str, ScanFiles]


def side_by_side(run: ScanRun, scans: Mapping[str, ScanFiles], workers: int) -> Iterator[Outcome]:
    """Adapt to scans by several processes and yield outcomes as they are ready.

    If a process dies, for example for lack of memory, its scan is tried once more when all others are done, by a
    single process, and given up if that one dies, too.

    Args:
        run: What the scans share.
        scans: Their names and files.
        workers: Number of processes.
    """
    known = run.out.names()
    try:
        lost = yield from _adapt_all(run, scans.items(), workers)
        for scan in lost:
            if (yield from _adapt_all(run, [scan], 1)):
                reason = f"{scan[1][0]} could not be adapted to: its process died twice. Was there enough memory?"
                outcome = run.give_up(*scan, reason)
                run.observer.end(outcome)
                yield outcome
    finally:
        run.out.arrange([name for name in scans if name not in known])


def _adapt_all(run: ScanRun, scans: Iterable[Scan], workers: int) -> Generator[Outcome, None, list[Scan]]:
    """Adapt to scans, and return those whose processes died."""
    waiting, lost = deque(scans), list[Scan]()
    light = replace(run, observer=ScanObserver())  # a copy without the loaded model
    with ProcessPool[Scan](partial(_prepare, light), workers, max(cores() // workers, 1)) as pool:
        while waiting or pool.busy:
            while waiting and pool.busy < workers:
                run.observer.start(waiting[0][0])
                pool.submit(waiting.popleft())
            for event in pool.wait():
                match event:
                    case TaskMessage(_, step):
                        run.observer.step(*step)
                    case TaskDone(_, outcome):
                        run.observer.end(outcome)
                        yield outcome
                    case TaskFailed(_, error):  # it concerns the run, not the scan, such as a full disk
                        raise error
                    case WorkerDied(scan):
                        require_started(event)
                        lost.append(scan)
    return lost


def _prepare(run: ScanRun, context: WorkerContext) -> Callable[[Scan], Outcome]:
    """Return the function that adapts to one scan after another in a worker process."""
    if run.settings.device in ("auto", "cuda"):
        choose_gpu(context.number)
    run = replace(run, observer=_StepSender(context))
    return lambda scan: run.adapt(*scan)


class _StepSender(ScanObserver):
    """Sends every step to the process that owns the pool."""

    def __init__(self, context: WorkerContext) -> None:
        self.context = context

    def step(self, name: str, step: int, steps: int) -> None:
        """Send a step."""
        self.context.send((name, step, steps))
