"""Margin of the choice of a stage, fitted to whole adaptations of degraded scans: stages, choice, and gain of Dice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import fmean

from scantune.adaptation.guard.rescue import Margins, Rescue, Stage
from scantune.prior.assessment import assess
from scantune.prior.coefficients import Contest
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.prediction_reader import PredictionReader

GAINS = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2)
"""Margins that are tried; the shipped one is among them."""

LOSSES_COUNT = 3.0
"""How many times a loss of Dice counts."""

DISTANCE_COST = 0.002
"""Cost in Dice of a margin that is e times the shipped one, or as many times smaller."""


@dataclass(frozen=True)
class Rehearsed:
    """An adaptation of a degraded scan, graded.

    Args:
        person: Number of the person.
        family: The family of degradations.
        home: Readings of the other people.
        reader: What its predictions were read by.
        source: Readings of the source prediction.
        stages: Stages; their readings are graded, and by all perturbations.
    """

    person: int
    family: str
    home: HomeReadings
    reader: PredictionReader
    source: GradedReadings
    stages: Sequence[Stage]

    def gain(self, margins: Margins) -> float:
        """Return the rise of the true Dice that the whole procedure would realise."""
        rescue = Rescue(self.reader, self.home, (), self.source, assess(self.source, self.home), margins)
        stage = None if rescue.leaves_alone else rescue.choose(self.stages)
        readings = None if stage is None else stage.readings
        if readings is None or not rescue.settle(readings).keeps_adapted:
            return 0.0
        assert isinstance(readings, GradedReadings)
        return readings.mean_dice - self.source.mean_dice


def fit_gain(runs: Sequence[Rehearsed]) -> tuple[float | None, Contest]:
    """Return the margin of most value, and how it does against the shipped one.

    Returns:
        The smallest rise of the expected Dice for which a stage is to be kept, None without adaptations; and the mean
        values of the local and the shipped margin for people and families of degradations left out of the fit.
    """
    shipped = Margins()
    columns = [[_value(run.gain(replace(shipped, gain=gain))) for run in runs] for gain in GAINS]
    costs = [DISTANCE_COST * abs(log(gain / shipped.gain)) for gain in GAINS]

    def best(chosen: Sequence[int]) -> int:
        worth = [fmean(column[place] for place in chosen) - cost for column, cost in zip(columns, costs, strict=True)]
        return worth.index(max(worth))

    if not runs:
        return None, Contest(0.0, 0.0)
    known, held_out = columns[GAINS.index(shipped.gain)], []
    for place, run in enumerate(runs):
        others = [number for number, each in enumerate(runs) if each.person != run.person and each.family != run.family]
        held_out.append(columns[best(others)][place] if others else known[place])
    return GAINS[best(range(len(runs)))], Contest(fmean(held_out), fmean(known))


def _value(gain: float) -> float:
    """Return what a gain is worth."""
    return gain if gain > 0 else LOSSES_COUNT * gain
