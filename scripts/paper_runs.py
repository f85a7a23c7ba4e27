"""The paper's experiments with its lengths, on a GPU for some minutes at a time.

    python scripts/paper_runs.py run STORE prostate variants [--version v2] [--people 5] [--seconds 540]
    python scripts/paper_runs.py archive STORE FOLDER        # the state in a few files, without simulated scans
    python scripts/paper_runs.py restore FOLDER STORE        # the next `run` goes on from it, on any machine
    python scripts/paper_runs.py rows STORE [prostate] --out results [--people 2]   # results/v2-prostate.csv, ...
    python scripts/paper_runs.py drops STORE                 # the plain baseline at every centre, beside the paper's
    python scripts/paper_runs.py times STORE

The experiments are those of `scantune bench`: 30 000 iterations of 16 slices, 50 000 for the denoiser, 25 000 for the
autoencoders, 5 000 for the supervised benchmark, and the paper's schedule of every method without the guard. `variants`
has further rows of the prostate: kernel densities, lambda of 1 (0 is foe-cnn), objective (a), log-likelihood, and the
preset `fast` beside each. With --version v2, scans are of the cohorts `prostate-v2`, ...

`rescue-prostate`, ... are for the report on what `scantune adapt` does by default (`speed/criteria/cohorts.py`):
networks of 10 000 iterations with and without augmentation, each un-adapted, adapted without the guard, and by the
default.
`schedule-prostate`, ... adapt the same networks by the paper's 1000 epochs, to compare `fast` with it.

Networks come first, then one person of every centre after the other. With --seconds, no job begins that would not end
in time; trainings that are stopped go on from their checkpoints. `rows` says which rows are missing.
"""

import argparse
import csv
import functools
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import store_archive
from bench_runs import LOG, anatomy_of, collect_rows, do, rounded, say, say_times, strong, write_times
from paper_figures import CENTRES, PAPER, PAPER_AT_HOME, within_factor_two
from timed_runs import MovingPool, OutOfTimeError, Timed, TimedJournal, early_trainings
from verbs import Verbs

from scantune.benchmark.engines import EngineSettings
from scantune.benchmark.expand import JobGraph, Selection, expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, FineTuning, Job, Training
from scantune.benchmark.run import BenchSummary, experiment_text, unfinished
from scantune.benchmark.store import Store
from scantune.config.assignments import untyped_table_from_assignments
from scantune.evaluation.rows import ScoreRow, write_rows
from scantune.scans.files import write_text
from scantune.simulate import COHORTS

VARIANTS = "variants"
PAPER_ROWS = {
    "foe-cnn-pca, kde": {"method": "foe-cnn-pca", "prior": {"density": "kde", "alpha": 10.0}},
    "foe-cnn-pca, lambda 1": {"method": "foe-cnn-pca", "options": {"weight": 1.0}},
    "foe-cnn-pca, expected": {"method": "foe-cnn-pca", "options": {"reference": "expected"}},
    "foe-cnn-pca, likelihood": {"method": "foe-cnn-pca", "options": {"divergence": "likelihood"}},
}
"""The variants by the paper's schedule."""
ROWS = PAPER_ROWS | {
    f"{name}, fast": {**row, "preset": "fast"}
    for name, row in {
        "foe-cnn": {"method": "foe-cnn"},
        "foe-cnn-pca": {"method": "foe-cnn-pca"},
        **PAPER_ROWS,
    }.items()
}
"""All variants: each schedule beside the other."""
RESCUE = "rescue-"
RESCUE_ROWS = {
    f"{name}, {what}": {
        "method": "foe-cnn-pca",
        "network": network,
        "preset": "fast",
        "guard": guard,
        "at_home": True,
    }
    for name, network in (("plain", "none"), ("strong", "strong"))
    for what, guard in (("unguarded", False), ("default", True))
}
"""The rows of the report on the default, beside both baselines."""
SCHEDULE = "schedule-"
SCHEDULE_ROWS = {"strong, paper": {"method": "foe-cnn-pca", "preset": "paper", "guard": False}}
"""The row that `strong, unguarded` is compared with."""
LATER = (VARIANTS, "kde", "lambda", "ae-variants", SCHEDULE)
"""How the names of experiments begin that come after the others."""
STOPPING = 15.0
"""Seconds that processes have to stop before --seconds are over."""
TAUGHT_AFTER = 2
"""People of each centre who are adapted to before the supervised benchmark is trained."""


def experiment(name: str, version: str, words: Sequence[str] = ()) -> Experiment:
    """A bundled experiment, or the variants, on a version of the cohorts."""
    anatomy = name.removeprefix(RESCUE).removeprefix(SCHEDULE)
    made = Experiment.read("prostate" if name == VARIANTS else anatomy)
    cohort = str(made.recipe.data["cohort"]) + ("" if version == "v1" else f"-{version}")
    chosen = {"data": {"cohort": cohort}, "train": {"checkpoint_every": 1000}, "experiment": {"keep": 0}}
    if name == VARIANTS:
        chosen["experiment"] |= {"methods": ["strong baseline", "foe-cnn", "foe-cnn-pca", *ROWS], "rows": ROWS}
    if name != anatomy:
        rows = RESCUE_ROWS if name.startswith(RESCUE) else SCHEDULE_ROWS
        chosen["experiment"] |= {"methods": ["baseline", "strong baseline", *rows], "rows": rows}
        chosen["train"] |= {"iterations": 10_000}
    typed = untyped_table_from_assignments(words, "--set")
    if isinstance(typed.get("helpers"), dict):
        known = made.recipe.helpers
        typed["helpers"] = {key: table for key, table in typed["helpers"].items() if key in known}
    return made.changed(chosen).changed(typed)


def ordered(graphs: Mapping[str, JobGraph], arguments: argparse.Namespace) -> list[Job]:
    """The jobs of all experiments: the main rows before the variants, networks before people, by training run."""
    found: dict[str, tuple[Job, bool]] = {}
    for name, graph in sorted(graphs.items(), key=lambda entry: entry[0].startswith(LATER)):
        there = {job.row for job in graph.rows}
        methods = [method for method in arguments.methods if method in there]
        if arguments.methods and not methods:
            continue
        for job in graph.chosen(Selection(methods=methods, seeds=arguments.seeds, count=arguments.people)):
            found.setdefault(job.key, (job, name.startswith(LATER)))
    urgent = strong(job for job, _ in found.values())

    def urgency(entry: tuple[Job, bool]) -> tuple[bool, float, int]:
        job, later = entry
        if isinstance(job, Adaptation):
            return later, 3 + job.scan.number, job.seed
        if isinstance(job, FineTuning):
            return later, 2.5 + TAUGHT_AFTER, job.seed
        if isinstance(job, Training):
            return later, 0 if job.key in urgent else 1, job.seed
        return later, 2, job.seed

    return [job for job, _ in sorted(found.values(), key=urgency)]


def run(arguments: argparse.Namespace) -> None:
    """Do what is missing."""
    ends = time.monotonic() + (arguments.seconds or float("inf")) - STOPPING
    store = Store(arguments.store)
    arguments.store.mkdir(parents=True, exist_ok=True)
    cache = str((arguments.store / "scans").resolve())
    experiments = {name: experiment(name, arguments.version, arguments.set) for name in arguments.names}
    graphs = {name: expand(one, cache) for name, one in experiments.items()}
    jobs = ordered(graphs, arguments)
    with store.alone():
        store.open()
        for name, one in experiments.items():
            write_text(arguments.store / f"{name}.toml", experiment_text(one))
        left = unfinished(jobs, store)
        summary = BenchSummary(jobs=len(jobs), already=len(jobs) - len(left))
        early = list(early_trainings(left, store))
        scheduler = functools.partial(_timed, early={job.helper.key: job.key for job in early})
        settings = EngineSettings(arguments.workers, 1, arguments.device)
        journal = functools.partial(TimedJournal, ends=ends)
        work = functools.partial(do, scheduler=scheduler, pool=MovingPool, journal=journal, summary=summary)
        try:
            work([*early, *left], store, graphs, settings, arguments.simulators)
        except OutOfTimeError:
            say("the time is over")
    say(f"{summary.jobs} jobs: {summary.done} done now, {summary.already} before, {len(summary.failed)} failed")
    sys.exit(3 if summary.failed else 0)


def _timed(*parts: object, early: Mapping[str, str]) -> Timed:
    made = Timed(*parts)  # type: ignore[arg-type]
    made.early = early
    return made


def archive(arguments: argparse.Namespace) -> None:
    """Write the state as a few files."""
    store_archive.archive(arguments.store, arguments.folder, arguments.light)


def restore(arguments: argparse.Namespace) -> None:
    """Unpack them."""
    store_archive.restore(arguments.folder, arguments.store)


def rows(arguments: argparse.Namespace) -> None:
    """Write the rows, the Dice along their runs, and the times of networks; say what is missing."""
    for name in arguments.names or sorted(path.stem for path in arguments.store.glob("*.toml")):
        made = Experiment.read(arguments.store / f"{name}.toml")
        found = collect_rows(arguments.store, name)
        methods = arguments.methods or list(made.rows)
        kept = [row for row in found if row.method in methods and number_of(row) <= arguments.people]
        stem = arguments.out / f"{arguments.stem}-{name}"
        write_rows(stem.with_suffix(".csv"), [rounded(row) for row in kept])
        write_text(stem.with_suffix(".toml"), experiment_text(made))
        _write_traces(arguments.store, kept, Path(f"{stem}-traces.csv"))
        write_times(arguments.store / LOG, Path(f"{stem}-networks.csv"), name)
        say(f"{name}: {len(kept)} of {len(found)} rows")
        _say_missing(kept, made)


def number_of(row: ScoreRow) -> int:
    """Return which person of the centre a row is about; names of simulated people end with the number."""
    return int(row.subject.rpartition("-")[2])


def _say_missing(kept: Sequence[ScoreRow], made: Experiment) -> None:
    home = COHORTS[str(made.recipe.data["cohort"])].source
    people = {(row.site, row.subject) for row in kept}
    for method in sorted({row.method for row in kept}):
        there = {(row.site, row.subject) for row in kept if row.method == method}
        wanted = {who for who in people if made.rows[method].at_home or who[0] != home}
        for site, subject in sorted(wanted - there):
            say(f"no {method} of {subject} ({site})")


def _write_traces(store: Path, kept: Sequence[ScoreRow], out: Path) -> None:
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["site", "subject", "session", "method", "seed", "step", "dice"])
        for row in {(row.job, row.method): row for row in kept}.values():
            path = store / "jobs" / row.job / "trace.json"
            for at in json.loads(path.read_text(encoding="utf-8")) if path.exists() else ():
                if "dice" in at:
                    about = (row.site, row.subject, row.session, row.method, row.seed)
                    writer.writerow([*about, at["step"], f"{at['dice']:.4f}"])


def drops(arguments: argparse.Namespace) -> None:
    """Print what the plain baseline loses at every centre, beside the paper's."""
    paper = dict(zip(CENTRES, PAPER["baseline"], strict=True))
    print("| cohort | centre | scans | Dice | lowest | drop | paper's drop | within a factor of two |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sorted(arguments.store.glob("*.toml")):
        made = Experiment.read(path)
        cohort, score = str(made.recipe.data["cohort"]), made.table.score
        sites: dict[str, list[float]] = defaultdict(list)
        for row in collect_rows(arguments.store, path.stem):
            if row.method == "baseline" and row.structure == score:
                sites[row.site].append(row.dice)
        for site, found in sites.items():
            drop = fmean(sites[COHORTS[cohort].source]) - fmean(found)
            theirs = paper.get((anatomy_of(cohort), site))
            told = ["", ""]
            if theirs is not None:
                theirs = PAPER_AT_HOME[anatomy_of(cohort)] - theirs
                told = [f"{theirs:.2f}", "yes" if within_factor_two(theirs, drop) else "no"]
            cells = [cohort, site, len(found), f"{fmean(found):.3f}", f"{min(found):.3f}", f"{drop:.3f}", *told]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


def times(arguments: argparse.Namespace) -> None:
    """How long jobs took, by kind and row."""
    say_times(arguments.store / LOG)


def main() -> None:
    """Read the command line."""
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("store", type=Path)
    one.add_argument("names", nargs="+")
    one.add_argument("--version", default="v2", help="v1 or v2")
    one.add_argument("--people", type=int, default=5, help="of each centre")
    one.add_argument("--seconds", type=float, help="after which the run has ended")
    one.add_argument("--methods", nargs="+", default=[], help="rows to run now; by default all")
    one.add_argument("--seeds", nargs="+", type=int, default=[], help="training runs; by default all")
    one.add_argument("--workers", type=int, default=12)
    one.add_argument("--simulators", type=int, default=16)
    one.add_argument("--device", default="auto")
    one.add_argument("--set", nargs="+", default=[])
    two = verbs.add(archive)
    two.add_argument("store", type=Path)
    two.add_argument("folder", type=Path)
    two.add_argument("--light", action="store_true", help="leave out what going on does not need")
    three = verbs.add(restore)
    three.add_argument("folder", type=Path)
    three.add_argument("store", type=Path)
    four = verbs.add(rows)
    four.add_argument("store", type=Path)
    four.add_argument("names", nargs="*", help="experiments; by default all")
    four.add_argument("--out", type=Path, required=True)
    four.add_argument("--stem", default="v2", help="how the files' names begin")
    four.add_argument("--people", type=int, default=99, help="of each centre")
    four.add_argument("--methods", nargs="+", default=[], help="rows to write; by default all")
    for verb in (drops, times):
        verbs.add(verb).add_argument("store", type=Path)
    verbs.call()


if __name__ == "__main__":
    main()
