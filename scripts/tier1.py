"""Tier 1 of the results: every method at every centre of the six simulated cohorts, with and without the guard.

    python scripts/tier1.py run STORE [--workers 14] [--simulators 16] [--people 10] [--set train.compile=true]
    python scripts/tier1.py collect STORE
    python scripts/tier1.py times STORE

The six bundled experiments with 10 000 training iterations and the preset `fast`, one training run, and further rows:
every method under the guard, and entropy minimisation at a learning rate that lets it collapse. `run` does all of them
in one pool of processes: networks first, then one person of every centre, then the next; it can be stopped at any time
and goes on when given again. Scans are simulated ahead by processes of their own. STORE gets `jobs/` as a bench folder
has it; `collect` makes a bench folder of every experiment in it (STORE/prostate, ...), whose jobs are those of STORE.
`times` tells how long jobs took. `scripts/tier1_tables.py` makes the results of the folders.
"""

import argparse
import csv
import functools
import itertools
import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from scantune.benchmark.engines import EngineSettings, JobOutcome, LocalEngine
from scantune.benchmark.expand import JobGraph, Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, FineTuning, Job, PriorFitting, Training
from scantune.benchmark.run import (
    BenchObserver,
    BenchSummary,
    JobScheduler,
    RowCollector,
    bench,
    experiment_text,
    unfinished,
)
from scantune.benchmark.store import Store
from scantune.config.assignments import untyped_table_from_assignments
from scantune.scans.files import write_text
from scantune.training.held_out import SimulatedScan
from scantune.training.sources import SPLITS, SimulatedSource

NAMES = ("prostate", "cardiac", "spine", "brain", "wmh", "registration")
SEGMENTATION = ("entropy", "dae", "ae", "batchnorm", "foe-cnn", "foe-cnn-pca")
REGISTRATION = ("ae", "foe-cnn", "foe-cnn-pca")
COLLAPSING = {"method": "entropy", "preset": "paper", "steps": 30, "options": {"learning_rate": 1e-3}}
COLLAPSES = ("prostate", "cardiac", "spine")
"""Where entropy minimisation is also run at a learning rate that lets it collapse."""
HELPERS = {"iterations": 1000, "validate_every": 250}
"""Of the helper networks of dae and ae alike; the paper's are 50 000 and 25 000."""
COMMON = {
    "train": {"iterations": 10_000, "checkpoint_every": 1000, "compile": False},
    "supervised": {"iterations": 400, "validate_every": 100},
    "adapt": {"preset": "fast"},
    "experiment": {"seeds": [0], "keep": 0, "watch": [], "tier": 1},
}
DENOISER = {**HELPERS, "shrink": 2, "corruptions": 20, "compile": False}
LOG = "jobs.csv"
SHARES = {"prostate": 3, "cardiac": 4, "spine": 1, "brain": 4, "wmh": 2, "registration": 2}
"""Of the processes that simulate, by how long the people take that networks are trained on."""

Unit = tuple[SimulatedSource, str, str, int]
"""A person to simulate: where from, centre, split, number."""


def experiment(name: str, words: Sequence[str] = ()) -> Experiment:
    """A bundled experiment as this tier has it."""
    methods = REGISTRATION if name == "registration" else SEGMENTATION
    rows = {f"{method}, guarded": {"method": method, "guard": True} for method in methods}
    helpers = {"ae": HELPERS}
    if name in COLLAPSES:
        rows |= {"entropy, 1e-3": COLLAPSING, "entropy, 1e-3 guarded": {**COLLAPSING, "guard": True}}
    if name != "registration":
        helpers["dae"] = DENOISER
    compared = ["baseline", "strong baseline", *methods, *rows, "supervised"]
    tables = {**COMMON, "helpers": helpers}
    tables["experiment"] = {**COMMON["experiment"], "methods": compared, "rows": rows}
    return Experiment.read(name).changed(tables).changed(_of(name, untyped_table_from_assignments(words, "--set")))


def _of(name: str, typed: dict[str, object]) -> dict[str, object]:
    """What was typed, without what is there for other experiments alone: the denoiser, in registration."""
    if name == "registration" and isinstance(typed.get("helpers"), dict):
        typed["helpers"] = {key: table for key, table in typed["helpers"].items() if key != "dae"}
    return typed


def ordered(graphs: Iterable[JobGraph], people: int) -> list[Job]:
    """The jobs of all experiments: networks in the order of what waits for them, then person by person."""
    jobs = [job for graph in graphs for job in graph.chosen(Selection(count=people))]
    urgent = strong(jobs)

    def urgency(job: Job) -> tuple[int, int]:
        if isinstance(job, Adaptation):
            return 4, job.scan.number
        if isinstance(job, FineTuning):
            return 3, 0
        if isinstance(job, Training):
            return (0 if job.key in urgent else 1), 0
        return 2, 0

    return sorted(jobs, key=urgency)


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
        whole = sum(SHARES[cohort] for cohort in self.plans)
        for cohort, plan in self.plans.items():
            pool = context.Pool(min(max(self.processes * SHARES[cohort] // whole, 1), len(plan)))
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


@functools.lru_cache(maxsize=len(NAMES))
def _same(source: SimulatedSource) -> SimulatedSource:
    return source


class Pool(LocalEngine):
    """Processes that get ready while scans are simulated.

    Until the networks that most jobs wait for are there, only as many work as there are of these: a run that is stopped
    early has some networks rather than halves of twice as many.
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


def _all(graph: JobGraph) -> Iterable[Job]:
    return (job for end in graph.rows for job in end.before())


class Paced(JobScheduler):
    """Begins jobs when their scans were simulated."""

    ahead: Ahead

    def can_begin(self, job: Job) -> bool:
        """Also asks for the scans."""
        return super().can_begin(job) and self.ahead.ready(job)


class Quiet(RowCollector):
    """Is written by `collect` alone: with thousands of rows, once for every job is often."""

    def write(self) -> None:
        """Nothing."""


def run(arguments: argparse.Namespace) -> None:
    """Do what is missing."""
    store = Store(arguments.store)
    arguments.store.mkdir(parents=True, exist_ok=True)
    cache = str((arguments.store / "scans").resolve())
    experiments = {name: experiment(name, arguments.set) for name in arguments.only}
    graphs = {name: expand(one, cache) for name, one in experiments.items()}
    jobs = ordered(graphs.values(), arguments.people)
    with store.alone():
        store.open()
        for name, one in experiments.items():
            write_text(arguments.store / f"{name}.toml", experiment_text(one))
        left = unfinished(jobs, store)
        ahead = Ahead(left, arguments.simulators)
        summary = BenchSummary(jobs=len(jobs), already=len(jobs) - len(left))
        settings, urgent = EngineSettings(arguments.workers, 1, arguments.device), strong(jobs)
        make = functools.partial(Pool, settings=settings, ahead=ahead, urgent=urgent)
        journal = Journal(arguments.store / LOG, {job.key: name for name, own in graphs.items() for job in _all(own)})
        every = JobGraph(tuple(itertools.chain.from_iterable(graph.rows for graph in graphs.values())))
        work = Paced(store, Quiet(store, every), journal, summary)
        work.ahead = ahead
        work.do(left, make)
    say(f"{summary.jobs} jobs: {summary.done} done now, {summary.already} before, {len(summary.failed)} failed")
    sys.exit(3 if summary.failed else 0)


def collect(arguments: argparse.Namespace) -> None:
    """A bench folder for every experiment, of the jobs that are done."""
    for name in arguments.only:
        folder, made = arguments.store / name, Experiment.read(arguments.store / f"{name}.toml")
        folder.mkdir(exist_ok=True)
        if not (folder / "jobs").is_symlink():
            shutil.rmtree(folder / "jobs", ignore_errors=True)
            (folder / "jobs").symlink_to(Path("..") / "jobs")
        summary = bench(made, folder, None)
        say(f"{name}: {len(summary.rows)} rows of {len({row.job for row in summary.rows})} runs")


def times(arguments: argparse.Namespace) -> None:
    """How long jobs took, by kind and row."""
    took: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with (arguments.store / LOG).open(newline="") as file:
        for _, kind, name, what, _, seconds, reason in csv.reader(file):
            if not reason:
                took[kind, name, what].append(float(seconds))
    for (kind, name, what), each in sorted(took.items()):
        say(f"{kind:10} {name:12} {what:45} {len(each):4} x {fmean(each):7.2f} s, most {max(each):.2f}")


def say(text: str) -> None:
    """Print at once."""
    print(text, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "collect", "times"])
    parser.add_argument("store", type=Path)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--simulators", type=int, default=16)
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="+", default=list(NAMES))
    parser.add_argument("--set", nargs="+", default=[])
    chosen = parser.parse_args()
    {"run": run, "collect": collect, "times": times}[chosen.action](chosen)
