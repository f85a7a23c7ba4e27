"""The results of tier 1: rows, and a page with all tables.

    python scripts/tier1_tables.py rows STORE --out results        # results/tier1-prostate.csv, .toml, ...
    python scripts/tier1_tables.py page results > results/tier1.md

STORE is what `scripts/tier1.py run` and `collect` made. Only people of whom every row is finished count, so that all
rows are of the same people.
"""

import argparse
import csv
import math
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from bench_runs import LOG, complete, rounded, write_times
from tier1 import NAMES
from verbs import Verbs

from scantune.benchmark.experiment import Experiment
from scantune.evaluation.rows import read_rows, write_rows
from scantune.report.render import markdown
from scantune.report.scores import SiteColumn, join_scores, read_scores
from scantune.report.statistics import RunKey
from scantune.report.study import STRONG_BASELINES, Study, training_sites
from scantune.report.tables import TABLES

GUARDED = "guarded"
SHOWN = ("methods", "in-domain", "registration", "variants", "harm")
NETWORKS = "tier1-networks.csv"

Changes = dict[RunKey, tuple[float, float, str]]
"""Change of Dice without and with the guard against the strong baseline, and what the guard did, by scan."""


def rows(arguments: argparse.Namespace) -> None:
    """Write the rows of the people that are complete."""
    for name in NAMES:
        made = arguments.store / name / "experiment.toml"
        if not made.exists():
            continue
        found = read_rows(arguments.store / name)
        kept = [rounded(row) for row in complete(found, Experiment.read(made), training_sites()[name])]
        write_rows(arguments.out / f"tier1-{name}.csv", kept)
        shutil.copy(made, arguments.out / f"tier1-{name}.toml")
        print(f"{name}: {len(kept)} of {len(found)} rows")
    write_times(arguments.store / LOG, arguments.out / NETWORKS)


def page(arguments: argparse.Namespace) -> None:
    """Print all tables."""
    files = {name: arguments.results / f"tier1-{name}.csv" for name in NAMES}
    there = {name: path for name, path in files.items() if path.exists() and len(path.read_text().splitlines()) > 1}
    made = {name: Experiment.read(path.with_suffix(".toml")) for name, path in there.items()}
    study = Study.of(join_scores([read_scores(path, made[name].table.score) for name, path in there.items()]))
    print("\n".join(_page(study, there, made, arguments.results)))


def _page(study: Study, files: dict[str, Path], made: dict[str, Experiment], results: Path) -> Iterator[str]:
    yield "# Tier 1: every method at every simulated centre\n"
    yield _told(files, made)
    for name in SHOWN:
        table = TABLES[name](study)
        if table is not None:
            yield f"## {table.title}\n\n{markdown(table)}"
    yield from _means(study)
    yield from _guard(study)
    yield from _centres(study)
    yield from _energies(files)
    yield from _times(study, results)


def _told(files: dict[str, Path], made: dict[str, Experiment]) -> str:
    every = [row for path in files.values() for row in read_rows(path)]
    people = {name: len({(r.site, r.subject) for r in every if r.cohort == name}) for name in files}
    missing = [name for name in NAMES if name not in files]
    one = next(iter(made.values()))
    helpers = {method: table["iterations"] for method, table in one.recipe.helpers.items()}
    sentences = (
        f"All scans are simulated. One training run. Networks: {one.recipe.train.iterations} iterations of "
        f"{one.recipe.train.batch} slices; the networks that methods need beside: "
        f"{', '.join(f'{method} {count}' for method, count in helpers.items())} iterations (the paper's: dae 50000, ae "
        "25000), the denoiser on a grid of half the resolution; the supervised benchmark: "
        f"{one.supervised().iterations} further iterations (the paper's: 5000). Preset `fast`.",
        f"People, all centres together: {', '.join(f'{name} {count}' for name, count in people.items())}.",
        *([f"**Not finished**: {', '.join(missing)}."] if missing else []),
        f"Made on {', '.join(sorted({row.device for row in every}))} by scantune "
        f"{', '.join(sorted({row.commit for row in every}))}; `tier1-NAME.toml` beside the rows is the experiment:",
    )
    commands = (
        "python scripts/tier1.py run STORE",
        "python scripts/tier1.py collect STORE",
        "python scripts/tier1_tables.py rows STORE --out results",
        "python scripts/tier1_tables.py page results > results/tier1.md",
    )
    return "\n".join([*sentences, "", "```", *commands, "```", ""])


def _means(study: Study) -> Iterator[str]:
    columns = [column for column in study.columns(training=False) if column.cohort != "registration"]
    low, high = (fmean(study.mean(column, name) for column in columns) for name in (study.against, "supervised"))
    yield f"## Means over the {len(columns)} test centres of segmentation\n"
    yield _head("method", "Dice", "of the way to supervised", "centres better", "centres worse", "lowest change")
    for method in study.scores.methods:
        changed = [study.mean(column, method) - study.mean(column, study.against) for column in columns]
        if any(math.isnan(change) for change in changed):
            continue
        dice = low + fmean(changed)
        counts = sum(change > 0.005 for change in changed), sum(change < -0.005 for change in changed)
        yield _line(
            [method, f"{dice:.3f}", f"{100 * (dice - low) / (high - low):.0f} %", *counts, f"{min(changed):+.3f}"]
        )
    yield (
        f"\nAgainst the strong baseline, whose mean is {low:.3f}; better and worse by more than 0.005. Methods that "
        "were run at some of the centres alone are left out.\n"
    )


def _energies(files: dict[str, Path]) -> Iterator[str]:
    yield "## How well the energy separates shifted scans\n"
    yield _head("cohort", "scans of the training centre", "of test centres", "area under the ROC curve")
    for name, path in files.items():
        seen = {
            (r.site, r.subject, r.session): r.energy_before for r in read_rows(path) if r.method == STRONG_BASELINES[0]
        }
        home = [energy for (site, *_), energy in seen.items() if site == training_sites()[name]]
        away = [energy for (site, *_), energy in seen.items() if site != training_sites()[name]]
        yield _line([name, len(home), len(away), f"{auroc(home, away):.3f}"])
    yield "\nEnergies before any adaptation; none of these people was trained, selected or calibrated with.\n"


def auroc(lower: Sequence[float], higher: Sequence[float]) -> float:
    """The share of pairs in which the second is higher; ties count half."""
    return fmean((b > a) + 0.5 * (b == a) for a in lower for b in higher)


def changes(study: Study, columns: Iterable[SiteColumn], method: str, guarded: str) -> Changes:
    """Of all scans of these columns that have all three scores."""
    found: Changes = {}
    for column in columns:
        if (column, guarded) not in study.scores.cells:
            continue
        decisions = study.scores.cells[column, guarded]["decision"]
        without, within = study.run_changes(column, method), study.run_changes(column, guarded)
        for run in within.index.intersection(without.index, sort=False):
            found[run] = (without[run], within[run], decisions[run])
    return found


def pairs(study: Study) -> list[tuple[str, str]]:
    """Every row, and the same under the guard."""
    names = [name for name in study.scores.methods if name.endswith(GUARDED)]
    return [(name.removesuffix(GUARDED).rstrip(" ,"), name) for name in names]


def _guard(study: Study) -> Iterator[str]:
    yield "## The guard: every method without and with it\n"
    yield _head(
        "cohort, method", "scans", "harmful, let through", "improved, stay", "caught", "unsolved", "gain", "worst"
    )
    tested = study.columns(training=False)
    groups: dict[str, list[SiteColumn]] = {"all": tested}
    for column in tested:
        groups.setdefault(column.cohort, []).append(column)
    for cohort, columns in groups.items():
        for method, guarded in pairs(study):
            found = changes(study, columns, method, guarded)
            if found:
                yield _line([f"{cohort}, {method}", *_judged(found)])
    yield (
        "\nShifted scans, Dice against the strong baseline. Harmful: loses more than 0.01 unguarded, and how many of "
        "these still do under the guard. Improved: gains more than 0.01 unguarded, and how many of these still do. "
        "Caught: loses more than 0.05 unguarded, and how many of these lose less than 0.01 under the guard. Gain: mean "
        "change under the guard, and without it. Worst: of any scan, under the guard, and without it.\n"
    )


def _judged(found: Changes) -> list[str]:
    each = list(found.values())
    harmful, improved = [e for e in each if e[0] < -0.01], [e for e in each if e[0] > 0.01]
    lost = [e for e in each if e[0] < -0.05]
    return [
        str(len(each)),
        f"{len(harmful)}, {sum(guarded < -0.01 for _, guarded, _ in harmful)}",
        f"{len(improved)}, {sum(guarded > 0.01 for _, guarded, _ in improved)}",
        f"{sum(guarded > -0.01 for _, guarded, _ in lost)} of {len(lost)}",
        f"{sum(action == 'unsolved' for *_, action in each)} of {len(each)}",
        f"{fmean(e[1] for e in each):+.4f} of {fmean(e[0] for e in each):+.4f}",
        f"{min(e[1] for e in each):+.3f} of {min(e[0] for e in each):+.3f}",
    ]


def _centres(study: Study) -> Iterator[str]:
    yield "## foe-cnn-pca under the guard, by centre\n"
    actions = ("adapted", "unsolved", "left alone")
    yield _head("cohort, centre", "scans", STRONG_BASELINES[0], "foe-cnn-pca", GUARDED, "worst scan", *actions)
    for column in study.columns(training=False):
        found = changes(study, [column], "foe-cnn-pca", f"foe-cnn-pca, {GUARDED}")
        if found:
            means = [study.mean(column, name) for name in (study.against, "foe-cnn-pca", f"foe-cnn-pca, {GUARDED}")]
            decisions = list(study.scores.cells[column, f"foe-cnn-pca, {GUARDED}"]["decision"])
            acts = [decisions.count(act) for act in actions]
            worst = min(change for _, change, _ in found.values())
            cells = [len(found), *(f"{mean:.3f}" for mean in means), f"{worst:+.3f}", *acts]
            yield _line([f"{column.cohort}, {column.site}", *cells])
    yield ""


def _times(study: Study, results: Path) -> Iterator[str]:
    cohorts = list(dict.fromkeys(column.cohort for column in study.scores.columns))
    took: dict[tuple[str, str], list[float]] = defaultdict(list)
    for (column, method), scans in study.scores.cells.items():
        took[method, column.cohort] += [*scans["seconds"].dropna()]
    yield "## Seconds per scan, median\n"
    yield _head("method", *cohorts)
    for method in study.scores.methods:
        each = [took.get((method, cohort), []) for cohort in cohorts]
        yield _line([method, *(f"{median(one):.2f}" if one else "-" for one in each)])
    yield "\nMany processes shared the GPU: alone, a scan takes less.\n"
    if (results / NETWORKS).exists():
        yield "## Seconds of the jobs about networks, many at a time\n"
        yield _head("job", *cohorts)
        yield from _networks(results / NETWORKS, cohorts)


def _networks(path: Path, cohorts: Sequence[str]) -> Iterator[str]:
    took: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            what = "go on training at a centre" if line["kind"] == "supervise" else line["job"].removesuffix(", seed 0")
            took[what][line["experiment"]].append(float(line["seconds"]))
    for what, own in took.items():
        yield _line([what, *(f"{fmean(own[name]):.0f}" if name in own else "-" for name in cohorts)])


def _head(*names: str) -> str:
    return _line(names) + "\n" + _line("---" for _ in names)


def _line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    first = verbs.add(rows)
    first.add_argument("store", type=Path)
    first.add_argument("--out", type=Path, required=True)
    verbs.add(page).add_argument("results", type=Path)
    verbs.call()
