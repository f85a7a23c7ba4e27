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
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from scantune.bench import Ledger, Observer, Summary, Work, bench, experiment_text, missing
from scantune.engines import Ended, LocalEngine, Settings
from scantune.experiment import Experiment
from scantune.graph import Graph, Selection, expand
from scantune.jobs import Adaptation, FineTuning, Job, PriorFitting, Training
from scantune.scans import write_text
from scantune.sources import SPLITS, Simulated, Source
from scantune.store import Store
from scantune.trials import SimulatedTrial
from scantune.words import table_of_words

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
    "supervised": {"iterations": 500, "validate_every": 125},
    "adapt": {"preset": "fast"},
    "experiment": {"seeds": [0], "keep": 0, "watch": [], "tier": 1},
}
DENOISER = {**HELPERS, "shrink": 2, "corruptions": 20, "compile": False}
LOG = "jobs.csv"

Unit = tuple[Simulated, str, str, int]
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
    return Experiment.read(name).changed(tables).changed(_of(name, table_of_words(words, "--set")))


def _of(name: str, typed: dict[str, object]) -> dict[str, object]:
    """What was typed, without what is there for other experiments alone: the denoiser, in registration."""
    if name == "registration" and isinstance(typed.get("helpers"), dict):
        typed["helpers"] = {key: table for key, table in typed["helpers"].items() if key != "dae"}
    return typed


def ordered(graphs: Iterable[Graph], people: int) -> list[Job]:
    """The jobs of all experiments: networks in the order of what waits for them, then person by person."""
    jobs = [job for graph in graphs for job in graph.chosen(Selection(count=people))]
    urgent = strong(jobs)

    def urgency(job: Job) -> tuple[int, int]:
        if isinstance(job, Adaptation):
            return 4, job.trial.number
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
    """Simulates scans into the cache of a store, by processes of their own, in the order they are needed in."""

    def __init__(self, jobs: Sequence[Job], processes: int) -> None:
        self.first, self.later = units(jobs)
        self.processes = processes

    def start(self) -> None:
        """Simulate what networks are trained on, then begin with the rest, out of the way of other processes."""
        context = multiprocessing.get_context("spawn")
        started = time.monotonic()
        if self.first:
            with context.Pool(min(self.processes, len(self.first))) as pool:
                for _ in pool.imap_unordered(simulate, self.first):
                    pass
        say(f"{len(self.first)} people to train on were simulated in {time.monotonic() - started:.0f} s")
        if self.later:
            self.pool = context.Pool(max(self.processes // 4, 1), os.nice, (10,))
            self.pool.map_async(simulate, self.later, chunksize=1, callback=lambda _: say("all scans were simulated"))


def units(jobs: Sequence[Job]) -> tuple[list[Unit], list[Unit]]:
    """The people that jobs need: those that networks and what belongs to them are made from, then others by urgency."""
    first: dict[Unit, None] = {}
    later: dict[Unit, None] = {}
    for job in jobs:
        if isinstance(job, Adaptation):
            if isinstance(job.trial, SimulatedTrial):
                later[_any(job.trial.source), job.trial.site, "test", job.trial.number] = None
            continue
        plan = job.plan if isinstance(job, Training) else job.network.plan  # type: ignore[attr-defined]
        (later if isinstance(job, FineTuning) else first).update(dict.fromkeys(_trained_on(plan.source)))
    return list(first), [unit for unit in later if unit not in first]


def _trained_on(source: Source) -> Iterable[Unit]:
    if isinstance(source, Simulated):
        centre = source.centre or source.known.source
        for split in SPLITS:
            asked = getattr(source, split)
            for number in range(source.known.centres[centre].splits[split] if asked is None else asked):
                yield _any(source), centre, split, number


def _any(source: Simulated) -> Simulated:
    """The same people, wherever networks are trained: one source, whose anatomy is made once."""
    return Simulated(source.cohort, slices=source.slices, seed=source.seed, cache=source.cache)


def simulate(unit: Unit) -> None:
    """Simulate a person, or find that it has been done."""
    import torch

    torch.set_num_threads(1)
    source, centre, split, number = unit
    for _ in _same(source).people(centre, split, torch.device("cpu"), number, number + 1):
        pass


@functools.lru_cache(maxsize=len(NAMES))
def _same(source: Simulated) -> Simulated:
    return source


class Pool(LocalEngine):
    """Processes that get ready while scans are simulated.

    Until the networks that most jobs wait for are there, only as many work as there are of these: a run that is stopped
    early has some networks rather than halves of twice as many.
    """

    def __init__(self, store: Store, settings: Settings, ahead: Ahead, urgent: Sequence[str]) -> None:
        super().__init__(store, settings)
        self.ahead, self.urgent = ahead, urgent

    @property
    def slots(self) -> int:
        """All processes, or as many as there are urgent jobs."""
        waiting = self.workers and not all(self.store.has(key) for key in self.urgent)
        return min(super().slots, len(self.urgent)) if waiting else super().slots

    def start(self) -> None:
        """Start both."""
        super().start()
        self.ahead.start()


class Journal(Observer):
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

    def end(self, job: Job, ended: Ended) -> None:
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


def _all(graph: Graph) -> Iterable[Job]:
    return (job for end in graph.rows for job in end.before())


class Quiet(Ledger):
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
        left = missing(jobs, store)
        ahead = Ahead(left, arguments.simulators)
        summary = Summary(jobs=len(jobs), already=len(jobs) - len(left))
        settings, urgent = Settings(arguments.workers, 1, arguments.device), strong(jobs)
        make = functools.partial(Pool, settings=settings, ahead=ahead, urgent=urgent)
        journal = Journal(arguments.store / LOG, {job.key: name for name, own in graphs.items() for job in _all(own)})
        every = Graph(tuple(itertools.chain.from_iterable(graph.rows for graph in graphs.values())))
        Work(store, Quiet(store, every), journal, summary).do(left, make)
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
