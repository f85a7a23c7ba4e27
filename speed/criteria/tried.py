"""Settings of the assessment and of the rescue that were tried, played back on what the benchmark measured.

    python speed/criteria/tried.py FOLDER [--groups GROUP ...] --out results/assessment-tried.md

FOLDER is that of `run.py`. Only sets on which rules may be chosen belong here. Each row changes one setting and keeps
the others as they are in the code.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

import torch
from figures import auroc
from rows import Badness, Line, home_of, readings_of, rows

from scans import (
    FAILING,
    Scan,
    Scans,
    called_failed,
    change,
    error,
    failing,
    failure_auroc,
    failure_sensitivity,
    mean,
    scans_of,
    share_kept,
    stay_improved,
    usable,
    wrongly_fine,
)
from scantune.adaptation.guard.rescue import Margins, Rescue
from scantune.adaptation.guard.rescue import Stage as Chosen
from scantune.prior.assessment import DEVIATIONS, TELLING, Excesses
from scantune.prior.coefficients import SHIPPED
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings
from scantune.prior.odds import dice_from

Change = dict[str, Any]
VARIANTS: dict[str, Change] = {
    "as it is": {},
    "fine whatever the low end of the range": {"least": 0.0},
    "perturbations count alike": {"telling": 0},
    "perturbations count by the Dice at home": {"telling": 1},
    "perturbations count by its fourth power": {"telling": 4},
    "sizes count from 1.5 deviations on": {"usual": 1.5},
    "the same, 1.47 times": {"usual": 1.5, "size": 1.47},
    "sizes count from 2.5 deviations on": {"usual": 2.5},
    **{f"sizes count {value}": {"size": value} for value in (1.47, 2.1)},
    **{f"contacts count {value}": {"contact": value} for value in (1.5, 3.0, 4.0)},
    **{f"unsteadiness counts {value}": {"unsteady": value} for value in (1.3, 2.1)},
    **{f"fine from {value} of home on": {"fine": value} for value in (0.85, 0.88, 0.95)},
    **{f"failed below {value} of home": {"failed": value} for value in (0.7, 0.8)},
    **{f"rise of at least {value}": {"gain": value} for value in (0.02, 0.03, 0.1)},
    **{f"rise of at least {value} of the distance to home": {"share": value} for value in (0.25, 0.35, 0.75)},
    "rise of at least 0.03, and of 0.25 of the distance to home": {"gain": 0.03, "share": 0.25},
    **{f"stages within {value} of the best are equal": {"plateau": value} for value in (0.0, 0.05)},
    "steady predictions are given up, too": {"steady": 0.0},
    "steady predictions are not given up even if they have failed": {"failed steady": True},
    "rises that only mirroring and contacts see do not count": {"compared": True},
    "rules of the earlier report": {
        **{"least": 0.0, "telling": 0, "usual": 1.5, "size": 1.47, "failed steady": True, "compared": True},
    },
}

FIGURES: dict[str, Callable[[Scans], float]] = {
    "share kept": partial(share_kept, "handed"),
    "worst of usable": lambda s: min(map(change, usable(s)), default=0.0),
    "failing, lost > .05": lambda s: sum(change(each) < -0.05 for each in failing(s)),
    "fine though < .7": wrongly_fine,
    "adapted though < .7": lambda s: sum(each.handed < FAILING for each in _solved(s)),
    "rescued, yet unsolved": lambda s: sum(
        each.handed >= FAILING and each.source["action"] == "unsolved" for each in failing(s)
    ),
    "stay improved": stay_improved,
    "median error": error,
    "AUROC": failure_auroc,
    "sensitivity": failure_sensitivity,
    "usable called fine": lambda s: mean(each.source["verdict"] == "fine" for each in usable(s)),
    "usable called failed": lambda s: called_failed(usable(s)),
}


def _solved(scans: Scans) -> Scans:
    """Return the failing scans whose adaptation counts as solved."""
    return [each for each in failing(scans) if each.source["action"] == "adapted"]


_GIVES_UP, _CHOOSE = Rescue._gives_up_steadiness, Rescue.choose


def _if_failed_too(rescue: Rescue, stage: Chosen) -> bool:
    """Return True if a steady prediction would be given up for its sizes alone, failed or not."""
    return _GIVES_UP(replace(rescue, before=replace(rescue.before, verdict="doubtful")), stage)


def _by_what_compares(rescue: Rescue, stages: Sequence[Chosen]) -> Chosen | None:
    """Choose a stage whose rise counts by what compares stages alone."""
    stage = _CHOOSE(rescue, stages)
    return stage if stage is not None and rescue._rises(stage.readings) else None


def varied(files: Sequence[Path], variant: Change) -> Scans:
    """Return scans with the decisions that they get under a changed setting."""
    weights = {name: value for name, value in variant.items() if hasattr(SHIPPED, name)}
    margins = {name: value for name, value in variant.items() if hasattr(Margins(), name)}
    with ExitStack() as stack:
        stack.enter_context(patch("scantune.prior.assessment.TELLING", variant.get("telling", TELLING)))
        usual = {"size": variant.get("usual", DEVIATIONS["size"])}
        stack.enter_context(patch.dict("scantune.prior.assessment.DEVIATIONS", usual))
        if variant.get("failed steady"):
            stack.enter_context(patch.object(Rescue, "_gives_up_steadiness", _if_failed_too))
        if variant.get("compared"):
            stack.enter_context(patch.object(Rescue, "choose", _by_what_compares))
        stack.enter_context(patch("scantune.prior.home_readings.SHIPPED", replace(SHIPPED, **weights)))
        stack.enter_context(patch.object(Margins, "of", lambda _home: replace(Margins(), **margins)))
        return scans_of(rows(files))


@dataclass(frozen=True)
class Stage:
    """A prediction with what a further reading would make of it.

    Args:
        home: Readings of home scans.
        readings: Its readings.
        dice: Its mean Dice.
        away: By name of a shape, how far it is from that at home `(structures,)`, in deviations.
    """

    home: HomeReadings
    readings: Readings
    dice: float
    away: dict[str, torch.Tensor]

    def expected(self, shape: str, weight: float, dead: float) -> float:
        """Return the expected Dice if a shape counts from so many deviations on, as contacts do."""
        gone = torch.tensor([size == 0 for size in self.readings.sizes])
        worse = Excesses.of(self.readings, self.home).worse(self.home.coefficients, gone)
        if shape:
            odd = (self.away[shape] - dead).clamp_min(0) * ~gone
            worse = worse.clamp_min(weight * float(odd.sum() / (~gone).sum().clamp_min(1)))
        each = self.home.expected * torch.where(gone, self.home.absent, dice_from(worse))
        return float(each.mean())


SHAPES = {
    "no further reading": ("", 0.0, 0.0),
    **{f"{shape}, {weight} from 2 deviations on": (shape, weight, 2.0) for shape in ("depth", "continuity", "outline")
       for weight in (0.05, 0.1, 0.2)},
    **{f"depth, {weight} from 5 deviations on": ("depth", weight, 5.0) for weight in (0.1, 0.2)},
}  # fmt: skip


def sources(files: Iterable[Path]) -> Iterator[Stage]:
    """Yield the source predictions that were measured."""
    for path in files:
        line, *scans = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        home, away = home_of(line), Badness(line).shapes
        for scan in scans:
            stage: Line = scan["stages"][0]
            shapes = {name: torch.tensor(measured(stage), dtype=torch.double) for name, measured in away.items()}
            yield Stage(home, readings_of(stage), fmean(stage["dice"]), shapes)


def shape_rows(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the table of further readings."""
    found = list(sources(files))
    yield "| further reading | median error | mean error | AUROC | failing and expected above .9 |"
    yield "|---|---|---|---|---|"
    for name, (shape, weight, dead) in SHAPES.items():
        told = [(stage.expected(shape, weight, dead), stage.dice) for stage in found]
        errors = [abs(one - dice) for one, dice in told]
        bad, good = ([-one for one, dice in told if (dice < FAILING) == fails] for fails in (True, False))
        missed = sum(one > 0.9 and dice < FAILING for one, dice in told)
        yield f"| {name} | {median(errors):.3f} | {fmean(errors):.3f} | {auroc(bad, good):.3f} | {missed} |"


def variant_rows(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the table of settings."""
    yield f"| setting | {' | '.join(FIGURES)} |"
    yield f"|---|{'---|' * len(FIGURES)}"
    for name, variant in VARIANTS.items():
        scans = varied(files, variant)
        yield f"| {name} | {' | '.join(f'{figure(scans):.3g}' for figure in FIGURES.values())} |"


SOLVED = (0.75, 0.8, 0.85, 0.9, 0.92, 0.95)
"""Shares of the home Dice from which on a scan that had failed would count as solved."""


def solved_rows(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the table of such shares, over failing scans whose adapted prediction is handed out."""
    kept = [scan for scan in failing(scans_of(rows(files))) if scan.source["chosen"]]
    yield "| solved from this share of home on | solved, of those above .7 | solved, of those below |"
    yield "|---|---|---|"
    for share in SOLVED:
        parts = ([scan for scan in kept if (scan.handed < FAILING) == low] for low in (False, True))
        counts = (f"{sum(_share(scan) >= share for scan in part)} of {len(part)}" for part in parts)
        yield f"| {share} | {' | '.join(counts)} |"


ENERGIES, TIMES = ("product", "foreground", "joint", "by class"), 3.0
"""Energies that might refuse an adapted prediction, and from how many times the largest one of home scans on."""


def energy_rows(files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the table of predictions that look fine after a failure, and of energies that refuse them."""
    most: dict[str, Line] = {}
    for path in files:
        line = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
        most[line["name"]] = {name: max(scan["energies"][name] for scan in line["scans"]) for name in ENERGIES}
    fine = SHIPPED.fine
    kept = [s for s in failing(scans_of(rows(files))) if s.source["chosen"] and _share(s) >= fine]
    yield "| fine after a failure, but refused by the energy | refused, of those above .7 | refused, of those below |"
    yield "|---|---|---|"
    for name in ENERGIES:
        odd = [_handed(scan)[f"energy, {name}"] > TIMES * most[scan.source["name"]][name] for scan in kept]
        parts = ([no for no, scan in zip(odd, kept, strict=True) if (scan.handed < FAILING) == low] for low in (0, 1))
        yield f"| {name} | {' | '.join(f'{sum(part)} of {len(part)}' for part in parts)} |"


def _share(scan: Scan) -> float:
    """Return what is expected of the prediction that is handed out, as a share of the home Dice."""
    stage = _handed(scan)
    return float(stage["expected"] / stage["home"])


def _handed(scan: Scan) -> Line:
    """Return the stage that is handed out."""
    return next(stage for stage in scan.stages if stage["step"] == scan.source["chosen"])


def files_of(folder: Path, groups: Sequence[str]) -> dict[str, list[Path]]:
    """Return the measured files of each set."""
    found: dict[str, list[Path]] = {group: [] for group in groups}
    for path in sorted(folder.glob("*/rows.jsonl")):
        with path.open(encoding="utf-8") as file:
            group = json.loads(file.readline())["group"]
        if group in found:
            found[group].append(path)
    return found


def page(folder: Path, groups: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Assessment and rescue: what was tried"
    for group, files in files_of(folder, groups).items():
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) - 1 for path in files)
        yield f"\n## Set: {group}\n\nNetworks: {len(files)}; scans: {count}.\n"
        yield from variant_rows(files)
        yield ""
        yield from solved_rows(files)
        yield ""
        yield from energy_rows(files)
        yield ""
        yield from shape_rows(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--groups", nargs="+", default=["development", "seen", "newborns", "lesions"])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text("\n".join([*page(given.folder, given.groups), ""]), encoding="utf-8")
