"""Rows of the benchmark: one for each stage of each scan, with every criterion, the assessment and the decisions.

Criteria are turned so that more means worse. The decision is that of `Rescue`, played back on the stored readings; it
does not need the networks again when coefficients change.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from scantune.adaptation.guard.base import Decision
from scantune.adaptation.guard.rescue import Margins, Rescue, Stage
from scantune.prior.assessment import assess
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings

Line = dict[str, Any]

WHOSE = ("group", "name", "person", "shift")
"""Columns that say which scan a row is of."""

ODD, FALLEN, LOW_ENERGY = 2.5, 0.6, 0.2
"""The simple rule: adapt to the end if proportions are this odd; keep the end if their oddness falls below this share,
and the energy below this share of what it was."""

LEAST_DEVIATION = {
    "proportions": 0.05,
    "volume": 0.05,
    "largest": 0.02,
    "continuity": 0.02,
    "outline": 0.1,
    "depth": 0.02,
}
"""Least deviations between home people, in the units of the readings."""

FARTHEST = 20.0
"""Deviations from home at which a reading is cut off, and which a structure counts that is not there."""


def readings_of(stage: Line) -> Readings:
    """Return the readings of a stage."""
    steadiness = {name: tuple(values) for name, values in stage["steadiness"].items()}
    return Readings(tuple(stage["sizes"]), steadiness, tuple(map(tuple, stage["contacts"])))


def home_of(line: Line) -> HomeReadings:
    """Return the home readings of a trial."""
    home = HomeReadings.from_tensors({name: torch.tensor(values) for name, values in line["home"].items()})
    assert home is not None
    return home


def play(home: HomeReadings, names: Sequence[str], stages: Sequence[Line]) -> tuple[Decision, int]:
    """Return the decision of the default on a scan, and the step whose prediction is handed out."""
    source, *others = map(readings_of, stages)
    reader: Any = None  # everything has been read
    rescue = Rescue(reader, home, names, source, assess(source, home, names), Margins.of(home))
    numbered = [Stage(line["step"], {}, each) for line, each in zip(stages[1:], others, strict=True)]
    stage = rescue.choose(numbered)
    decision = rescue.settle(None if stage is None else stage.readings)
    return decision, stage.step if stage is not None and decision.keeps_adapted else 0


def proportions(stage: Line) -> list[float]:
    """Return the logarithm of each structure's share, or of 1e-3 where it has less."""
    total = sum(stage["sizes"])
    return [math.log(max(size / total if total else 0.0, 1e-3)) for size in stage["sizes"]]


def volume(stage: Line) -> list[float]:
    """Return the logarithm of the volume of all structures, or of 1e-6 mL where there is less."""
    return [math.log(max(sum(stage["sizes"]), 1e-6))]


def deviations(
    read: Callable[[Line], Sequence[float | None]], name: str, home: Sequence[Line]
) -> Callable[[Line], list[float]]:
    """Return a function from a stage to distances from the median of home scans, in deviations between these."""
    columns = [[value for value in column if value is not None] for column in zip(*map(read, home), strict=True)]
    middles = [float(np.median(column)) if column else 0.0 for column in columns]
    spreads = [max(float(np.std(column)) if column else 0.0, LEAST_DEVIATION[name]) for column in columns]

    def away(stage: Line) -> list[float]:
        parts = zip(read(stage), middles, spreads, strict=True)
        return [
            FARTHEST if value is None else min(abs(value - middle) / spread, FARTHEST)
            for value, middle, spread in parts
        ]

    return away


class Badness:
    """Criteria of the stages of a trial, by name; more means worse."""

    def __init__(self, line: Line) -> None:
        self.home, scans = home_of(line), line["scans"]
        self.proportions = deviations(proportions, "proportions", scans)
        self.volume = deviations(volume, "volume", scans)
        shapes = ("largest", "continuity", "outline", "depth")
        self.shapes = {name: deviations(lambda stage, name=name: stage[name], name, scans) for name in shapes}  # type: ignore[misc]

    def __call__(self, stage: Line) -> dict[str, float]:
        """Return the criteria of a stage."""
        readings = readings_of(stage)
        middle = self.home.size[0].tolist()
        sizes = [abs(math.log(max(size, 1e-6)) - each) for size, each in zip(stage["sizes"], middle, strict=True)]
        contacts = 0.5 * (torch.tensor(readings.contacts, dtype=torch.double) - self.home.contacts).abs().sum(1)
        return {
            "proportions": max(self.proportions(stage)),
            "volume": max(self.volume(stage)),
            "sizes": fmean(min(each, 3.0) for each in sizes),
            **{name: 1 - fmean(values) for name, values in stage["steadiness"].items()},
            "contacts": float(contacts.mean()),
            "soft Dice": 1 - fmean(stage["soft"]),
            "confidence": 1 - stage["confidence"],
            "entropy": stage["entropy"],
            "CS-TS": 1 - fmean(stage["temperature"]),
            "CS-DoC": 1 - fmean(stage["difference"]),
            "CS-ATC": 1 - fmean(stage["threshold"]),
            **{name: fmean(away(stage)) for name, away in self.shapes.items()},
            **{f"energy, {name}": value for name, value in stage["energies"].items()},
        }


def scan_rows(home: Line, badness: Badness, line: Line) -> Iterator[Line]:
    """Yield the rows of a scan; what is decided about the scan is in the first."""
    names = sorted(home["labels"], key=lambda name: home["labels"][name])
    decision, chosen = play(badness.home, names, line["stages"])
    whose = {name: {**home, **line}[name] for name in WHOSE}
    found = [badness(stage) for stage in line["stages"]]
    final = decision.assessment
    low, high = final["expected_range"] or (None, None)
    decided = {
        **{"action": decision.action, "chosen": chosen, "final verdict": final["verdict"]},
        **{"final expected": final["expected"], "final low": low, "final high": high},
        **{
            "recorded": f"{line['action']} {line['chosen']}",
            "guard": fmean(line["guard"]) if "guard" in line else None,
        },
        "simple": int(accepted(found)),
    }
    for stage, criteria in zip(line["stages"], found, strict=True):
        told = assess(readings_of(stage), badness.home, names)
        verdict = {"verdict": told.verdict, "expected": told.expected, "low": told.low, "high": told.high}
        usual = {"home": told.home}
        first = decided if stage["step"] == 0 else {}
        yield {**whose, "step": stage["step"], "dice": fmean(stage["dice"]), **usual, **verdict, **criteria, **first}


def accepted(found: Sequence[dict[str, float]]) -> bool:
    """Return True if the simple rule keeps the end of a path."""
    before, after = found[0], found[-1]
    falls = after["energy, product"] < LOW_ENERGY * before["energy, product"]
    return before["proportions"] > ODD and falls and after["proportions"] < FALLEN * before["proportions"]


def rows(files: Iterable[Path]) -> Iterator[Line]:
    """Yield the rows of measured trials."""
    for path in files:
        home, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        badness = Badness(home)
        for line in lines:
            yield from scan_rows(home, badness, line)


def short(value: object) -> object:
    """Return a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else value


def write_rows(found: Sequence[Line], out: Path) -> None:
    """Write rows as CSV."""
    columns = list(dict.fromkeys(name for row in found for name in row))
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: short(value) for name, value in row.items()} for row in found)


def read_rows(path: Path) -> list[Line]:
    """Read rows from CSV, numbers as numbers and what is not there as None."""
    return [
        {name: value if name in WHOSE else _parsed(value) for name, value in row.items()}
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]


def _parsed(value: str) -> float | str | None:
    try:
        return float(value)
    except ValueError:
        return value or None
