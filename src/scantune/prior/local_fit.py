"""Fit of local coefficients to graded predictions: readings of degraded scans whose true Dice is known.

All candidates lie on a grid around the shipped coefficients, so that the fit has no local minimum, and leaving out
people and families of degradations needs no new computation: the errors of every candidate at every prediction are
computed once, and each fit is a mean over a part of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from scantune.prior.assessment import Excesses
from scantune.prior.coefficients import SHIPPED, Coefficients, Contest
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.odds import dice_from

PEOPLE_FOR_A_FIT = 8
"""Smallest number of held-out people to whom coefficients are fitted."""

SHRINKAGE = 0.3
"""Penalty of coefficients off the shipped ones, by the squared logarithm of their ratios; divided by the number of
groups of predictions. It comes to a prior deviation of half a logarithm where predictions err by 0.05."""

QUANTILES = (0.1, 0.9)
"""Of the true Dice, at the low and the high end of the range."""

_FACTORS = torch.linspace(-1.2, 1.2, 9, dtype=torch.double).exp()
_SHIFTS = torch.linspace(-0.1, 0.4, 11, dtype=torch.double)


@dataclass(frozen=True)
class GradedPrediction:
    """A prediction for a degraded scan of a held-out person.

    Args:
        person: Number of the person.
        family: The family of degradations.
        readings: Readings, with the true Dice.
        home: Readings of the other people.
    """

    person: int
    family: str
    readings: GradedReadings
    home: HomeReadings


def fit_coefficients(graded: Sequence[GradedPrediction]) -> tuple[Coefficients, Contest]:
    """Return weights of the readings, and how they do against the shipped ones.

    Returns:
        The coefficients with the least mean error and penalty, and the mean errors for people and families of
        degradations that were left out of the fit.
    """
    table = _Table.of(graded)
    candidates = [
        replace(SHIPPED, unsteady=SHIPPED.unsteady * u, size=SHIPPED.size * s, contact=SHIPPED.contact * c)
        for u, s, c in product(_FACTORS.tolist(), repeat=3)
    ]
    errors = torch.stack([(table.expected(each) - table.truth).abs() for each in candidates])
    logs = torch.cartesian_prod(*[_FACTORS.log()] * 3)
    number, contest = _best(errors, logs.square().sum(1), graded, candidates.index(SHIPPED))
    return candidates[number], contest


Pair = tuple[float, float]


def fit_range(graded: Sequence[GradedPrediction], used: Coefficients) -> tuple[Pair, Pair, Contest]:
    """Return the range about estimates, and how it does against the shipped one.

    Args:
        graded: The predictions.
        used: Weights of the readings.

    Returns:
        `widest` and `shifts` of the ends with the least pinball loss and penalty, and the mean losses of both ends for
        people and families of degradations that were left out of the fit.
    """
    table = _Table.of(graded)
    worse = table.worse(used)
    ends, contests = [], []
    for end, quantile in enumerate(QUANTILES):
        sign = 1 if end == 0 else -1
        shipped = (SHIPPED.widest[end], SHIPPED.shifts[end])
        pairs = [shipped, *product((SHIPPED.widest[end] * _FACTORS).tolist(), _SHIFTS.tolist())]
        bounds = torch.stack([table.dice(scale * worse + sign * shift) for scale, shift in pairs])
        off = table.truth - bounds
        losses = torch.maximum(quantile * off, (quantile - 1) * off)
        costs = [(scale / shipped[0], (shift - shipped[1]) / 0.1) for scale, shift in pairs]
        penalty = torch.tensor([float(torch.tensor(ratio).log() ** 2) + away**2 for ratio, away in costs])
        number, contest = _best(losses, 0.1 * penalty.double(), graded, 0)
        ends.append(pairs[number])
        contests.append(contest)
    (low, down), (high, up) = ends
    total = Contest(sum(each.local for each in contests), sum(each.shipped for each in contests))
    return (low, high), (down, up), total


@dataclass(frozen=True)
class _Table:
    """Excesses of all predictions, `(predictions, structures)` each, and the true mean Dice `(predictions,)`."""

    unsteady: Tensor
    size: Tensor
    apart: Tensor
    gone: Tensor
    absent: Tensor
    home: Tensor
    truth: Tensor

    @classmethod
    def of(cls, graded: Sequence[GradedPrediction]) -> "_Table":
        """Compare all readings with those of the other people."""
        found = [Excesses.of(each.readings, each.home) for each in graded]
        gone = torch.tensor([[size == 0 for size in each.readings.sizes] for each in graded])
        contacts = torch.stack([each.contact for each in found])
        apart = contacts.sum(1, keepdim=True) / (~gone).sum(1, keepdim=True).clamp_min(1)
        return cls(
            torch.stack([each.unsteady for each in found]),
            torch.stack([each.size for each in found]),
            apart,
            gone,
            torch.stack([each.home.absent for each in graded]),
            torch.stack([each.home.expected for each in graded]),
            torch.tensor([each.readings.mean_dice for each in graded], dtype=torch.double),
        )

    def worse(self, coefficients: Coefficients) -> Tensor:
        """Return the odds `(predictions, structures)` that `Excesses.worse` returns for each."""
        own = coefficients.unsteady * self.unsteady + coefficients.size * self.size
        return torch.maximum(own, coefficients.contact * self.apart)

    def dice(self, worse: Tensor) -> Tensor:
        """Return the mean Dice `(predictions,)` of odds."""
        return (self.home * torch.where(self.gone, self.absent, dice_from(worse))).mean(1)

    def expected(self, coefficients: Coefficients) -> Tensor:
        """Return the Dice `(predictions,)` that `assess` expects."""
        return self.dice(self.worse(coefficients))


def _best(losses: Tensor, penalty: Tensor, graded: Sequence[GradedPrediction], shipped: int) -> tuple[int, Contest]:
    """Choose a candidate by its losses, and compare this choice with the shipped candidate by leaving out.

    Args:
        losses: `(candidates, predictions)`.
        penalty: `(candidates,)`, for one group.
        graded: The predictions. Those of one person and family are a group; each group counts alike.
        shipped: Number of the shipped candidate.

    Returns:
        The number of the candidate, and the mean losses over groups, each chosen for without its person and its family.
    """
    groups = sorted({(each.person, each.family) for each in graded})
    member = torch.tensor([groups.index((each.person, each.family)) for each in graded])
    shares = torch.nn.functional.one_hot(member, len(groups)).double()
    means = losses @ (shares / shares.sum(0))
    cost = SHRINKAGE * penalty / len(groups)
    number = int((means.mean(1) + cost).argmin())
    held_out = []
    for place, (person, family) in enumerate(groups):
        others = torch.tensor([p != person and f != family for p, f in groups])
        if others.any():
            chosen = int((means[:, others].mean(1) + SHRINKAGE * penalty / int(others.sum())).argmin())
            held_out.append((float(means[chosen, place]), float(means[shipped, place])))
    local, known = (sum(column) / len(held_out) for column in zip(*held_out, strict=True))
    return number, Contest(local, known)
