"""The guard: every adaptation is judged without labels, stopped where it strays, or undone."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scantune.calibration import Calibration, structure_counts

Action = Literal["kept", "rolled back", "skipped"]

AGREEMENT = 0.8
"""An ordinary step may not change more of the prediction than leaves this Dice with the source prediction."""

ODDNESS = 0.5
"""Proportions may always be this odd, in standard deviations; beyond, they may not get odder than they were."""

ODD = 3.0
"""A source prediction odder than this has failed: then any change is welcome that repairs it."""

USUAL = 2.0
"""A repaired prediction is at most this odd, and its scan as typical as a source subject."""

Verdict = Literal["accepted", "refused", "strayed"]
"""On a step: it may be chosen; it may not, but later ones might; it may not, and the run should end."""


@dataclass(frozen=True)
class Decision:
    """What became of an adaptation, and why, in one sentence.

    Args:
        action: `kept`: the adapted prediction stands. `rolled back`: it was discarded for the source prediction.
            `skipped`: there was nothing to adapt.
        reason: One plain sentence.
    """

    action: Action
    reason: str


class Guard:
    """Judges the steps of one adaptation, in order, by what they do to the prediction.

    Matching feature statistics can go on while the prediction falls apart. Two things tell without labels: the
    structures' proportions leave those of source subjects, or most of the prediction becomes another one. The first
    such step ends the run. Only where the source prediction itself was odd may a later step change it wholly, if this
    makes scan and prediction those of a source subject.

    Args:
        source: Predicted labels before adaptation, `(slices, *spatial)`.
        structures: How many structures there are besides the background.
        calibration: What is typical of source subjects.
    """

    def __init__(self, source: Tensor, structures: int, calibration: Calibration) -> None:
        self.source, self.structures, self.calibration = source, structures, calibration
        self.before = self.oddness(source)
        self.strayed = False

    def verdict(self, labels: Tensor, energy: float | None) -> Verdict:
        """On a step with this prediction and FoE-CNN energy."""
        after = self.oddness(labels)
        typical = energy is not None and energy <= self.calibration.typical
        if self.before > ODD and after <= USUAL and typical:
            return "accepted"
        ordinary = after <= max(self.before, ODDNESS) and self.agreement(labels) >= AGREEMENT
        if ordinary and not self.strayed:
            return "accepted"
        self.strayed = True
        return "refused" if self.before > ODD else "strayed"

    def oddness(self, labels: Tensor) -> float:
        """How far a prediction's proportions are from those of source subjects, in standard deviations."""
        return self.calibration.oddness(structure_counts(labels, self.structures))

    def agreement(self, labels: Tensor) -> float:
        """Mean Dice with the source prediction over the structures that this has; 1 where it has none."""
        scores = []
        for value in range(1, self.structures + 1):
            one, other = self.source == value, labels == value
            if bool(one.any()):
                scores.append(2 * float((one & other).sum()) / float(one.sum() + other.sum()))
        return sum(scores) / len(scores) if scores else 1.0


def judge(before: float, after: float, source: Tensor, adapted: Tensor) -> Decision:
    """The verdict on a finished adaptation, by the objective and by what is left of the prediction.

    Args:
        before: The objective at the start.
        after: The objective of the chosen step.
        source: Predicted labels before, `(slices, *spatial)`.
        adapted: Predicted labels after.
    """
    if not after < before:
        return Decision("rolled back", f"no step that the guard accepts lowered the objective from {before:.4g}.")
    found, left = torch.unique(source).numel(), torch.unique(adapted).numel()
    if left < 2 <= found:
        return Decision("rolled back", f"the adapted prediction collapsed to one class; the source had {found}.")
    return Decision("kept", f"the objective fell from {before:.4g} to {after:.4g}.")
