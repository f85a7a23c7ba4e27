"""The guard: every adaptation is judged, and one that must be harmful is undone."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Action = Literal["kept", "rolled back", "skipped"]


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


def judge(before: float, after: float, source: Tensor, adapted: Tensor) -> Decision:
    """Judges an adaptation by what it did to the objective and to the prediction, without labels.

    Args:
        before: The objective at the start.
        after: The objective of the chosen step.
        source: Predicted labels before, `(slices, *spatial)`.
        adapted: Predicted labels after.
    """
    if not after < before:
        return Decision("rolled back", f"no step lowered the objective below its start at {before:.4g}.")
    found, left = torch.unique(source).numel(), torch.unique(adapted).numel()
    if left < 2 <= found:
        return Decision("rolled back", f"the adapted prediction collapsed to one class; the source had {found}.")
    return Decision("kept", f"the objective fell from {before:.4g} to {after:.4g}.")
