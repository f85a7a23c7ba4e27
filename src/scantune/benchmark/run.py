"""Benchmark: the jobs of an experiment, those that are not done yet, and the rows of all that are."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scantune.benchmark.engines import Engine, JobOutcome
from scantune.benchmark.expand import JobGraph, Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, Job
from scantune.benchmark.store import Store
from scantune.config.toml import toml_text
from scantune.errors import InputError
from scantune.evaluation.rows import ROWS_FILE, ScoreRow, read_rows, write_parquet, write_rows
from scantune.scans.files import require_writable, write_text

POLL_SECONDS = 0.5
"""Seconds between two checks of the progress of running jobs."""


class BenchObserver:
    """Callbacks of a benchmark; these do nothing."""

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """Receive the jobs to run, and the number of jobs that were done before."""

    def start(self, job: Job) -> None:
        """Receive a job that starts."""

    def tick(self, store: Store) -> None:
        """Refresh the display, several times a minute."""

    def end(self, job: Job, ended: JobOutcome) -> None:
        """Receive a job that ended."""


@dataclass
class BenchSummary:
    """The outcome of a benchmark run.

    Attributes:
        rows: All finished rows of the experiment.
        jobs: Jobs of the selection.
        already: Those that were done before.
        done: Those that were done now.
        failed: Those that failed, and those that could not begin because of it, with the reasons.
    """

    rows: list[ScoreRow] = field(default_factory=list)
    jobs: int = 0
    already: int = 0
    done: int = 0
    failed: list[tuple[Job, str]] = field(default_factory=list)

    @property
    def versions(self) -> list[str]:
        """Return the versions of scantune that made the rows, in order of appearance."""
        return list(dict.fromkeys(row.commit for row in self.rows))


def bench(
    experiment: Experiment,
    out: Path | str,
    engine: Callable[[Store], Engine] | None,
    selection: Selection | None = None,
    observer: BenchObserver | None = None,
) -> BenchSummary:
    """Run the jobs of an experiment that are not done yet.

    Args:
        experiment: What to run.
        out: The bench folder; see `scantune.store`.
        engine: Makes the engine that runs the jobs; None only collects the rows of those that are done.
        selection: Which part of the experiment to run; rows of all parts are collected.
        observer: Receives the progress.

    Raises:
        InputError: The run cannot begin: unknown rows or centres, scans that are not there, ...
    """
    folder, chosen = Path(out), selection or Selection()
    require_writable(folder)
    store = Store(folder)
    full = experiment.with_seeds(chosen.seeds)
    graph = expand(full, cache=str((folder / "scans").resolve()))
    jobs = graph.chosen(chosen)
    with store.alone():
        store.open()
        write_text(folder / "experiment.toml", experiment_text(full))
        ledger = RowCollector(store, graph)
        left = unfinished(jobs, store)
        summary = BenchSummary(jobs=len(jobs), already=len(jobs) - len(left))
        ledger.write()
        if engine is not None:
            JobScheduler(store, ledger, observer or BenchObserver(), summary).do(left, engine)
        summary.rows = ledger.rows()
        write_parquet(folder / "rows.parquet", summary.rows)
    return summary


def unfinished(jobs: Sequence[Job], store: Store) -> list[Job]:
    """Return the jobs that are not done, without those that only finished rows need: their models may be gone."""
    needed: set[str] = set()

    def need(job: Job) -> None:
        if job.key not in needed and not store.has(job.key):
            needed.add(job.key)
            for before in job.inputs:
                need(before)

    for job in jobs:
        if isinstance(job, Adaptation):
            need(job)
    return [job for job in jobs if job.key in needed]


class RowCollector:
    """The rows of all finished jobs of an experiment, in its order. The rows of each job are read once."""

    def __init__(self, store: Store, graph: JobGraph) -> None:
        self.store, self.graph = store, graph
        self.known: dict[str, list[ScoreRow]] = {}

    def rows(self) -> list[ScoreRow]:
        """Return the rows of all finished jobs, under the names that the experiment gives them."""
        return [
            replace(row, method=job.row, tier=job.tier, cohort=job.cohort, data=job.scan.data)
            for job in self.graph.rows
            for row in self._of(job)
        ]

    def write(self) -> None:
        """Write the file of all rows."""
        write_rows(self.store.folder / ROWS_FILE, self.rows())

    def _of(self, job: Adaptation) -> list[ScoreRow]:
        if job.key not in self.known:
            if not self.store.has(job.key):
                return []
            self.known[job.key] = _rows_of(self.store.finished / job.key)
        return self.known[job.key]


def _rows_of(folder: Path) -> list[ScoreRow]:
    """Return the rows of a finished job.

    Raises:
        InputError: They are damaged, or of another job.
    """
    again = f"Remove the folder {folder} to run the job again."
    try:
        rows = read_rows(folder)
    except InputError as error:
        raise InputError(f"{error} {again}") from error
    for row in rows:
        if row.job != folder.name:
            raise InputError(f"{folder / ROWS_FILE} holds a row of the job {row.job!r}, not of its own. {again}")
    return rows


class JobScheduler:
    """A scheduler that passes jobs to an engine as soon as their inputs are finished.

    Args:
        store: Where finished jobs are, and go to.
        ledger: Is written again whenever there are further rows.
        observer: Receives the progress.
        summary: Receives the outcome of the jobs.
    """

    def __init__(self, store: Store, ledger: RowCollector, observer: BenchObserver, summary: BenchSummary) -> None:
        self.store, self.ledger, self.observer, self.summary = store, ledger, observer, summary
        self.finished: set[str] = set()
        self.broken: dict[str, Job] = {}

    def do(self, jobs: Sequence[Job], make: Callable[[Store], Engine]) -> None:
        """Run the jobs, as many at a time as the engine takes."""
        self.finished = {needed.key for job in jobs for needed in job.inputs if self.store.has(needed.key)}
        waiting = {job.key: job for job in jobs}
        self.observer.begin(list(waiting.values()), self.summary.already)
        if not waiting:
            return
        running: dict[str, Job] = {}
        with make(self.store) as engine:
            while waiting or running:
                self._drop(waiting)
                for job in self._ready(waiting, engine.slots - len(running)):
                    running[job.key] = waiting.pop(job.key)
                    self.observer.start(job)
                    engine.submit(job)
                if running:
                    for ended in engine.wait(POLL_SECONDS):
                        self._note(running.pop(ended.key), ended)
                elif waiting:
                    time.sleep(POLL_SECONDS)
                self.observer.tick(self.store)

    def can_begin(self, job: Job) -> bool:
        """Return whether all inputs of a job are finished."""
        return all(needed.key in self.finished for needed in job.inputs)

    def _ready(self, waiting: dict[str, Job], free: int) -> list[Job]:
        return list(itertools.islice(filter(self.can_begin, waiting.values()), max(free, 0)))

    def _drop(self, waiting: dict[str, Job]) -> None:
        """Give up jobs that need one that failed."""
        for job in list(waiting.values()) if self.broken else []:
            cause = next((needed for needed in job.inputs if needed.key in self.broken), None)
            if cause is not None:
                self.broken[job.key] = waiting.pop(job.key)
                self.summary.failed.append((job, f"It needs what failed: {cause.title}."))

    def _note(self, job: Job, ended: JobOutcome) -> None:
        self.observer.end(job, ended)
        if ended.reason:
            self.broken[job.key] = job
            self.summary.failed.append((job, ended.reason))
            self.store.note_failure(job.key, f"{job.title}\n{ended.reason}\n\n{ended.details}")
            return
        self.finished.add(job.key)
        self.summary.done += 1
        if isinstance(job, Adaptation):
            self.ledger.write()


def experiment_text(experiment: Experiment) -> str:
    """Return the tables of an experiment as TOML."""
    return toml_text(experiment.tables, f"The experiment {experiment.name}, as scantune bench ran it.")
