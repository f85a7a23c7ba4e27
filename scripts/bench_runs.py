"""Run the jobs of several experiments in one pool of processes, with scans that are simulated ahead.

`scripts/tier1.py` and `scripts/paper_runs.py` say which experiments, and in which order. A store has `jobs/` as a bench
folder has it; `collect_rows` makes a bench folder of every experiment in it, whose jobs are those of the store.
"""

import csv
import functools
import itertools
import multiprocessing
import os
import shutil
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from scantune.benchmark.engines import EngineSettings, JobOutcome, LocalEngine
from scantune.benchmark.expand import JobGraph
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, FineTuning, Job, PriorFitting, Training
from scantune.benchmark.run import BenchObserver, BenchSummary, JobScheduler, RowCollector, bench
from scantune.benchmark.store import Store
from scantune.evaluation.rows import ScoreRow
from scantune.training.held_out import SimulatedScan
from scantune.training.sources import SPLITS, SimulatedSource

LOG = "jobs.csv"
SHARES = {"prostate": 3, "cardiac": 4, "spine": 1, "brain": 4, "wmh": 2, "registration": 2}
"""Of the processes that simulate, by how long the people take that networks are trained on."""

Unit = tuple[SimulatedSource, str, str, int]
"""A person to simulate: where from, centre, split, number."""


def anatomy_of(cohort: str) -> str:
    """The name of a cohort without its version."""
    return cohort.removesuffix("-v2")


def strong(jobs: Iterable[Job]) -> list[str]:
    """Keys of the networks that have a prior: almost all jobs wait for one of them."""
    return list(dict.fromkeys(job.network.key for job in jobs if isinstance(job, PriorFitting)))


class Ahead:
    """Simulates people into the cache of a store, by processes of their own, in the order they are needed in.

    Every cohort has processes of its own, which make its anatomy once. Once what networks are made from is there, they
    go on out of the way of others.
    """

    def __init__(self, jobs: Sequence[Job], processes: int) -> None:
        self.needs = {job.key: needs(job) for job in jobs}
        urgent = {unit for job in jobs if not isinstance(job, Adaptation | FineTuning) for unit in self.needs[job.key]}
        self.plans: dict[str, list[tuple[Unit, bool]]] = defaultdict(list)
        for unit in dict.fromkeys(unit for job in jobs for unit in self.needs[job.key]):
            self.plans[unit[0].cohort].append((unit, unit not in urgent))
        for plan in self.plans.values():
            plan.sort(key=lambda entry: entry[1])
        self.processes, self.done, self.began = processes, set[Unit](), time.monotonic()

    def start(self) -> None:
        """Start the processes; they end with this one."""
        context = multiprocessing.get_context("spawn")
        shares = {cohort: SHARES[anatomy_of(cohort)] for cohort in self.plans}
        for cohort, plan in self.plans.items():
            pool = context.Pool(min(max(self.processes * shares[cohort] // sum(shares.values()), 1), len(plan)))
            threading.Thread(target=self._follow, args=(cohort, plan, pool), daemon=True).start()

    def ready(self, job: Job) -> bool:
        """Whether everybody whom a job needs was simulated."""
        return self.done.issuperset(self.needs[job.key])

    def _follow(self, cohort: str, plan: list[tuple[Unit, bool]], pool: Any) -> None:
        urgent = sum(not later for _, later in plan)
        try:
            for count, unit in enumerate(pool.imap_unordered(simulate, plan), 1):
                self.done.add(unit)
                if count in (urgent, len(plan)):
                    say(f"{cohort}: {count} people simulated after {time.monotonic() - self.began:.0f} s")
        finally:  # jobs can do without: they simulate whom they do not find
            self.done.update(unit for unit, _ in plan)
            pool.terminate()


def needs(job: Job) -> tuple[Unit, ...]:
    """The people that a job is about."""
    if isinstance(job, Adaptation):
        scan = job.scan
        return ((_any(scan.source), scan.site, "test", scan.number),) if isinstance(scan, SimulatedScan) else ()
    plan = job.plan if isinstance(job, Training) else job.network.plan  # type: ignore[attr-defined]
    source = plan.source
    if not isinstance(source, SimulatedSource):
        return ()
    centre = source.centre or source.known.source
    there = source.known.centres[centre].splits
    counts = {split: getattr(source, split) if getattr(source, split) is not None else there[split] for split in SPLITS}
    return tuple((_any(source), centre, split, number) for split, count in counts.items() for number in range(count))


def _any(source: SimulatedSource) -> SimulatedSource:
    """The same people, wherever networks are trained: one source, whose anatomy is made once."""
    return SimulatedSource(source.cohort, slices=source.slices, seed=source.seed, cache=source.cache)


def simulate(plan: tuple[Unit, bool]) -> Unit:
    """Simulate a person, or find that it has been done; behind all others where it is not urgent."""
    import torch

    unit, later = plan
    if later and not os.nice(0):
        os.nice(10)
    torch.set_num_threads(1)
    source, centre, split, number = unit
    for _ in _same(source).people(centre, split, torch.device("cpu"), number, number + 1):
        pass
    return unit


@functools.lru_cache(maxsize=8)
def _same(source: SimulatedSource) -> SimulatedSource:
    return source


class Pool(LocalEngine):
    """Processes that get ready while scans are simulated.

    Until the networks that most jobs wait for are there, only as many work as there are of these: a run that is stopped
    early has some networks rather than halves of twice as many. Without such networks, all work from the beginning.
    """

    def __init__(self, store: Store, settings: EngineSettings, ahead: Ahead, urgent: Sequence[str]) -> None:
        super().__init__(store, settings)
        self.ahead, self.urgent, self.started = ahead, urgent, False

    @property
    def slots(self) -> int:
        """All processes, or as many as there are urgent jobs."""
        waiting = self.started and not all(self.store.has(key) for key in self.urgent)
        return min(super().slots, len(self.urgent)) if waiting else super().slots

    def start(self) -> None:
        """Start both."""
        super().start()
        self.started = True
        self.ahead.start()


class Journal(BenchObserver):
    """Writes down when jobs began and ended, and says now and then how far it is.

    Args:
        path: The file.
        names: The experiment of each job, by key.
    """

    def __init__(self, path: Path, names: Mapping[str, str]) -> None:
        self.file, self.names = path.open("a", newline=""), names
        self.began: dict[str, float] = {}
        self.left: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.said = self.since = time.monotonic()

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """Count."""
        self.left.update(job.kind for job in jobs)
        say(f"{done} jobs were done before; to do: {dict(self.left)}")

    def start(self, job: Job) -> None:
        """Note the time."""
        self.began[job.key] = time.monotonic()

    def end(self, job: Job, ended: JobOutcome) -> None:
        """Write a line."""
        began, now = self.began.pop(job.key), time.monotonic()
        what = job.row if isinstance(job, Adaptation) else job.title
        line = [job.key, job.kind, self.names[job.key], what, f"{began - self.since:.1f}", f"{now - began:.2f}"]
        csv.writer(self.file).writerow([*line, ended.reason])
        self.file.flush()
        self.done[job.kind] += 1
        if ended.reason:
            say(f"FAILED {self.names[job.key]}, {job.title}: {ended.reason}")

    def tick(self, store: Store) -> None:
        """Every 15 seconds."""
        if time.monotonic() - self.said < 15:
            return
        self.said = time.monotonic()
        at = [f"{told['done']}/{told['steps']}" for told in store.progress().values() if told.get("steps", 0) > 200]
        say(f"done {dict(self.done)} of {dict(self.left)}; training at {' '.join(sorted(at))}")


class Paced(JobScheduler):
    """Begins jobs when their scans were simulated."""

    ahead: Ahead

    def can_begin(self, job: Job) -> bool:
        """Also asks for the scans."""
        return super().can_begin(job) and self.ahead.ready(job)


class Quiet(RowCollector):
    """Is written by `collect_rows` alone: with thousands of rows, once for every job is often."""

    def write(self) -> None:
        """Nothing."""


def do(
    left: Sequence[Job],
    store: Store,
    graphs: Mapping[str, JobGraph],
    settings: EngineSettings,
    simulators: int,
    *,
    urgent: Sequence[str] = (),
    scheduler: Callable[..., Paced] = Paced,
    pool: Callable[..., Pool] = Pool,
    journal: Callable[..., Journal] = Journal,
    summary: BenchSummary,
) -> None:
    """Run jobs that are not done.

    Args:
        left: The jobs, in their order.
        store: Where they go to.
        graphs: The experiments that they are of, by name.
        settings: How many processes, and where they compute.
        simulators: How many processes simulate scans.
        urgent: Keys of the networks that are alone until they are there.
        scheduler: Decides what begins.
        pool: Runs jobs.
        journal: Writes the log of jobs.
        summary: Gets what came of them.
    """
    ahead = Ahead(left, simulators)
    names = {job.key: name for name, graph in graphs.items() for end in graph.rows for job in end.before()}
    log = journal(store.folder / LOG, {**{job.key: job.title for job in left}, **names})
    every = JobGraph(tuple(itertools.chain.from_iterable(graph.rows for graph in graphs.values())))
    work = scheduler(store, Quiet(store, every), log, summary)
    work.ahead = ahead
    work.do(left, functools.partial(pool, settings=settings, ahead=ahead, urgent=urgent))


def collect_rows(store: Path, name: str) -> list[ScoreRow]:
    """Make a bench folder of an experiment, of the jobs that are done; return its rows."""
    folder, made = store / name, Experiment.read(store / f"{name}.toml")
    folder.mkdir(exist_ok=True)
    if not (folder / "jobs").is_symlink():
        shutil.rmtree(folder / "jobs", ignore_errors=True)
        (folder / "jobs").symlink_to(Path("..") / "jobs")
    found = bench(made, folder, None).rows
    say(f"{name}: {len(found)} rows of {len({row.job for row in found})} runs")
    return found


def complete(found: Sequence[ScoreRow], wanted: Experiment, home: str) -> list[ScoreRow]:
    """The rows of people of whom every row of a training run is there, for each of their sessions.

    Args:
        found: All rows.
        wanted: The experiment.
        home: The centre that networks were trained at, where some rows are not wanted.
    """
    there: dict[tuple[str, str, int], set[tuple[str, str]]] = defaultdict(set)
    sessions: dict[str, set[str]] = defaultdict(set)
    for row in found:
        there[row.site, row.subject, row.seed].add((row.method, row.session))
        sessions[row.site].add(row.session)
    whole = {
        (site, person, seed)
        for (site, person, seed), own in there.items()
        if all(
            (name, session) in own
            for name, row in wanted.rows.items()
            for session in sessions[site]
            if row.at_home or site != home
        )
    }
    return [row for row in found if (row.site, row.subject, row.seed) in whole]


def rounded(row: ScoreRow) -> ScoreRow:
    """A row with as many digits as tell scans apart."""
    numbers = {name: float(f"{value:.6g}") for name, value in vars(row).items() if isinstance(value, float)}
    return replace(row, **numbers)  # type: ignore[arg-type]


def write_times(log: Path, out: Path, experiment: str = "") -> None:
    """Write the seconds of the jobs about networks, of all experiments or of one."""
    with log.open(newline="") as file, out.open("w", newline="") as written:
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow(["experiment", "kind", "job", "seconds"])
        for _, kind, name, what, _, seconds, reason in csv.reader(file):
            if kind != "adapt" and not reason and experiment in ("", name):
                writer.writerow([name, kind, what, seconds])


def say_times(log: Path) -> None:
    """Say how long jobs took, by kind and row."""
    took: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with log.open(newline="") as file:
        for _, kind, name, what, _, seconds, reason in csv.reader(file):
            if not reason:
                took[kind, name, what].append(float(seconds))
    for (kind, name, what), each in sorted(took.items()):
        say(f"{kind:10} {name:12} {what:45} {len(each):4} x {fmean(each):7.2f} s, most {max(each):.2f}")


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)
