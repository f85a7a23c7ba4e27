"""Write the tables of pages from the rows in results/, between their markers.

    python scripts/readme_tables.py            # writes
    python scripts/readme_tables.py --check    # exits with 1 if a table differs from its rows

A table stands between `<!-- table NAME -->` and `<!-- end -->`; `TABLES` says what makes it.
"""

import argparse
import csv
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from paper_figures import (
    CENTRES,
    PAPER,
    PAPER_AT_HOME,
    PAPER_REGISTRATION,
    TRAINED_AT,
    VARIANTS,
    Centre,
    within_factor_two,
)

HOME = Path(__file__).parents[1]
RESULTS = HOME / "results"
PAGES = ("README.md", "docs/claims.md", "docs/tier1.md")

SCORES = {"prostate": "whole", "cardiac": "mean", "spine": "GM", "brain": "mean", "wmh": "mean", "registration": "mean"}
"""Structure that is scored, by cohort."""

METHODS = ("baseline", "strong baseline", "entropy", "dae", "ae", "batchnorm", "foe-cnn", "foe-cnn-pca")
GUARDED = tuple(f"{name}, guarded" for name in METHODS[2:])
CHANGED = 0.005
"""Change of a centre's mean that counts as better or worse."""


@cache
def people(cohort: str) -> dict[tuple[str, str], dict[str, float]]:
    """Return the Dice of each person by method and site, averaged over their scans."""
    scans: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (RESULTS / f"tier1-{cohort}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["structure"] == SCORES[cohort]:
                scans[row["method"], row["site"]][row["subject"]].append(float(row["dice"]))
    return {key: {subject: fmean(found) for subject, found in each.items()} for key, each in scans.items()}


def ours(method: str, centre: Centre) -> float:
    """Return the mean Dice of a method over the people of a centre."""
    cohort, site = centre
    return fmean(people(cohort)[method, site].values())


def changes(method: str, centres: Iterable[Centre] = CENTRES) -> list[float]:
    """Return the changes of a method against the strong baseline, by centre."""
    return [ours(method, centre) - ours("strong baseline", centre) for centre in centres]


def count_changes(found: Sequence[float]) -> tuple[int, int, float]:
    """Return how many are better, how many worse, and the lowest."""
    return sum(c > CHANGED for c in found), sum(c < -CHANGED for c in found), min(found)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def means_table() -> str:
    """Lay out every method's means over the twelve centres."""
    strong, taught = (fmean(ours(name, centre) for centre in CENTRES) for name in ("strong baseline", "supervised"))
    rows = []
    for name in (*METHODS, *GUARDED, "supervised"):
        found = changes(name)
        better, worse, lowest = count_changes(found)
        mean = strong + fmean(found)
        share = f"{(mean - strong) / (taught - strong):.0%}".replace("%", " %")
        rows.append((name, f"{mean:.3f}", share, str(better), str(worse), f"{lowest:+.3f}"))
    return markdown(
        ("method", "Dice", "of the way to supervised", "centres better", "centres worse", "lowest change"), rows
    )


GROUPS = {"test": "toy networks", "simulated": "simulated cohorts", "newborns, others": "newborns"}
"""Sets of results/assessment.csv on which nothing was chosen, by their names in tables."""

ANATOMIES = {"prostate": "prostate", "cardiac": "heart", "spine": "spinal cord", "brain": "brain", "wmh": "lesions"}
"""What cohorts show."""

FAILING = 0.7
"""Dice below which a source prediction counts as failed."""


@cache
def second_version() -> list[dict[str, str]]:
    """Return the rows of the second version of the cohorts: a scan and a network each."""
    with (RESULTS / "rescue-v2.csv").open(newline="") as file:
        return list(csv.DictReader(file))


Outcome = tuple[str, float, float]
"""The decision on a scan, and its Dice before and after."""


def outcomes() -> dict[tuple[str, bool], list[Outcome]]:
    """Return outcomes by the set in results/assessment.csv and by whether the network had failed."""
    stages: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    with (RESULTS / "assessment.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            stages[row["group"], row["name"], row["person"], row["shift"]].append(row)
    parts: dict[tuple[str, bool], list[Outcome]] = defaultdict(list)
    for (group, *_), (source, *others) in stages.items():
        after = next(row for row in (source, *others) if float(row["step"]) == float(source["chosen"]))
        before = float(source["dice"])
        if group in GROUPS:
            parts[GROUPS[group], before < FAILING].append((source["action"], before, float(after["dice"])))
    return parts


def decisions_table() -> str:
    """Lay out what the default does to scans on which the network had failed, and to the others."""
    parts = outcomes()
    rows = []
    for name in dict.fromkeys(name for name, _ in parts):
        for failing in (True, False):
            if found := parts.get((name, failing)):
                counts = [
                    sum(action == each for action, _, _ in found) for each in ("left alone", "adapted", "unsolved")
                ]
                before, after = (fmean(values) for values in list(zip(*found, strict=True))[1:])
                worst = min(b - a for _, a, b in found)
                what = f"{name}, {'below' if failing else 'at least'} {FAILING}"
                rows.append(
                    (what, str(len(found)), f"{before:.3f}", f"{after:.3f}", f"{worst:+.3f}", *map(str, counts))
                )
    head = ("scans, by Dice before", "", "Dice before", "after", "worst change", "left alone", "adapted", "unsolved")
    return markdown(head, rows)


def second_centres_table() -> str:
    """Lay out the second version of the cohorts: un-adapted, and adapted without a guard."""
    sites: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in second_version():
        key = (row["cohort"].removesuffix("-v2"), row["site"], row["network"])
        sites[key].append((float(row["source"]), float(row["unguarded"])))
    rows, means = [], []
    for cohort, site in CENTRES:
        found = [zip(*sites[cohort, site, network], strict=True) for network in ("plain", "strong")]
        means.append([fmean(values) for part in found for values in part])
        rows.append((f"{cohort} {site}", str(len(sites[cohort, site, "plain"])), *(f"{m:.2f}" for m in means[-1])))
    rows.append(("mean", "", *(f"{fmean(column):.3f}" for column in zip(*means, strict=True))))
    head = ("centre", "scans", "baseline", "adapted", "strong baseline", "adapted")
    return markdown(head, rows)


def schedule_table() -> str:
    """Lay out `fast` beside the paper's 1000 epochs, on the scans that were adapted by both."""
    both = [row for row in second_version() if row["paper"] != "nan"]
    rows = []
    for cohort in ("", *ANATOMIES):
        some = [row for row in both if row["cohort"].startswith(cohort)]
        if some:
            means = [fmean(float(row[column]) for row in some) for column in ("source", "unguarded", "paper")]
            rows.append((ANATOMIES.get(cohort, "all"), str(len(some)), *(f"{mean:.3f}" for mean in means)))
    return markdown(("scans", "", "strong baseline", "`fast`, no guard", "the paper's 1000 epochs"), rows)


@cache
def small_schedules() -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """Return the Dice, a mean over structures, and the energy of small networks, by cohort and scan, and by preset."""
    found: dict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    with (RESULTS / "fast-and-paper.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["structure"] == "mean":
                key = (row["cohort"].removesuffix("-v2"), row["subject"])
                found[key][row["preset"]] = (float(row["dice"]), float(row["energy"]))
    return found


def small_schedule_table() -> str:
    """Lay out the presets beside each other on small networks: means of Dice, and of the energy."""
    rows = []
    for cohort in ("", *ANATOMIES):
        some = [found for (name, _), found in small_schedules().items() if name.startswith(cohort)]
        ways = ("fast", "converged", "paper", "default")
        presets = [zip(*(found[preset] for found in some), strict=True) for preset in ways]
        means = [[fmean(values) for values in preset] for preset in presets]
        cells = (f"{dice:.3f} ({energy:.3f})" for dice, energy in means)
        before = fmean(found["source"][0] for found in some)
        rows.append((ANATOMIES.get(cohort, "all"), str(len(some)), f"{before:.3f}", *cells))
    head = ("scans", "", "not adapted", "`fast`", "`converged`", "the paper's 1000 epochs", "the default, guarded")
    return markdown(head, rows)


def centres_table() -> str:
    """Lay out the paper's Table 2 beside ours."""
    head = ("method", "", *(f"{cohort} {site}" for cohort, site in CENTRES), "mean")
    rows: list[tuple[str, ...]] = []
    for name, theirs in PAPER.items():
        rows.append((name, "paper", *(f"{score:.2f}" for score in theirs), f"{fmean(theirs):.3f}"))
        mine = [ours(name, centre) for centre in CENTRES]
        rows.append(("", "here", *(f"{score:.2f}" for score in mine), f"{fmean(mine):.3f}"))
    return markdown(head, rows)


def second_drops(cohort: str, site: str) -> list[float]:
    """Return the drops of the plain baseline at the second version of a centre, one for each training run."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in second_version():
        if row["network"] == "plain" and row["cohort"] == f"{cohort}-v2":
            found[row["seed"], row["site"]].append(float(row["source"]))
    seeds = sorted({seed for seed, _ in found})
    return [fmean(found[seed, TRAINED_AT[cohort]]) - fmean(found[seed, site]) for seed in seeds]


def drops() -> list[tuple[Centre, float, float, list[float]]]:
    """Return by how much the baseline falls from home to each centre: in the paper, at v1, at v2 by training run."""
    found = []
    for centre, score in zip(CENTRES, PAPER["baseline"], strict=True):
        cohort, site = centre
        first = ours("baseline", (cohort, TRAINED_AT[cohort])) - ours("baseline", centre)
        found.append((centre, PAPER_AT_HOME[cohort] - score, first, second_drops(cohort, site)))
    return found


def drops_table() -> str:
    """Lay out the drop of the plain baseline."""
    rows, reached = [], 0
    for (cohort, site), theirs, first, second in drops():
        within = within_factor_two(theirs, fmean(second))
        reached += within
        runs = " and ".join(f"{drop:.2f}" for drop in second)
        rows.append((f"{cohort} {site}", f"{theirs:.2f}", f"{first:.2f}", runs, "yes" if within else "no"))
    rows.append(("centres within a factor of two", "", "", "", f"{reached} of {len(rows)}"))
    return markdown(("centre", "paper", "v1", "v2, two training runs", "v2 within a factor of two"), rows)


Scans = dict[tuple[str, str], dict[str, float]]
"""The Dice of whole organs by method and site, and by person."""


@cache
def paper_lengths(experiment: str) -> Scans:
    """Return the Dice of an experiment of `scripts/paper_runs.py`, by method and site, and by person."""
    found: Scans = defaultdict(dict)
    with (RESULTS / f"v2-{experiment}.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["structure"] == SCORES["prostate"]:
                found[row["method"], row["site"]][row["subject"]] = float(row["dice"])
    return found


def site_cells(found: Scans, method: str, sites: Iterable[str]) -> Iterator[str]:
    """Lay out a method's means at some sites, with the number of people where some are missing."""
    for site in sites:
        mine, every = found[method, site].values(), found["strong baseline", site]
        note = "" if len(mine) == len(every) else f" ({len(mine)} of {len(every)})"
        yield f"{fmean(mine):.2f}{note}" if mine else "-"


def lengths_table() -> str:
    """Lay out the prostate by the paper's lengths beside the paper's: means, and changes of scans."""
    found, sites = paper_lengths("prostate"), [site for cohort, site in CENTRES if cohort == "prostate"]
    rows: list[tuple[str, ...]] = []
    for name in (*PAPER, "foe-cnn-pca, default"):
        moved = [
            score - found["strong baseline", site][who] for site in sites for who, score in found[name, site].items()
        ]
        if name in PAPER:
            theirs = PAPER[name][: len(sites)]
            rows.append((name, "paper", *(f"{score:.2f}" for score in theirs), f"{fmean(theirs):.3f}", "", "", ""))
        change = (
            f"{fmean(moved):+.3f}",
            f"{min(moved):+.3f}",
            f"{sum(move < -0.01 for move in moved)} of {len(moved)}",
        )
        mean = fmean(fmean(found[name, site].values()) for site in sites)
        what = "" if name in PAPER else name
        rows.append((what, "here", *site_cells(found, name, sites), f"{mean:.3f}", *change))
    return markdown(("method", "", *sites, "mean", "mean change", "worst change", "scans worse"), rows)


def variants_table() -> str:
    """Lay out the variants by the paper's lengths beside the paper's."""
    found, sites = paper_lengths("variants"), [site for cohort, site in CENTRES if cohort == "prostate"]
    rows: list[tuple[str, ...]] = [("not adapted", "here", *site_cells(found, "strong baseline", sites))]
    for what, (name, theirs) in VARIANTS.items():
        if theirs is not None:
            rows.append((what, "paper", *(f"{score:.2f}" for score in theirs)))
        rows.append(("" if theirs else what, "here", *site_cells(found, name, sites)))
    return markdown(("", "", *sites), rows)


def registration_table() -> str:
    """Lay out registration beside the paper's."""
    sites, known = ("HCP", "AS", "OASIS"), people("registration")
    rows = []
    for name, theirs in PAPER_REGISTRATION.items():
        mine = [known.get((name, site)) for site in sites]
        shown = [f"{fmean(scores.values()):.3f}" if scores else "-" for scores in mine]
        rows.append((name, "paper", *("-" if score is None else f"{score:.3f}" for score in theirs)))
        rows.append(("", "here", *shown))
    return markdown(("method", "", *sites), rows)


def lesions_table() -> str:
    """Lay out the change of each person with lesions at NUHS."""
    known = people("wmh")
    rows = []
    for name in ("entropy", "dae", "foe-cnn", "foe-cnn-pca", "foe-cnn-pca, guarded"):
        strong = known["strong baseline", "NUHS"]
        moved = sorted((score - strong[who] for who, score in known[name, "NUHS"].items()), reverse=True)
        numbers = (fmean(moved), moved[0], fmean(moved[1:]), moved[-1])
        rows.append((name, *(f"{number:+.3f}" for number in numbers)))
    return markdown(("method", "mean", "best scan", "mean of the others", "worst scan"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "means": means_table,
    "decisions": decisions_table,
    "centres": centres_table,
    "drops": drops_table,
    "second": second_centres_table,
    "schedule": schedule_table,
    "small": small_schedule_table,
    "lengths": lengths_table,
    "variants": variants_table,
    "registration": registration_table,
    "lesions": lesions_table,
}
"""What makes each table, by name."""

_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the text of a page with every marked table made from its rows."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page)


def main(check: bool) -> int:
    """Write the pages, or name those that differ from their rows."""
    stale = 0
    for name in PAGES:
        path = HOME / name
        before = path.read_text(encoding="utf-8")
        after = with_tables(before)
        if after == before:
            continue
        stale = 1
        if check:
            print(f"A table in {name} differs from its rows. Run python scripts/readme_tables.py.", file=sys.stderr)
        else:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {name}")
    return stale if check else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    sys.exit(main(parser.parse_args().check))
