"""Several processes that adapt to the scans of a run side by side; what comes of a scan is the same."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from scantune.adaptation.outcomes import Outcome, ScanObserver
from scantune.adaptation.scan_run import ScanRun
from scantune.errors import InputError
from scantune.runtime.processes import choose_gpu, cores, when_gone

Scan = tuple[str, Path]

PATIENCE = 20.0
"""Seconds that a process has to tidy up when the run is stopped."""


AT_ONCE = 4
"""Processes that share a GPU by default: they take turns with it while others read, resample and write."""

EACH = 10 * 2**30
"""Bytes of a GPU that each of them may take."""

WORTH = 3
"""Scans that a process must get on a GPU to be worth the seconds in which it starts."""


def choose_workers(asked: int | None, scans: int, run: ScanRun) -> int:
    """How many processes adapt to scans.

    Args:
        asked: What the user wants; None leaves it to the machine.
        scans: How many there are.
        run: What they share.

    Raises:
        InputError: The user wants what cannot be.
    """
    if asked is not None and asked < 1:
        raise InputError(f"The number of workers must be 1 or more, got {asked}.")
    several = asked is not None and asked > 1
    if several and run.settings.site:
        raise InputError(
            "Scans of one site are adapted to one after another, since each starts where the last good one ended: "
            f"--site goes with one worker, got {asked}. Leave one of the two out."
        )
    alone = run.settings.site or not isinstance(run.source, str | Path)
    if several and alone:
        raise InputError(
            f"Each of {asked} workers loads the model by itself: give the path of a model file, or the name of a model "
            "that comes with scantune, or use one worker."
        )
    if asked is None:
        asked = 1 if alone else _paying(scans, run.settings.device)
    return max(min(asked, scans), 1)


def _paying(scans: int, device: str) -> int:
    """Processes that get more scans done in an hour than one of them does."""
    import torch

    from scantune.runtime.devices import find_device

    where = find_device(device)
    if where.type != "cuda":
        return 1
    room = torch.cuda.get_device_properties(where).total_memory // EACH
    return min(AT_ONCE, scans // WORTH, cores() // 2, room)


def side_by_side(run: ScanRun, scans: Mapping[str, Path], workers: int) -> Iterator[Outcome]:
    """Adapt to scans by several processes; outcomes come as they are ready.

    A process that dies, as where memory is short, is replaced. Its scan is tried once more when all others are done,
    with none at its side, and given up where that process dies, too.

    Args:
        run: What the scans share.
        scans: Their names and files.
        workers: Number of processes.
    """
    known = run.out.names()
    try:
        with Team(run, workers) as team:
            lost = yield from team.work(scans.items())
        for scan in lost:
            with Team(run, 1) as alone:
                if (yield from alone.work([scan])):
                    reason = f"{scan[1]} could not be adapted to: its process died twice. Was there enough memory?"
                    outcome = run.give_up(*scan, reason)
                    run.observer.end(outcome)
                    yield outcome
    finally:
        run.out.arrange([name for name in scans if name not in known])


@dataclass
class Member:
    """A process, the pipe to it, the scan it is at, and whether it has said a word yet."""

    process: BaseProcess
    pipe: Connection
    scan: Scan | None = None
    ready: bool = False


class Team:
    """Processes that live as long as they are needed; use as a context manager.

    Args:
        run: What the scans share.
        size: How many processes there are.
    """

    def __init__(self, run: ScanRun, size: int) -> None:
        self.run, self.size = run, size
        self.members: list[Member] = []

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes; one that is at a scan removes what it has half-written."""
        for member in self.members:
            if member.scan is not None:
                member.process.terminate()
            member.pipe.close()  # which ends one that waits for a scan
        for member in self.members:
            member.process.join(PATIENCE)
            member.process.kill()
            member.process.join()
        self.members = []

    def work(self, scans: Iterable[Scan]) -> Generator[Outcome, None, list[Scan]]:
        """Adapt to scans, and return those whose processes died."""
        queue, lost = deque(scans), list[Scan]()
        while queue or any(member.scan for member in self.members):
            self._hand_out(queue)
            for pipe in wait([member.pipe for member in self.members]):
                member = next(member for member in self.members if member.pipe is pipe)
                try:
                    answer = member.pipe.recv()
                except (EOFError, OSError):
                    lost += self._bury(member)
                    continue
                member.ready = True
                if isinstance(answer, Exception):
                    raise answer
                if isinstance(answer, Outcome):
                    member.scan = None
                    self.run.observer.end(answer)
                    yield answer
                elif answer:
                    self.run.observer.step(*answer)
        return lost

    def _hand_out(self, queue: deque[Scan]) -> None:
        """Give every process that has none a scan."""
        while queue:
            free = next((member for member in self.members if member.scan is None), None)
            if free is None:
                if len(self.members) == self.size:
                    return
                self.members.append(free := self._new())
            free.scan = queue.popleft()
            self.run.observer.start(free.scan[0])
            try:
                free.pipe.send(free.scan)
            except OSError:  # it has died, which is found when its answer is waited for
                continue

    def _new(self) -> Member:
        # Not forked: a process that has used torch's threads may hang in its copies.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = max(cores() // self.size, 1)
        light = replace(self.run, observer=ScanObserver())  # a copy, without the model that is loaded
        process = context.Process(target=_work, args=(theirs, light, threads, len(self.members)), daemon=True)
        with _unheard():
            process.start()
        theirs.close()
        return Member(process, ours)

    def _bury(self, member: Member) -> list[Scan]:
        member.process.join()
        member.pipe.close()
        self.members.remove(member)
        if not member.ready:
            raise InputError(
                "A process for adapting to scans side by side could not be started. Use one worker; a script of your "
                'own that uses several must have its work under if __name__ == "__main__".'
            )
        return [] if member.scan is None else [member.scan]


@contextmanager
def _unheard() -> Iterator[None]:
    """Let Ctrl-C, which is for the one who starts it, not reach a process that is started meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Relay(ScanObserver):
    """Sends word of every step to the process that asked for the work."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def step(self, name: str, step: int, steps: int) -> None:
        """Send it."""
        self.pipe.send((name, step, steps))


def _work(pipe: Connection, run: ScanRun, threads: int, number: int) -> None:
    """The life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gone = threading.Thread(
        target=when_gone, args=(os.getppid(), lambda: os.kill(os.getpid(), signal.SIGTERM)), daemon=True
    )
    gone.start()
    for name in ("OMP_NUM_THREADS", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS"):  # read when libraries are loaded
        os.environ[name] = str(threads)
    try:
        run = replace(run, observer=_Relay(pipe))
        if run.settings.device in ("auto", "cuda"):
            choose_gpu(number)
        if "torch" in sys.modules:  # with the program that started this one
            sys.modules["torch"].set_num_threads(threads)
        pipe.send(None)
        while True:
            name, path = pipe.recv()
            try:
                answer: Outcome | Exception = run.adapt(name, path)
            except Exception as error:  # of the run, not of the scan, such as a full disk
                answer = error
            pipe.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):  # nobody wants more
        return
