"""The guard: every adaptation is judged without labels, stopped where it strays, or undone."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scantune.calibration import Calibration, structure_counts

Action = Literal["kept", "rolled back", "skipped"]

AGREEMENT = 0.8
"""An adaptation may not change more of the prediction than leaves this Dice with the source prediction."""

ODDNESS = 0.5
"""Proportions may always be this odd, in standard deviations; beyond, they may not get odder than they were."""


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


@dataclass(frozen=True)
class Guard:
    """Judges the steps of an adaptation by what they do to the prediction.

    Args:
        source: Predicted labels before adaptation, `(slices, *spatial)`.
        structures: How many structures there are besides the background.
        calibration: What is typical of source subjects.
    """

    source: Tensor
    structures: int
    calibration: Calibration

    def accepts(self, labels: Tensor) -> bool:
        """Whether a step's prediction is one the source may turn into.

        Matching feature statistics can go on while the prediction falls apart. Two things tell without labels: the
        structures' proportions leave those of source subjects, or most of the prediction becomes another one.
        """
        before = self.calibration.oddness(structure_counts(self.source, self.structures))
        after = self.calibration.oddness(structure_counts(labels, self.structures))
        return after <= max(before, ODDNESS) and self.agreement(labels) >= AGREEMENT

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
