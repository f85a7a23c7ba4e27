"""The guard: every adaptation is judged without labels; a step of its way is kept, or none."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from scantune.adaptation.guard.stability import agreements, stability
from scantune.prior.calibration import Calibration, structure_counts

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


class Counted(Protocol):
    """Whatever else a look tells of a prediction, it tells how many pixels each structure has."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Pixels, by structure."""


Seen = TypeVar("Seen", bound=Counted)


class Judge(ABC, Generic[Seen]):
    """Judges the steps of one adaptation, in order: what is asked of a step depends on the measure.

    Args:
        source: The look at the source prediction.
        patience: After so many looks without a better one the run ends.
    """

    def __init__(self, source: Seen, patience: int) -> None:
        self.source, self.patience = source, patience
        self.best: Seen | None = None
        self.looks, self.without, self.emptied = 0, 0, False

    def verdict(self, look: Seen, energy: float | None = None) -> Verdict:
        """On the next step, with its FoE-CNN energy."""
        self.looks += 1
        lost = self.lost(look)
        self.emptied |= lost
        if not lost and self.takes(look, energy):
            self.best, self.without = look, 0
            return "accepted"
        self.without += 1
        return "strayed" if self.without >= self.patience else "refused"

    def lost(self, look: Seen) -> bool:
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
    def takes(self, look: Seen, energy: float | None) -> bool:
        """Whether a step is the best so far; later ones have to be better than it then."""

    @abstractmethod
    def gained(self, best: Seen) -> str:
        """Why the best step is kept, as a sentence."""

    @abstractmethod
    def missed(self) -> str:
        """What no step has done, as a sentence."""

    @abstractmethod
    def numbers(self) -> dict[str, float]:
        """What the decision rests on, by name."""


@dataclass(frozen=True)
class Rules:
    """What the guard asks of a step; chosen on people that no result is reported of, by `scripts/guard_rules.py`."""

    charge: float = 0.05
    """Every hundredth of the prediction that changes must make it more stable by this many hundredths."""
    worst: float = 0.5
    """What the least stable structure counts; the rest is for the mean of all."""
    patience: int = 6
    """After so many looks without a better one the run ends."""
    fall: float = 0.5
    """Where there is one structure alone, such as lesions, its stability says less: then the scan's energy must also
    fall to this share of what it was, if there is a prior to tell."""
    failed: float = 3.0
    """A source prediction whose proportions are odder than this, in deviations of source subjects, has failed: then a
    step may change it wholly if that repairs it."""
    usual: float = 2.0
    """A repaired prediction is at most this odd, and its scan as typical as a source subject; any other step may not
    become odder than this, unless the source prediction is."""


@dataclass(frozen=True)
class StabilityReading:
    """What can be told of a prediction without labels.

    Args:
        stability: Mean Dice with the predictions of perturbed scans, by structure.
        agreement: Dice with the source prediction, by structure.
        counts: Pixels, by structure.
    """

    stability: tuple[float, ...]
    agreement: tuple[float, ...]
    counts: tuple[int, ...]

    @classmethod
    def at(cls, labels: Sequence[Tensor], structures: int, source: Tensor | None = None) -> "StabilityReading":
        """At predictions of a scan and of it perturbed, `(slices, *spatial)` each; of the source network, if none."""
        own = labels[0]
        return cls(
            tuple(stability(labels, structures)),
            tuple(agreements(own, own if source is None else source, structures)),
            tuple(structure_counts(own, structures).tolist()),
        )

    def steadiness(self, rules: Rules) -> float:
        """Stability of all structures, among which the least stable one counts more."""
        return (1 - rules.worst) * fmean(self.stability) + rules.worst * min(self.stability)

    def score(self, rules: Rules) -> float:
        """Stability less what the change from the source costs."""
        return self.steadiness(rules) - rules.charge * (1 - fmean(self.agreement))


class Guard(Judge[StabilityReading]):
    """Judges steps by the stability of the prediction.

    Matching statistics, or growing confident, can go on while the prediction falls apart. What tells without labels is
    whether the prediction stays the same when the scan is changed in ways that should not matter: a network that meets
    a strange scan is unsure in this sense, and one that was adapted well is less so. As any change may make things
    worse, a step has to become more stable in proportion to how much of the prediction it changes. A network can also
    be wrong without being unsure; where the proportions of its structures tell, a repair may be anything usual.

    Args:
        source: The look at the source prediction.
        rules: What is asked of a step.
        calibration: What is typical of source subjects, where it is known.
        energy: The scan's FoE-CNN energy by the source network, where it is known.
    """

    def __init__(
        self,
        source: StabilityReading,
        rules: Rules | None = None,
        calibration: Calibration | None = None,
        energy: float | None = None,
    ) -> None:
        self.rules, self.calibration, self.energy = rules or Rules(), calibration, energy
        self.failed = self.oddness(source) > self.rules.failed
        # What has failed may be searched to the end for a repair.
        super().__init__(source, sys.maxsize if self.failed else self.rules.patience)
        self.bar = source.score(self.rules)
        self.repaired = False

    def takes(self, look: StabilityReading, energy: float | None) -> bool:
        """Whether it is stabler than the best so far, in proportion to its change, or the first repair."""
        score = look.score(self.rules)
        repairs = not self.repaired and self.repairs(look, energy)
        if not (repairs or (score > self.bar and self.explains(energy) and not self.spoils(look))):
            return False
        self.bar, self.repaired = score, self.repaired or repairs
        return True

    def explains(self, energy: float | None) -> bool:
        """Whether a step has undone enough of the shift to be believed, where there is one structure alone."""
        if len(self.source.counts) > 1 or energy is None or self.energy is None:
            return True
        return energy <= self.rules.fall * self.energy

    def spoils(self, look: StabilityReading) -> bool:
        """Whether proportions that were usual, or less odd, become odd."""
        return self.oddness(look) > max(self.oddness(self.source), self.rules.usual)

    def repairs(self, look: StabilityReading, energy: float | None) -> bool:
        """Whether a source prediction that has failed becomes one of a source subject."""
        known = self.calibration
        if known is None or energy is None or not self.failed:
            return False
        return energy <= known.typical and self.oddness(look) <= self.rules.usual

    def oddness(self, look: StabilityReading) -> float:
        """How far a prediction's proportions are from those of source subjects, in deviations; 0 where not known."""
        return 0.0 if self.calibration is None else self.calibration.oddness(torch.tensor(look.counts))

    def gained(self, best: StabilityReading) -> str:
        """What became better."""
        if self.repaired:
            return "the source prediction had odd proportions, which became usual."
        before, after = self.source.steadiness(self.rules), best.steadiness(self.rules)
        steadier = f"the prediction became more stable, {before:.3f} to {after:.3f}"
        return f"{steadier}, and agrees to {fmean(best.agreement):.3f} with that of the source."

    def missed(self) -> str:
        """What would have been better."""
        before = self.source.steadiness(self.rules)
        return f"no step made the prediction stabler ({before:.3f} before) in proportion to how much it changed it."

    def numbers(self) -> dict[str, float]:
        """Stability before and after, and the agreement with the source."""
        numbers = {"stability_before": self.source.steadiness(self.rules)}
        if self.best is None:
            return numbers
        after = self.best.steadiness(self.rules)
        return numbers | {"stability_after": after, "agreement": fmean(self.best.agreement)}
