"""Jobs in processes of this machine."""

import multiprocessing
import os
import signal
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from scantune.benchmark.engines.base import RETRIES, Ended, Engine, EngineSettings, carry_out
from scantune.benchmark.jobs import Job, Place
from scantune.benchmark.store import Store
from scantune.runtime.processes import choose_gpu, when_gone


@dataclass
class Worker:
    """A process, the pipe to it, and the job it is at."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None


class LocalEngine(Engine):
    """Processes that live as long as the run; one that dies is replaced, and its job begun again.

    With several GPUs the processes are dealt out to them.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        super().__init__(store, settings)
        self.workers: list[Worker] = []
        self.deaths: dict[str, int] = {}

    @property
    def slots(self) -> int:
        """By default one worker."""
        return self.settings.workers or 1

    def start(self) -> None:
        """Start the processes."""
        self.workers = [self._new(number) for number in range(self.slots)]

    def submit(self, job: Job) -> None:
        """Hand a job to a free process."""
        self._give(next(worker for worker in self.workers if worker.job is None), job)

    def wait(self, seconds: float) -> list[Ended]:
        """What processes tell, and which of them died."""
        busy = {worker.pipe: number for number, worker in enumerate(self.workers) if worker.job is not None}
        ended = []
        for pipe in wait(list(busy), seconds):
            number = busy[pipe]  # type: ignore[index]
            worker = self.workers[number]
            try:
                ended.append(worker.pipe.recv())
                worker.job = None
            except (EOFError, OSError):
                ended += self._died(number)
        return ended

    def stop(self) -> None:
        """End the processes."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.process.join()
            worker.pipe.close()
        self.workers = []

    def _give(self, worker: Worker, job: Job) -> None:
        worker.job = job
        try:
            worker.pipe.send(job)
        except OSError:  # it has died, which `wait` will find
            return

    def _new(self, number: int) -> Worker:
        # Not forked: a process that has used torch's threads may hang in its copies.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        place = Place(self.store.finished, self.store.running, self.settings.device)
        process = context.Process(
            target=_work, args=(theirs, self.store, place, self.settings.threads, number), daemon=True
        )
        process.start()
        theirs.close()
        return Worker(process, ours)

    def _died(self, number: int) -> list[Ended]:
        """Replace a process, and begin its job again unless it has killed too many."""
        worker = self.workers[number]
        worker.process.join()
        worker.pipe.close()
        job = worker.job
        self.workers[number] = self._new(number)
        assert job is not None
        self.deaths[job.key] = self.deaths.get(job.key, 0) + 1
        if self.deaths[job.key] > RETRIES:
            return [Ended(job.key, f"Its process died {self.deaths[job.key]} times; was there enough memory?")]
        self._give(self.workers[number], job)
        return []


def _work(pipe: Connection, store: Store, place: Place, threads: int, number: int) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started it
    threading.Thread(target=when_gone, args=(os.getppid(), lambda: os._exit(1)), daemon=True).start()
    choose_gpu(number)
    import torch

    torch.set_num_threads(threads)
    while True:
        try:
            job = pipe.recv()
            pipe.send(carry_out(job, place, store))
        except (EOFError, OSError):
            return
