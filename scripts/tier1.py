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
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench_runs import LOG, collect_rows, do, say, say_times, strong

from scantune.benchmark.engines import EngineSettings
from scantune.benchmark.expand import JobGraph, Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, FineTuning, Job, Training
from scantune.benchmark.run import BenchSummary, experiment_text, unfinished
from scantune.benchmark.store import Store
from scantune.config.assignments import untyped_table_from_assignments
from scantune.scans.files import write_text

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
        summary = BenchSummary(jobs=len(jobs), already=len(jobs) - len(left))
        settings = EngineSettings(arguments.workers, 1, arguments.device)
        do(left, store, graphs, settings, arguments.simulators, urgent=strong(jobs), summary=summary)
    say(f"{summary.jobs} jobs: {summary.done} done now, {summary.already} before, {len(summary.failed)} failed")
    sys.exit(3 if summary.failed else 0)


def collect(arguments: argparse.Namespace) -> None:
    """A bench folder for every experiment, of the jobs that are done."""
    for name in arguments.only:
        collect_rows(arguments.store, name)


def times(arguments: argparse.Namespace) -> None:
    """How long jobs took, by kind and row."""
    say_times(arguments.store / LOG)


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
