"""Jobs in processes of this machine."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from scantune.benchmark.engines.base import MAX_RETRIES, Engine, EngineSettings, JobOutcome, run_job
from scantune.benchmark.jobs import Job, JobEnvironment
from scantune.benchmark.store import Store
from scantune.runtime.processes import ProcessPool, TaskDone, TaskFailed, WorkerContext, WorkerDied, choose_gpu


class LocalEngine(Engine):
    """Processes that live as long as the run; one that dies is replaced, and its job starts again.

    With several GPUs the processes are spread over them.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        super().__init__(store, settings)
        self.deaths = Counter[str]()

    @property
    def slots(self) -> int:
        """Return the number of workers, by default one."""
        return self.settings.workers or 1

    def start(self) -> None:
        """Open the pool of processes."""
        settings = self.settings
        environment = JobEnvironment(self.store.finished, self.store.running, settings.device, settings.network)
        self.pool = ProcessPool[Job](partial(_prepare, self.store, environment), self.slots, self.settings.threads)

    def submit(self, job: Job) -> None:
        """Hand a job to a free process."""
        self.pool.submit(job)

    def wait(self, seconds: float) -> list[JobOutcome]:
        """Return the jobs that ended, and start those again whose process died."""
        ended = []
        for event in self.pool.wait(seconds):
            if isinstance(event, TaskDone):
                ended.append(event.result)
            elif isinstance(event, TaskFailed):
                raise event.error
            elif isinstance(event, WorkerDied):
                ended += self._retry(event.task)
        return ended

    def stop(self) -> None:
        """End the processes."""
        self.pool.close()

    def _retry(self, job: Job) -> list[JobOutcome]:
        """Start a job again, unless too many processes died at it."""
        self.deaths[job.key] += 1
        if self.deaths[job.key] > MAX_RETRIES:
            return [JobOutcome(job.key, f"Its process died {self.deaths[job.key]} times; was there enough memory?")]
        self.pool.submit(job)
        return []


def _prepare(store: Store, environment: JobEnvironment, context: WorkerContext) -> Callable[[Job], JobOutcome]:
    """Return the function that runs one job after another in a worker process."""
    choose_gpu(context.number)
    return lambda job: run_job(job, environment, store)
