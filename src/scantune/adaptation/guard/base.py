"""The guard: every adaptation is judged without labels; a step of its way is kept, or none."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

Action = Literal["kept", "rolled back", "skipped"]

Verdict = Literal["accepted", "refused", "strayed"]
"""On a step: it is the best so far; it is not, but later ones may be; it is not, and the run should end."""


@dataclass(frozen=True)
class Decision:
    """What became of an adaptation, and why, in one sentence.

    Args:
        action: `kept`: the adapted prediction stands. `rolled back`: it was discarded for the source prediction.
            `skipped`: there was nothing to adapt.
        reason: One plain sentence.
        numbers: What it rests on, by name.
    """

    action: Action
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)


class Reading(Protocol):
    """Whatever else a look tells of a prediction, it tells how many pixels each structure has."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Pixels, by structure."""


ReadingT = TypeVar("ReadingT", bound=Reading)


class Guard(ABC, Generic[ReadingT]):
    """Judges the steps of one adaptation, in order: what is asked of a step depends on the measure.

    Args:
        source: The look at the source prediction.
        patience: After so many looks without a better one the run ends.
    """

    def __init__(self, source: ReadingT, patience: int) -> None:
        self.source, self.patience = source, patience
        self.best: ReadingT | None = None
        self.looks, self.without, self.emptied = 0, 0, False

    def verdict(self, look: ReadingT, energy: float | None = None) -> Verdict:
        """On the next step, with its FoE-CNN energy."""
        self.looks += 1
        lost = self.lost(look)
        self.emptied |= lost
        if not lost and self.takes(look, energy):
            self.best, self.without = look, 0
            return "accepted"
        self.without += 1
        return "strayed" if self.without >= self.patience else "refused"

    def lost(self, look: ReadingT) -> bool:
        """Whether a structure of the source prediction is gone, or there is none at all."""
        gone = any(before and not after for before, after in zip(self.source.counts, look.counts, strict=True))
        return gone or not any(look.counts)

    def decision(self) -> Decision:
        """On the run, from all looks."""
        numbers = {**self.numbers(), "looks": float(self.looks)}
        if self.best is not None:
            return Decision("kept", self.gained(self.best), numbers)
        if not self.looks:
            return Decision("rolled back", "no step lowered the objective.", numbers)
        if self.emptied:
            return Decision("rolled back", "structures of the source prediction were lost on the way.", numbers)
        return Decision("rolled back", self.missed(), numbers)

    @abstractmethod
    def takes(self, look: ReadingT, energy: float | None) -> bool:
        """Whether a step is the best so far; later ones have to be better than it then."""

    @abstractmethod
    def gained(self, best: ReadingT) -> str:
        """Why the best step is kept, as a sentence."""

    @abstractmethod
    def missed(self) -> str:
        """What no step has done, as a sentence."""

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """What the decision rests on, by name."""
