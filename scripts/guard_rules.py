"""Rules of the guard of stability, played back on the paths that `guard_paths.py` noted.

This guard judges segmentations by priors without home readings, and the presets `paper` and `converged`. It was the
default of version 0.1, which all of its result pages are about.

    python scripts/guard_rules.py choose MODELS validation*.jsonl > results/guard_choice.md
    python scripts/guard_rules.py score MODELS test*.jsonl --out results/guard.csv
    python scripts/guard_rules.py table results/guard.csv > results/guard.md
    python scripts/guard_rules.py separation results/guard.csv >> results/guard.md

A path holds every step of an unguarded adaptation, so that one run tells what the guard makes of it under any rules:
`StabilityGuard` itself judges the readings, in order. MODELS is a folder with NAME.safetensors, as the paths' lines
name them. Rules are chosen on validation people; of test people each path is played back once, by `StabilityRules`.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any, NamedTuple

import scantune
from scantune.adaptation.guard.stability import (
    GUARD_PERTURBATIONS,
    StabilityGuard,
    StabilityReading,
    StabilityRules,
)
from scantune.prior.calibration import Calibration
from scantune.prior.perturbations import PERTURBATIONS

DEFAULT = "foe-cnn-pca"
ENDS = ("entropy 1e-3",)
"""Runs of the preset `paper`, of which the guard sees the end alone."""

COLUMNS = (
    *("cohort", "site", "subject", "model", "method", "source_site", "energy", "reading", "dice_before", "dice_free"),
    *("dice_typical", "dice", "steps", "step", "looks", "decision"),
)
Row = dict[str, Any]


class Played(NamedTuple):
    """What the guard made of a path: the step it chose, 0 for the source, and at how many it looked."""

    step: int
    looks: int
    decision: str


def read(files: Iterable[str]) -> list[Row]:
    return [json.loads(line) for name in files for line in Path(name).read_text().splitlines()]


@cache
def calibration(models: str, name: str) -> Calibration:
    known = scantune.load(Path(models) / f"{name}.safetensors").prior
    assert known is not None and known.calibration is not None
    return known.calibration


def look(row: Row, names: Sequence[str]) -> StabilityReading:
    stability = [fmean(each) for each in zip(*(row["stability"][name] for name in names), strict=True)]
    return StabilityReading(tuple(stability), tuple(row["agreement"]), tuple(row["counts"]))


def energy(line: Row) -> float:
    return fmean(line["energies"]["cnn"].values())


def lowest(path: list[Row]) -> Row:
    """Where an unguarded adaptation ends: the eligible step with the lowest objective."""
    return min((row for row in path if row["valid"]), key=lambda row: row["smoothed"], default=path[0])


def play(
    line: Row,
    known: Calibration,
    rules: StabilityRules,
    names: Sequence[str] = GUARD_PERTURBATIONS,
    level: float = -1.0,
) -> Played:
    """Plays the guard back; `level` is the energy at which a run has arrived."""
    path = line["path"]
    end_alone = line["run"] in ENDS
    if not end_alone and energy(line) <= known.levels.low:
        return Played(0, 0, "left alone")
    guard, chosen, best = StabilityGuard(look(path[0], names), rules, known, energy(line)), 0, path[0]["smoothed"]
    for row in [lowest(path)] if end_alone else path[1:]:
        if not row["valid"] or row["smoothed"] >= best:
            continue
        best = row["smoothed"]
        verdict = guard.verdict(look(row, names), row.get("cnn"))
        chosen = row["step"] if verdict == "accepted" else chosen
        if verdict == "strayed" or row.get("cnn", 1.0) <= level:
            break
    return Played(chosen, guard.looks, guard.decision().action)


def dice(line: Row, step: int) -> float:
    return fmean(next(row for row in line["path"] if row["step"] == step)["dice"])


def choose(arguments: argparse.Namespace) -> None:
    lines = read(arguments.files)
    print("Dice against no adaptation, on validation people. Harm: scans that lose more than 0.01; stay: of those that")
    print("the unguarded method improves by more than 0.01, those that stay improved; looks: mean number per scan.\n")
    columns = ["scans", "perturbations", "charge", "worst", "patience", "fall", "mean", "unguarded", "least", "harm"]
    print(f"| {' | '.join([*columns, 'kept', 'stay', 'looks'])} |")
    print("|---" * 13 + "|")
    groups = {
        "simulated, default method": [x for x in lines if x["run"] == DEFAULT and x["cohort"] != "lgg"],
        "simulated, other methods": [x for x in lines if x["run"] != DEFAULT and x["cohort"] != "lgg"],
        "real lesions, default method": [x for x in lines if x["run"] == DEFAULT and x["cohort"] == "lgg"],
    }
    for name, group in groups.items():
        for names, rules in tried(name.startswith("real")) if group else ():
            played = [play(x, calibration(arguments.models, x["model"]), rules, names) for x in group]
            told = f"| {name} | {', '.join(names)} | {rules.charge} | {rules.worst} | {rules.patience} | {rules.fall} |"
            print(told, " | ".join(summary(group, played)), "|")


def tried(lesions: bool) -> Iterator[tuple[Sequence[str], StabilityRules]]:
    """What the choice was made from; with lesions, also how far the energy must fall."""
    sets = [GUARD_PERTURBATIONS, tuple(PERTURBATIONS), ("mirrored", "moved"), ("darker", "brighter", "moved")]
    falls = (0.5, 0.75, 0.9, 1.0) if lesions else (StabilityRules.fall,)
    for names, charge, worst, patience, fall in product(sets, (0.0, 0.05, 0.1), (0.0, 0.5, 1.0), (4, 6, 8, 99), falls):
        if not (lesions and worst):  # of one structure, the mean is the least
            yield names, StabilityRules(charge=charge, worst=worst, patience=patience, fall=fall)


def summary(lines: list[Row], played: list[Played]) -> list[str]:
    change = [dice(x, p.step) - dice(x, 0) for x, p in zip(lines, played, strict=True)]
    free = [fmean(lowest(x["path"])["dice"]) - dice(x, 0) for x in lines]
    improved = [one for one, other in zip(change, free, strict=True) if other > 0.01]
    return [
        *(f"{fmean(change):+.4f}", f"{fmean(free):+.4f}", f"{min(change):+.3f}"),
        str(sum(value < -0.01 for value in change)),
        f"{sum(p.step > 0 for p in played)}/{len(lines)}",
        f"{sum(value > 0 for value in improved)}/{len(improved)}",
        f"{fmean(p.looks for p in played):.1f}",
    ]


def score(arguments: argparse.Namespace) -> None:
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for line in read(arguments.files):
            known = calibration(arguments.models, line["model"])
            played = play(line, known, StabilityRules())
            stopped = play(line, known, StabilityRules(), level=known.typical)
            rows.writerow(
                {
                    **{name: line[name] for name in ("cohort", "site", "subject", "model", "source_site")},
                    **{"method": line["run"], "energy": f"{energy(line):.5f}", "reading": known.reading(energy(line))},
                    "dice_before": f"{dice(line, 0):.4f}",
                    "dice_free": f"{fmean(lowest(line['path'])['dice']):.4f}",
                    "dice_typical": f"{dice(line, stopped.step):.4f}",
                    "dice": f"{dice(line, played.step):.4f}",
                    **{"steps": line["path"][-1]["step"], "step": played.step, "looks": played.looks},
                    "decision": played.decision,
                }
            )


def scored(files: Iterable[str]) -> list[Row]:
    rows: list[Row] = [row for path in files for row in csv.DictReader(Path(path).read_text().splitlines())]
    for row in rows:
        row |= {name: float(row[name]) for name in ("energy", "dice_before", "dice_free", "dice_typical", "dice")}
    return rows


def table(arguments: argparse.Namespace) -> None:
    rows = scored(arguments.files)
    _by_centre(rows)
    _bounds([row for row in rows if row["method"] == DEFAULT and row["cohort"] not in REAL])
    _by_method(rows)
    _stopping(rows)


def separation(arguments: argparse.Namespace) -> None:
    _separation(scored(arguments.files))


def _grouped(rows: list[Row], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    yield from groups.items()


def _gains(rows: list[Row], column: str = "dice") -> list[float]:
    return [row[column] - row["dice_before"] for row in rows]


def _by_centre(rows: list[Row]) -> None:
    print(f"## {DEFAULT} under the guard, by centre\n")
    print("| cohort | centre | scans | source | unguarded | guarded | worst scan | adapted | unsolved | left alone |")
    print("|---" * 10 + "|")
    for (cohort, site), group in _grouped([row for row in rows if row["method"] == DEFAULT], "cohort", "site"):
        means = [f"{fmean(row[name] for row in group):.3f}" for name in ("dice_before", "dice_free", "dice")]
        made = [str(sum(row["decision"] == what for row in group)) for what in ("adapted", "unsolved", "left alone")]
        cells = [cohort, site, str(len(group)), *means, f"{min(_gains(group)):+.3f}", *made]
        print(f"| {' | '.join(cells)} |")


def _bounds(rows: list[Row]) -> None:
    """What the default method on simulated scans is held to, in one line each."""
    if not rows:
        return
    mean, *where = min((fmean(_gains(group)), *key) for key, group in _grouped(rows, "cohort", "site"))
    scan = min(rows, key=lambda row: row["dice"] - row["dice_before"])
    shifted = [row for row in rows if row["site"] != row["source_site"]]
    read = [row for row in shifted if row["reading"] != "typical"]
    back, of_read = (sum(row["decision"] == "unsolved" for row in group) for group in (shifted, read))
    improved = [row for row in shifted if row["dice_free"] - row["dice_before"] > 0.01]
    stay = [sum(gain > least for gain in _gains(improved)) for least in (0, 0.01)]
    told = (
        f"Simulated scans. The mean of a centre changes by {mean:+.4f} at the least ({', '.join(where)}), that of a "
        f"scan by {scan['dice'] - scan['dice_before']:+.4f} ({scan['cohort']}, {scan['site']}). Rolled back are {back} "
        f"of {len(shifted)} shifted scans, {of_read} of the {len(read)} that do not read as typical. Of "
        f"{len(improved)} shifted scans that improve by more than 0.01 unguarded, {stay[0]} stay improved, {stay[1]} "
        "by more than 0.01."
    )
    print("\n" + fill(told, 120))


def _by_method(rows: list[Row]) -> None:
    print("\n## Every method\n")
    print("Harmful: loses more than 0.01 unguarded, and how many of these the guard lets through. Improved: gains more")
    print("than 0.01 unguarded, and how many of these stay improved. Caught: loses more than 0.05 unguarded, and how")
    print("many of these lose less than 0.01 under the guard. Gain kept: mean change under the guard and without it.\n")
    print("| data | method | scans | harmful, let through | improved, stay | caught | unsolved | gain kept | worst |")
    print("|---" * 9 + "|")
    for (cohort, method), group in [
        *(((("simulated", m)), g) for (m,), g in _grouped([r for r in rows if r["cohort"] not in REAL], "method")),
        *_grouped([row for row in rows if row["cohort"] in REAL], "cohort", "method"),
    ]:
        pairs = list(zip(_gains(group), _gains(group, "dice_free"), strict=True))
        shifted = [row for row in group if row["site"] != row["source_site"]]
        back = sum(row["decision"] == "unsolved" for row in shifted)
        cells = [
            f"{sum(f < -0.01 for _, f in pairs)}, {sum(g < -0.01 for g, _ in pairs)}",
            f"{sum(f > 0.01 for _, f in pairs)}, {sum(f > 0.01 and g > 0 for g, f in pairs)}",
            f"{sum(f < -0.05 and g > -0.01 for g, f in pairs)} of {sum(f < -0.05 for _, f in pairs)}",
            f"{back} of {len(shifted)} shifted",
            f"{fmean(g for g, _ in pairs):+.4f} of {fmean(f for _, f in pairs):+.4f}",
            f"{min(g for g, _ in pairs):+.3f}",
        ]
        print(f"| {cohort} | {method} | {len(group)} | {' | '.join(cells)} |")


REAL = ("lgg", "oasis")


def _stopping(rows: list[Row]) -> None:
    print(f"\n## When to stop: mean change of Dice of {DEFAULT} (worst scan)\n")
    print("| cohort | all steps | the guard's choice up to a typical energy | the guard's choice of all |")
    print("|---" * 4 + "|")
    for (cohort,), group in _grouped([row for row in rows if row["method"] == DEFAULT], "cohort"):
        columns = [_gains(group, name) for name in ("dice_free", "dice_typical", "dice")]
        print(f"| {cohort} | {' | '.join(f'{fmean(gains):+.4f} ({min(gains):+.3f})' for gains in columns)} |")


def _separation(rows: list[Row]) -> None:
    print("\n## How well the energy tells shifted scans from those of the training site\n")
    print("| cohort | in-domain scans | shifted scans | AUROC | read as typical, in-domain | shifted |")
    print("|---" * 6 + "|")
    for (cohort,), group in _grouped([row for row in rows if row["method"] == DEFAULT], "cohort"):
        own, other = ([r for r in group if (r["site"] == r["source_site"]) == same] for same in (True, False))
        if own and other:
            wins = [(b["energy"] > a["energy"]) + 0.5 * (b["energy"] == a["energy"]) for a in own for b in other]
            typical = [f"{sum(r['reading'] == 'typical' for r in part)} of {len(part)}" for part in (own, other)]
            print(f"| {cohort} | {len(own)} | {len(other)} | {fmean(wins):.2f} | {' | '.join(typical)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (("choose", choose), ("score", score), ("table", table), ("separation", separation)):
        command = commands.add_parser(name)
        if action in (choose, score):
            command.add_argument("models")
        command.add_argument("files", nargs="+")
        if action is score:
            command.add_argument("--out", required=True)
        command.set_defaults(action=action)
    chosen = parser.parse_args()
    chosen.action(chosen)
