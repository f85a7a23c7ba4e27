"""Assessment of a prediction without labels: fine, doubtful or failed, with an expected Dice.

Three readings of every structure count: its size, its steadiness and its contacts. They count only as far as they
exceed those of held-out source scans. So a perturbation that says nothing at home says nothing here, and a vanished
structure is no evidence of steadiness. Sizes and steadiness are put on one scale, the odds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, Self

import torch
from torch import Tensor

from scantune.prior.coefficients import Coefficients
from scantune.prior.home_readings import HomeReadings, contacts_apart
from scantune.prior.label_readings import Readings
from scantune.prior.odds import SMALLEST, dice_from, odds
from scantune.prior.perturbations import SHOWING

Verdict = Literal["fine", "doubtful", "failed"]

PEOPLE_FOR_A_RANGE = 5
"""Smallest number of held-out people for which an estimate has a range."""

NOTABLE = 0.1
"""Odds from which an excess is worth a sentence: a twentieth of the Dice."""

TELLING = 2
"""Power of the Dice that a perturbation has at home by which it counts."""

DEVIATIONS = {"size": 2.0, "unsteady": 1.0, "contact": 1.5}
"""Deviations from the middle of home people that count as usual."""


@dataclass(frozen=True)
class Assessment:
    """Estimate of the quality of a prediction.

    Args:
        verdict: `fine`, `doubtful` or `failed`. Also doubtful is what is as good as at home but may well be poor.
        expected: Mean Dice over structures, or agreement where home Dice is not known.
        low: Eight of ten such predictions lie between this ...
        high: ... and this; both None with too few home people.
        structures: What is expected of each structure.
        reasons: Sentences, the weightiest first; none where all is as at home.
        home: What is expected of a prediction that is as good as at home.
        labelled: Whether `expected` is a Dice.
        leave: Whether adapting can hardly help: the prediction is fine, or it is as good as at home or of structures
            that vary too much to be judged, and even one as good as at home would not be fine.
    """

    verdict: Verdict
    expected: float
    low: float | None
    high: float | None
    structures: tuple[float, ...]
    reasons: tuple[str, ...]
    home: float = 1.0
    labelled: bool = True
    leave: bool = False


@dataclass(frozen=True)
class Excesses:
    """Amounts by which readings exceed those at home, by structure `(structures,)`; 0 if they are as at home.

    Args:
        unsteady: In odds.
        size: In logarithms.
        contact: In shares of the outline; 0 where a structure vanished.
    """

    unsteady: Tensor
    size: Tensor
    contact: Tensor

    @classmethod
    def of(cls, readings: Readings, home: HomeReadings, using: Sequence[str] = SHOWING) -> Self:
        """Compare readings with those at home, by the perturbations that count."""
        sizes = torch.tensor(readings.sizes, dtype=torch.double)
        middle, spread = home.sizes_for(readings.length)
        size = ((sizes.clamp_min(1e-30).log() - middle).abs() - DEVIATIONS["size"] * spread).clamp_min(0)
        touching = torch.tensor(readings.contacts, dtype=torch.double)
        contact = _above(contacts_apart(touching, home.contacts), home.apart, "contact") * (sizes > 0)
        return cls(_unsteady(readings, home, using), size, contact)

    def worse(self, coefficients: Coefficients, gone: Tensor) -> Tensor:
        """Sum up the excesses in odds `(structures,)`; contacts count over all structures that are there."""
        apart = coefficients.contact * self.contact.sum() / (~gone).sum().clamp_min(1)
        return (coefficients.unsteady * self.unsteady + coefficients.size * self.size).clamp_min(float(apart))


def _unsteady(readings: Readings, home: HomeReadings, using: Sequence[str]) -> Tensor:
    """Return the mean excess of unsteadiness of each structure.

    Perturbations count by a power of the Dice that they have at home: the more one changes there, the less it shows.
    """
    known = [name for name in using if name in home.unsteady and name in readings.steadiness]
    if not known:
        return torch.zeros(readings.structures, dtype=torch.double)
    excess = [_above(odds(_row(readings.steadiness[name])), home.unsteady[name], "unsteady") for name in known]
    weights = torch.stack([dice_from(home.unsteady[name][0]) ** TELLING for name in known]).clamp_min(SMALLEST)
    return (weights * torch.stack(excess)).sum(0) / weights.sum(0)


def _row(values: Sequence[float]) -> Tensor:
    """Make a tensor of double precision."""
    return torch.tensor(values, dtype=torch.double)


def _above(values: Tensor, home: Tensor, kind: str) -> Tensor:
    """Compute the amount by which values exceed the usual range of home people."""
    middle, spread = home[0], home[1]
    return (values - middle - DEVIATIONS[kind] * spread).clamp_min(0)


def assess(
    readings: Readings,
    home: HomeReadings,
    names: Sequence[str] = (),
    using: Sequence[str] = SHOWING,
    coefficients: Coefficients | None = None,
) -> Assessment:
    """Assess a prediction by its readings.

    Args:
        readings: Of the prediction.
        home: What readings are at home.
        names: What the structures are called.
        using: The perturbations that count.
        coefficients: What readings count; by default those of `home`.
    """
    coefficients = coefficients or home.coefficients
    gone = torch.tensor([size == 0 for size in readings.sizes])
    worse = Excesses.of(readings, home, using).worse(coefficients, gone)
    each = home.expected * torch.where(gone, home.absent, dice_from(worse))
    moved = zip(coefficients.widest, (coefficients.shifts[0], -coefficients.shifts[1]), strict=True)
    low, high = (torch.where(gone, each, home.expected * dice_from(scale * worse + shift)) for scale, shift in moved)
    full = float(home.expected.mean())
    share = float(each.mean()) / max(full, SMALLEST)
    verdict, leave = _judge(share, low, home, coefficients)
    why = reasons(readings, home, names, using, coefficients)
    ends = [float(end.mean()) if home.people >= PEOPLE_FOR_A_RANGE else None for end in (low, high)]
    found, labelled = tuple(each.tolist()), home.dice is not None
    return Assessment(verdict, float(each.mean()), ends[0], ends[1], found, why, full, labelled, leave)


def _judge(share: float, low: Tensor, home: HomeReadings, coefficients: Coefficients) -> tuple[Verdict, bool]:
    """Return the verdict on a prediction, and whether to leave it alone.

    Args:
        share: What is expected of it, as a share of that at home.
        low: The low end of what is expected of each structure.
        home: What readings are at home.
        coefficients: The limits.
    """
    found = home.absent <= 0.5
    labelled = home.dice is not None and bool(found.any())
    usual = float(home.expected[found].mean() * dice_from(torch.tensor(coefficients.shifts[0]))) if labelled else 1.0
    poor_at_home = usual < coefficients.least
    if share < coefficients.fine:
        return "failed" if share < coefficients.failed else "doubtful", poor_at_home and home.varies
    if not labelled or float(low[found].mean()) >= coefficients.least:
        return "fine", True
    return "doubtful", poor_at_home


def reasons(
    readings: Readings,
    home: HomeReadings,
    names: Sequence[str] = (),
    using: Sequence[str] = SHOWING,
    coefficients: Coefficients | None = None,
) -> tuple[str, ...]:
    """Describe in sentences what differs notably from home, the weightiest first."""
    coefficients = coefficients or home.coefficients
    found = Excesses.of(readings, home, using)
    found_signs: list[tuple[float, str]] = []
    for number, amount in enumerate(readings.sizes):
        name = names[number] if number < len(names) else f"structure {number + 1}"
        if amount == 0:
            found_signs += [(math.inf, f"No {name} was found.")] if float(home.absent[number]) < 1 else []
            continue
        size, unsteady, contact = (float(each[number]) for each in (found.size, found.unsteady, found.contact))
        kept = fmean([readings.steadiness[key][number] for key in using if key in readings.steadiness] or [1.0])
        usual = math.exp(float(home.sizes_for(readings.length)[0, number]))
        found_signs += [
            (coefficients.size * size, _sized(name, amount, usual)),
            (coefficients.unsteady * unsteady, f"The {name} changes where it should not: {kept:.2f} of it stays."),
            (coefficients.contact * contact, f"The {name} has unusual neighbours along {contact:.0%} of its outline."),
        ]
    return tuple(sentence for weight, sentence in sorted(found_signs, key=lambda pair: -pair[0]) if weight > NOTABLE)


def _sized(name: str, size: float, usual: float) -> str:
    """Describe how a size differs from the usual one."""
    word = "large" if size > usual else "small"
    return f"The {name} is unusually {word}: {size:.3g} mL, at home {usual:.3g} mL."
