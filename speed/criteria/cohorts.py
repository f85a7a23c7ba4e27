"""Report what the default does on simulated cohorts, beside the same objective without a guard.

    python scripts/paper_runs.py run STORE rescue-prostate rescue-spine --set experiment.seeds=[1]
    python speed/criteria/cohorts.py rows STORE --out results/rescue-v2.csv
    python speed/criteria/cohorts.py page results/rescue-v2.csv --out results/rescue-v2.md

A row is one test scan and one network, trained with augmentation (strong) or without (plain). Intervals are by
bootstrap over people. The score of a cohort is that of the paper: the whole gland of prostates, grey matter of cords,
the mean over structures elsewhere; estimates are always of the mean.
"""

import argparse
import csv
import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

from figures import auroc, interval, sensitivity

from scantune.simulate import COHORTS

LIMIT, GAIN, LOSS = 0.7, 0.01, 0.05
"""Dice below which a scan has failed; gains and losses that count."""
NETWORKS = {"plain": "baseline", "strong": "strong baseline"}
"""The un-adapted rows of the networks."""

WITHOUT_DEFAULT = """
Results of the default are missing where it adapted a scan: on the GPU that made these rows, a defect in half precision
refused rescues. It is repaired, and the runs have not been repeated. So this page shows how source predictions are
assessed, which scans are left alone, and what the objective does without a guard. [The benchmark of the
assessment](assessment.md) has the rest, on coarser scans of the same cohorts."""
"""What the page says where rows of the default are missing."""

Key = tuple[str, str, str, str, int]
"""Cohort, centre, person, scan, training run."""

Runs = Mapping[str, Mapping[str, Any]]
"""The manifests of one scan, with their Dice, by row."""


@dataclass(frozen=True)
class Row:
    """One scan and one network.

    Args:
        home: Mean Dice of the network at the training centre.
        source: Dice of the un-adapted network.
        unguarded: Dice of the objective under `fast`, without a guard.
        default: Dice of what the default hands out; NaN where it was not run to its end.
        expected: The estimate that is shown; NaN where none is.
        paper: Dice of the same objective after the paper's 1000 epochs; NaN where they were not run.
    """

    cohort: str
    site: str
    subject: str
    scan: str
    network: str
    seed: int
    home: float
    source: float
    unguarded: float
    default: float
    decision: str
    verdict_before: str
    expected_before: float
    verdict: str
    expected: float
    paper: float

    @property
    def change(self) -> float:
        """Return the change by the default."""
        return self.default - self.source

    @property
    def possible(self) -> float:
        """Return the change by the objective."""
        return self.unguarded - self.source


_KINDS: dict[str, Callable[[str], Any]] = {
    name: {"str": str, "int": int, "float": float}[getattr(kind, "__name__", str(kind))]
    for name, kind in Row.__annotations__.items()
}


def collect(store: Path) -> Iterator[Row]:
    """Yield the rows of a store of jobs; people of whom a default row is missing have none."""
    scores = {}
    for path in sorted(store.glob("rescue-*.toml")):
        made = tomllib.loads(path.read_text(encoding="utf-8"))
        scores[made["data"]["cohort"]] = made["experiment"]["score"]
    scans: dict[Key, dict[str, dict[str, Any]]] = defaultdict(dict)
    for path in sorted(store.glob("jobs/*/manifest.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["cohort"] in scores:
            with path.with_name("rows.csv").open(newline="") as file:
                dice = {row["structure"]: row["dice"] for row in csv.DictReader(file)}
            key = (told["cohort"], told["site"], told["subject"], told["scan"], told["seed"])
            scans[key][told["method"]] = {**told, "dice": round(float(dice[scores[told["cohort"]]]), 4)}
    defaults = {f"{network}, default" for network in NETWORKS}
    unfinished = {(*key[:3], key[-1]) for key, runs in scans.items() if not defaults <= runs.keys()}
    for key, runs in sorted(scans.items()):
        for network, source in NETWORKS.items():
            if {source, f"{network}, unguarded"} <= runs.keys():
                home = [
                    other[source]["dice"]
                    for (cohort, site, *_, seed), other in scans.items()
                    if (cohort, site, seed) == (key[0], COHORTS[key[0]].source, key[-1]) and source in other
                ]
                yield _row(key, network, fmean(home), runs, (*key[:3], key[-1]) not in unfinished)


def _row(key: Key, network: str, home: float, runs: Runs, finished: bool) -> Row:
    nothing: dict[str, Any] = {"dice": math.nan, "decision": "", "facts": {}}
    default = runs[f"{network}, default"] if finished else nothing
    facts = default["facts"]
    numbers = (facts.get("expected_before"), facts.get("expected"))
    before, after = (math.nan if number is None else round(number, 4) for number in numbers)
    dice = (runs[NETWORKS[network]]["dice"], runs[f"{network}, unguarded"]["dice"], default["dice"])
    verdicts = (str(facts.get("verdict_before", "")), str(facts.get("verdict", "")))
    paper = runs.get(f"{network}, paper", {"dice": math.nan})["dice"]
    cohort, site, subject, scan, seed = key
    about = (cohort, site, subject, scan, network, seed, round(home, 4))
    return Row(*about, *dice, default["decision"], verdicts[0], before, verdicts[1], after, paper)


def read_rows(path: Path) -> list[Row]:
    """Read rows from their file."""
    with path.open(newline="") as file:
        return [Row(**{name: _KINDS[name](value) for name, value in line.items()}) for line in csv.DictReader(file)]


def _told(rows: Sequence[Row], statistic: Callable[[Sequence[Row]], float], form: str = "+.3f") -> str:
    """Write a statistic with its interval and the number of scans."""
    if not rows:
        return "-"
    low, high = interval(rows, lambda row: (row.cohort, row.subject), statistic)
    return f"{statistic(rows):{form}} [{low:{form}}, {high:{form}}] ({len(rows)})"


def _mean_change(rows: Sequence[Row]) -> float:
    return fmean(row.change for row in rows)


def _share(condition: Callable[[Row], bool]) -> Callable[[Sequence[Row]], float]:
    return lambda rows: fmean(condition(row) for row in rows) if rows else math.nan


def _kept(rows: Sequence[Row]) -> float:
    total = sum(row.possible for row in rows)
    return sum(row.change for row in rows) / total if total > 0 else math.nan


def _lowest_centre(rows: Sequence[Row]) -> str:
    centres: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        centres[row.cohort, row.site, row.network].append(row.change)
    (cohort, site, network), found = min(centres.items(), key=lambda entry: fmean(entry[1]))
    return f"{fmean(found):+.4f} ({cohort} {site}, {network})"


def _badness(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    known = [row for row in rows if not math.isnan(row.expected_before)]
    failed, others = (
        [1 - row.expected_before for row in known if (row.source < LIMIT) is bad] for bad in (True, False)
    )
    return failed, others


def _left_alone(rows: Sequence[Row]) -> str:
    """Say how many scans were left alone, and what adapting would have done to these."""
    left = [row for row in rows if row.decision == "left alone"]
    if not left:
        return f"0 of {len(rows)}"
    low, high, mean = (pick(row.possible for row in left) for pick in (min, max, fmean))
    return f"{len(left)} of {len(rows)}: {low:+.3f} to {high:+.3f}, mean {mean:+.3f}"


def _default_lines(rows: Sequence[Row]) -> dict[str, str]:
    """Return the lines on what the default hands out; none if it was not run on all scans."""
    if not all(row.decision for row in rows):
        return {}
    usable, failed = [row for row in rows if row.source >= LIMIT], [row for row in rows if row.source < LIMIT]
    gaining = [row for row in rows if row.possible > GAIN]
    return {
        "mean Dice of the default": f"{fmean(row.default for row in rows):.3f}",
        "failing: share of the unguarded gain that is kept": _told(failed, _kept, ".0%"),
        "source .7 or more: worst change": f"{min((row.change for row in usable), default=math.nan):+.3f}",
        "the same: mean change": _told(usable, _mean_change),
        "lowest mean change of a centre": _lowest_centre(rows),
        "failing: mean change": _told(failed, _mean_change),
        "failing: worse by more than .05": _told(failed, _share(lambda r: r.change < -LOSS), ".0%"),
        "failing: shown as fine though still below .7": _told(
            failed, _share(lambda r: r.verdict == "fine" and r.default < LIMIT), ".0%"
        ),
        "unguarded gain above .01: stays above .01": _told(gaining, _share(lambda r: r.change > GAIN), ".0%"),
        "left alone, adapted, unsolved": ", ".join(
            str(sum(row.decision == name for row in rows)) for name in ("left alone", "adapted", "unsolved")
        ),
    }


def lines_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the lines of the report."""
    failed = [row for row in rows if row.source < LIMIT]
    known = [row for row in rows if not math.isnan(row.expected_before)]
    missed = [row for row in failed if row.verdict_before == "fine"]
    bad, good = _badness(rows)
    return {
        "networks, people, scans; failing": f"{len({(r.cohort, r.network, r.seed) for r in rows})}, "
        f"{len({(r.cohort, r.subject) for r in rows})}, {len(rows)}; {len(failed)}",
        "mean Dice: source, unguarded": f"{fmean(r.source for r in rows):.3f}, {fmean(r.unguarded for r in rows):.3f}",
        "the same of failing scans": "-"
        if not failed
        else f"{fmean(r.source for r in failed):.3f}, {fmean(r.unguarded for r in failed):.3f}",
        **_default_lines(rows),
        "left alone; what adapting would have changed": _left_alone(rows),
        "failing, yet called fine": f"{len(missed)} of {len(failed)}",
        "failure of the source: AUROC of the estimate": f"{auroc(bad, good):.3f}",
        "sensitivity at 5 % false alarms": f"{sensitivity(bad, good):.0%}",
        "median error of the estimate": _told(
            known, lambda some: median(abs(r.expected_before - r.source) for r in some), ".3f"
        ),
        "the same, if always the home Dice": f"{median(abs(r.home - r.source) for r in rows):.3f}",
        "bias of the estimate": _told(known, lambda some: fmean(r.expected_before - r.source for r in some)),
    }


def page(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page."""
    columns = {"all": list(rows)}
    columns |= {network: [row for row in rows if row.network == network] for network in NETWORKS}
    columns |= {cohort: [row for row in rows if row.cohort == cohort] for cohort in sorted({r.cohort for r in rows})}
    found = {name: lines_of(part) for name, part in columns.items() if part}
    told = [
        f"| | {' | '.join(found)} |",
        "|" + "---|" * (len(found) + 1),
        *(f"| {line} | {' | '.join(column.get(line, '-') for column in found.values())} |" for line in found["all"]),
        "",
        "| cohort | centre | network | scans | source | unguarded | fine, doubtful, failed |",
        "|---|---|---|---|---|---|---|",
    ]
    centres: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        centres[row.cohort, row.site, row.network].append(row)
    for (cohort, site, network), some in sorted(centres.items()):
        means = (fmean(r.source for r in some), fmean(r.unguarded for r in some))
        counts = (sum(r.verdict_before == name for r in some) for name in ("fine", "doubtful", "failed"))
        cells = [cohort, site, network, str(len(some)), *(f"{mean:.3f}" for mean in means)]
        told.append(f"| {' | '.join(cells)} | {', '.join(map(str, counts))} |")
    return told


def schedule_lines(rows: Sequence[Row]) -> list[str]:
    """Compare `fast`, both without a guard, with the paper's 1000 epochs on the scans that have both."""
    both = [row for row in rows if not math.isnan(row.paper)]
    if not both:
        return []
    told = [
        "",
        "| cohort | scans | source | fast | paper | mean difference | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("all", *sorted({row.cohort for row in both})):
        some = [row for row in both if name in ("all", row.cohort)]
        apart = [row.unguarded - row.paper for row in some]
        means = (fmean(r.source for r in some), fmean(r.unguarded for r in some), fmean(r.paper for r in some))
        cells = [name, str(len(some)), *(f"{mean:.3f}" for mean in means), f"{fmean(apart):+.3f}"]
        told.append(f"| {' | '.join(cells)} | {max(apart, key=abs):+.3f} |")
    return told


def main() -> None:
    """Write rows or the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rows", "page"])
    parser.add_argument("place", type=Path, help="the store, or the file of rows")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.what == "rows":
        with given.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(map(asdict, collect(given.place)))
    else:
        found = read_rows(given.place)
        title = ["# The default on the second version of the simulated cohorts", ""]
        about = [f"By `python speed/criteria/cohorts.py page {given.place}`; how rows are made is said in that script."]
        about += ["" if all(row.decision for row in found) else WITHOUT_DEFAULT, ""]
        given.out.write_text("\n".join([*title, *about, *page(found), *schedule_lines(found), ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
