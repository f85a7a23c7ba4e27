"""Tables of the benchmark of criteria: `results/assessment.csv` and `results/assessment.md`.

    python speed/criteria/summary.py rows FOLDER --out results/assessment.csv
    python speed/criteria/summary.py page results/assessment.csv --out results/assessment.md

The first plays the decision back on the readings that run.py stored in FOLDER, by the code's present coefficients.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from figures import auroc, interval, rank_correlation
from rows import WHOSE, Line, read_rows, rows, write_rows

from scans import (
    FAILING,
    Figure,
    Scan,
    Scans,
    called_failed,
    change,
    covered,
    error,
    estimated,
    failing,
    failure_auroc,
    failure_sensitivity,
    final_bias,
    final_error,
    finally_covered,
    gaining,
    home_error,
    known,
    lowest_mean,
    mean,
    scans_of,
    share_kept,
    stay_improved,
    unit,
    unsolved,
    unsolved_or_rescued,
    usable,
    wrongly_fine,
)

GROUPS = {
    "development": "toys, development",
    "seen": "toys, seen before",
    "test": "toys, test",
    "simulated development": "simulated cohorts, development",
    "simulated": "simulated cohorts, test",
    "newborns": "newborns",
    "newborns, others": "newborns, other people",
    "lesions": "lesions",
    "lesions seen": "lesions, another site",
}
NO_CRITERIA = {
    *(*WHOSE, "step", "dice", "home", "verdict", "expected", "low", "high", "action", "chosen", "final verdict"),
    *("final expected", "final low", "final high", "recorded", "guard", "simple"),
}
JOINED = ("energy, joint", "moved", "proportions")
"""Criteria whose ranks are added up, as a criterion of their own."""


def number(value: float, signed: bool = False) -> str:
    """Return a Dice with three digits."""
    return "-" if math.isnan(value) else f"{value:+.3f}" if signed else f"{value:.3f}"


def percent(value: float) -> str:
    """Return a share in percent."""
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def bounded(scans: Scans, figure: Figure, show: Callable[[float], str], over: Callable[[Scans], Scans] = list) -> str:
    """Return a figure with its 95 % interval and the number of scans that it is over."""
    part = over(scans)
    value = figure(scans)
    if math.isnan(value):
        return "-"
    low, high = interval(scans, unit, figure)
    return f"{show(value)} [{show(low)}, {show(high)}] ({len(part)})"


def signed(value: float) -> str:
    """Return a change of Dice."""
    return number(value, signed=True)


LINES: tuple[tuple[str, str, Callable[[Scans], str]], ...] = (
    ("networks, people, scans; failing", "", lambda s: _counts(s)),
    (
        "mean Dice of all scans: source, unguarded end, handed out, best stage",
        "",
        lambda s: ", ".join(number(mean(getattr(x, name) for x in s)) for name in ("before", "end", "handed", "best")),
    ),
    (
        "the same of failing scans",
        "",
        lambda s: ", ".join(
            number(mean(getattr(x, name) for x in failing(s))) for name in ("before", "end", "handed", "best")
        ),
    ),
    (
        "failing: share of the unguarded gain that the default keeps",
        "85 %",
        lambda s: bounded(s, partial(share_kept, "handed"), percent, gaining),
    ),
    (
        "the same: guard of 0.1, where it was run",
        "",
        lambda s: bounded(
            s, partial(share_kept, "guarded"), percent, lambda x: [y for y in gaining(x) if y.guarded > -1]
        ),
    ),
    ("the same: simple rule", "", lambda s: bounded(s, partial(share_kept, "simple"), percent, gaining)),
    (
        "source .7 or more: worst change; of the guard of 0.1, of the simple rule, unguarded",
        "-.05 toys, -.02 simulated, -.01 real",
        lambda s: _worst(usable(s)),
    ),
    (
        "the same: mean change",
        "",
        lambda s: bounded(s, lambda x: mean(map(change, usable(x))), signed, usable),
    ),
    ("the same: lowest mean change of a network or centre", "-.003, -.002 real", lambda s: signed(lowest_mean(s))),
    ("failing: mean change", "", lambda s: bounded(s, lambda x: mean(map(change, failing(x))), signed, failing)),
    (
        "failing: worse by more than .05",
        "5 %",
        lambda s: bounded(s, lambda x: mean(change(y) < -0.05 for y in failing(x)), percent, failing),
    ),
    (
        "failing: solved (`adapted`), of those above .7 and of those still below",
        "report",
        lambda s: _solved(failing(s)),
    ),
    ("failing: shown as fine though still below .7", "5 %", lambda s: bounded(s, wrongly_fine, percent, failing)),
    (
        "unguarded gain above .01: stays above .01",
        "90 %",
        lambda s: bounded(s, stay_improved, percent, lambda x: [y for y in x if y.end - y.before > 0.01]),
    ),
    ("failure of the source, AUROC of the estimate", ".95", lambda s: bounded(s, failure_auroc, number)),
    ("sensitivity at 5 % false alarms", "80 %", lambda s: bounded(s, failure_sensitivity, percent)),
    (
        "called failed: of the failing, of the others",
        "",
        lambda s: f"{percent(called_failed(failing(s)))}, {percent(called_failed(usable(s)))}",
    ),
    (
        "source: median error of the estimate (always the home Dice)",
        ".05",
        lambda s: f"{bounded(s, error, number)} ({number(home_error(s))})",
    ),
    (
        "the same of failing scans",
        "",
        lambda s: f"{number(error(failing(s)))} ({number(home_error(failing(s)))})",
    ),
    (
        "source: bias of the estimate, all and failing",
        "report",
        lambda s: ", ".join(signed(mean(x.source["expected"] - x.before for x in p)) for p in (s, failing(s))),
    ),
    (
        "handed out: median error and bias of the estimate, where one is shown",
        "report",
        lambda s: f"{number(final_error(s))}, {signed(final_bias(s))} ({len(estimated(s))})",
    ),
    (
        "80 % ranges that hold the Dice: source, handed out",
        "80 %",
        lambda s: f"{bounded(s, covered, percent)}, {percent(finally_covered(s))}",
    ),
    (
        "called unsolved: of the failing, of the others",
        "",
        lambda s: f"{percent(unsolved(failing(s)))}, {percent(unsolved(usable(s)))}",
    ),
    (
        "failing: unsolved, or rescued above .7",
        "90 % of T1w newborns",
        lambda s: bounded(s, unsolved_or_rescued, percent, failing),
    ),
)


def _counts(scans: Scans) -> str:
    people = {(scan.source["name"], scan.source["person"]) for scan in scans}
    networks = {scan.source["name"] for scan in scans}
    return f"{len(networks)}, {len(people)}, {len(scans)}; {len(failing(scans))}"


def _solved(scans: Scans) -> str:
    """Return the shares of scans that count as solved."""
    parts = ([s for s in scans if (s.handed < FAILING) == low] for low in (False, True))
    counts = ((sum(s.source["action"] == "adapted" for s in part), len(part)) for part in parts)
    return ", ".join(f"{solved} of {whole}" for solved, whole in counts)


def _worst(scans: Scans) -> str:
    """Return the worst changes of the default, of other rules and of no rule."""
    found = (
        min(known(getattr(scan, name) - scan.before for scan in scans), default=math.nan)
        for name in ("handed", "guarded", "simple", "end")
    )
    return f"{'; '.join(map(signed, found))} ({len(scans)})"


def groups(scans: Scans) -> dict[str, list[Scan]]:
    """Return the scans of each set that has any."""
    found = {name: [scan for scan in scans if scan.source["group"] == name] for name in GROUPS}
    return {name: part for name, part in found.items() if part}


def must_hold(scans: Scans) -> Iterator[str]:
    """Yield the lines of the table of what must hold."""
    parts = groups(scans)
    yield f"| | {' | '.join(GROUPS[name] for name in parts)} | target |"
    yield f"|---|{'---|' * len(parts)}---|"
    for name, target, show in LINES:
        yield f"| {name} | {' | '.join(show(part) for part in parts.values())} | {target} |"


def criteria_of(scans: Scans) -> list[str]:
    """Return the names of the criteria."""
    return [name for name in scans[0].source if name not in NO_CRITERIA]


def with_joined(scans: Scans) -> list[Scan]:
    """Add the assessment as a criterion, and the sum of ranks of some criteria among all stages of a network."""
    rows_of: dict[object, list[Line]] = {}
    for scan in scans:
        rows_of.setdefault(scan.source["name"], []).extend(scan.stages)
    for found in rows_of.values():
        ranks = [np.argsort(np.argsort([row[name] for row in found], kind="stable")) / len(found) for name in JOINED]
        for row, total in zip(found, np.sum(ranks, 0), strict=True):
            row |= {"ranks of joint energy, moved, proportions": float(total), "assessment": 1 - row["expected"]}
    return list(scans)


def by_network(scans: Scans, statistic: Callable[[Sequence[Line]], float], stages: slice) -> float:
    """Compute the mean over networks of a statistic of rows."""
    names = dict.fromkeys(scan.source["name"] for scan in scans)
    each = [statistic([row for s in scans if s.source["name"] == name for row in s.stages[stages]]) for name in names]
    return mean(value for value in each if not math.isnan(value))


def correlation(name: str, found: Sequence[Line]) -> float:
    """Compute the rank correlation of a criterion with Dice over rows."""
    return rank_correlation([row[name] for row in found], [row["dice"] for row in found])


def detection(name: str, found: Sequence[Line]) -> float:
    """Compute the area under the ROC curve of a criterion for failure over rows."""
    bad, good = ([row[name] for row in found if (row["dice"] < FAILING) == fails] for fails in (True, False))
    return auroc(bad, good)


def regret(name: str, scan: Scan) -> float:
    """Compute what is lost to the best stage by taking that of the best criterion."""
    return scan.best - float(min(scan.stages, key=lambda row: row[name])["dice"])


def criteria(scans: Scans) -> Iterator[str]:
    """Yield the lines of the table of criteria, the best on test networks first."""
    known = with_joined(scans)
    parts = {name: part for name, part in groups(known).items() if name in ("development", "test")}
    heads = ("rank correlation, source", "stages", "AUROC, source", "stages", "mean regret", "worst")
    yield f"| criterion | {' | '.join(f'{part}: {heads[0]} | ' + ' | '.join(heads[1:]) for part in parts)} |"
    yield f"|---|{'---|' * (len(heads) * len(parts))}"
    last = list(parts.values())[-1]

    def quality(name: str) -> float:
        return detection(name, [row for scan in last for row in scan.stages])

    for name in sorted(criteria_of(known), key=quality, reverse=True):
        yield f"| {name} | {' | '.join(_criterion(name, part) for part in parts.values())} |"


def _criterion(name: str, scans: Scans) -> str:
    """Return the figures of a criterion on one set."""
    losses = [regret(name, scan) for scan in scans]
    found = [
        by_network(scans, partial(correlation, name), slice(0, 1)),
        by_network(scans, partial(correlation, name), slice(1, None)),
        detection(name, [scan.source for scan in scans]),
        detection(name, [row for scan in scans for row in scan.stages[1:]]),
    ]
    return " | ".join(f"{value:.2f}" for value in found) + f" | {mean(losses):.3f} | {max(losses):.2f}"


def by(scans: Scans, what: str) -> Iterator[str]:
    """Yield the lines of a table by network or by shift."""
    heads = ("scans, failing", "home", "source", "unguarded end", "handed out", "worst change")
    yield f"| {what} | {' | '.join(heads)} | left alone, adapted, unsolved |"
    yield "|---|---|---|---|---|---|---|---|"
    column = {"network": "name", "shift": "shift"}[what]
    for name in dict.fromkeys(scan.source[column] for scan in scans):
        part = [scan for scan in scans if scan.source[column] == name]
        actions = [sum(s.source["action"] == action for s in part) for action in ("left alone", "adapted", "unsolved")]
        means = [mean(getattr(scan, each) for scan in part) for each in ("before", "end", "handed")]
        numbers = [mean(scan.source["home"] for scan in part), *means]
        yield (
            f"| {name} | {len(part)}, {len(failing(part))} | {' | '.join(map(number, numbers))} "
            f"| {signed(min(map(change, part)))} | {', '.join(map(str, actions))} |"
        )


def notable(scans: Scans) -> Iterator[str]:
    """Yield the scans that the default fails on, as lines of a table."""
    yield "| network, person, shift | source | handed out | estimate | verdict before, after | action |"
    yield "|---|---|---|---|---|---|"
    for scan in scans:
        source = scan.source
        wrong = source["final verdict"] == "fine" and scan.handed < FAILING
        if change(scan) < -0.02 or wrong or (scan.fails and source["verdict"] == "fine"):
            who = ", ".join(str(source[name]) for name in ("name", "person", "shift"))
            shown = number(source["final expected"] or math.nan)
            yield (
                f"| {who} | {number(scan.before)} | {number(scan.handed)} | {shown} "
                f"| {source['verdict']}, {source['final verdict']} | {source['action']} |"
            )


def given_up(scans: Scans) -> Iterator[str]:
    """Yield the lines of a table of gains above .01 that do not stay, by what becomes of them."""
    yield "| | gains above .01 | stay | left alone | no stage promises enough | another stage | mean loss of these |"
    yield "|---|---|---|---|---|---|---|"
    for name, part in groups(scans).items():
        gains = [scan for scan in part if scan.end - scan.before > 0.01]
        lost = [scan for scan in gains if change(scan) <= 0.01]
        alone = sum(scan.source["action"] == "left alone" for scan in lost)
        refused = sum(scan.source["action"] == "unsolved" and not scan.source["chosen"] for scan in lost)
        counts = (len(gains), len(gains) - len(lost), alone, refused, len(lost) - alone - refused)
        loss = number(mean(scan.end - scan.handed for scan in lost))
        yield f"| {GROUPS[name]} | {' | '.join(map(str, counts))} | {loss} |"


def page(scans: Scans, text: str) -> str:
    """Return the page, with its tables in place of their names in a text."""
    differing = [s for s in scans if s.source["recorded"] != f"{s.source['action']} {int(s.source['chosen'])}"]
    tables = {
        "MUST HOLD": must_hold(scans),
        "CRITERIA": criteria(scans),
        "NETWORKS": by(scans, "network"),
        "SHIFTS": by(scans, "shift"),
        "NOTABLE": notable(scans),
        "GIVEN UP": given_up(scans),
        "DIFFERING": iter([f"{len(differing)} of {len(scans)}"]),
        "TESTED": iter([str(len({s.source["name"] for s in scans if s.source["group"] == "test"}))]),
    }
    for name, lines in tables.items():
        text = text.replace(f"[{name}]", "\n".join(lines))
    return text


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["rows", "page"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "rows":
        write_rows(list(rows(sorted(given.path.glob("*/rows.jsonl")))), given.out)
    else:
        text = (Path(__file__).parent / "assessment.md").read_text(encoding="utf-8")
        given.out.write_text(page(scans_of(read_rows(given.path)), text), encoding="utf-8")


if __name__ == "__main__":
    main()
