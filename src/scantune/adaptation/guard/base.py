"""Contract of the guards that judge an adaptation without labels, and their decision."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

Action = Literal["adapted", "unsolved", "left alone"]

StepVerdict = Literal["accepted", "refused", "strayed"]
"""Verdict on a step: the best so far; not the best; not the best, and the run should end."""


CAUTION = "The segmentation looks as good as at home, but the scan has warnings: look at it before you use it."


@dataclass(frozen=True)
class Decision:
    """Decision on an adaptation, with its reason in one sentence.

    Args:
        action: `adapted`: the adapted prediction stands. `left alone`: the source prediction stands, because it is as
            good as at home, or there was nothing to adapt. `unsolved`: no adaptation helped, or not enough.
        reason: One plain sentence.
        numbers: The numbers that it rests on, by name.
        assessment: The assessment of the predictions before and after, as a manifest states it.
        stage_kept: Whether the adapted prediction is handed out; by default that of an `adapted` scan.
    """

    action: Action
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)
    stage_kept: bool | None = None
    assessment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keeps_adapted(self) -> bool:
        """Return True if the adapted prediction is handed out."""
        return self.action == "adapted" if self.stage_kept is None else self.stage_kept

    def cautioned(self, warnings: Sequence[str]) -> "Decision":
        """Return the decision on a scan with warnings, whose prediction is doubtful at best."""
        fine = [name for name in ("verdict", "verdict_before") if self.assessment.get(name) == "fine"]
        if not warnings or "verdict" not in fine:
            return self
        lowered = dict.fromkeys(fine, "doubtful")
        return replace(self, reason=CAUTION, assessment={**self.assessment, **lowered})


class Reading(Protocol):
    """Reading of a prediction, which counts at least the pixels of each structure."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the number of pixels by structure."""


ReadingT = TypeVar("ReadingT", bound=Reading)


class Guard(ABC, Generic[ReadingT]):
    """Guard that judges the steps of one adaptation, in order, by readings of their predictions.

    Args:
        source: Reading of the source prediction.
        patience: Number of readings without a better one after which the run ends.
    """

    def __init__(self, source: ReadingT, patience: int) -> None:
        self.source, self.patience = source, patience
        self.best: ReadingT | None = None
        self.looks, self.without, self.emptied = 0, 0, False

    def verdict(self, reading: ReadingT, energy: float | None = None) -> StepVerdict:
        """Return the verdict on the next step, with its FoE-CNN energy."""
        self.looks += 1
        lost = self.lost(reading)
        self.emptied |= lost
        if not lost and self.takes(reading, energy):
            self.best, self.without = reading, 0
            return "accepted"
        self.without += 1
        return "strayed" if self.without >= self.patience else "refused"

    def lost(self, reading: ReadingT) -> bool:
        """Return True if a structure of the source prediction is gone, or no structure is left."""
        gone = any(before and not after for before, after in zip(self.source.counts, reading.counts, strict=True))
        return gone or not any(reading.counts)

    def decision(self) -> Decision:
        """Return the decision on the run, from all readings."""
        numbers = {**self.numbers(), "looks": float(self.looks)}
        if self.best is not None:
            return Decision("adapted", self.gained(self.best), numbers)
        if not self.looks:
            return Decision("unsolved", "no step lowered the objective.", numbers)
        if self.emptied:
            return Decision("unsolved", "structures of the source prediction were lost on the way.", numbers)
        return Decision("unsolved", self.missed(), numbers)

    @abstractmethod
    def takes(self, reading: ReadingT, energy: float | None) -> bool:
        """Return True if a step is the best so far; later steps have to be better than it then."""

    @abstractmethod
    def gained(self, best: ReadingT) -> str:
        """Explain in a sentence why the best step is kept."""

    @abstractmethod
    def missed(self) -> str:
        """Explain in a sentence why no step is kept."""

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """Return the numbers that the decision rests on, by name."""
