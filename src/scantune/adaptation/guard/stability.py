"""Stability: how far a prediction stays the same when the scan is changed in ways that should not matter."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.base import Guard
from scantune.prior.calibration import Calibration, structure_counts
from scantune.prior.perturbations import PERTURBATIONS, UNCHANGED, Perturbation
from scantune.runtime.threads import Threads, thread_count
from scantune.scans.volume import batch_size
from scantune.tasks import Task

GUARD_PERTURBATIONS = ("mirrored", "darker", "brighter")
"""Those by which the guard looks, chosen by `scripts/guard_rules.py`."""

READ_SLICES = 8
"""The most slices that are looked at, evenly spaced: a look is to cost less than a step."""


@dataclass(frozen=True)
class PerturbedSlices:
    """Looks at what a network makes of some slices of a scan, as they are and perturbed.

    Args:
        images: The slices `(slices, channels, *spatial)`.
        task: How the network's output is read.
        names: The perturbations.
        channels: How many channels of the input are the image; None for all. Others stay as they are.
        threads: Share the slices, where there are any.
        chosen: Which slices of the scan these are, where they are known.
    """

    images: Tensor
    task: Task
    names: Sequence[str] = GUARD_PERTURBATIONS
    channels: int | None = None
    threads: Threads | None = None
    chosen: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        images: Tensor,
        task: Task,
        names: Sequence[str] = GUARD_PERTURBATIONS,
        channels: int | None = None,
        threads: Threads | None = None,
    ) -> "PerturbedSlices":
        """Choose at most `READ_SLICES` slices of a scan."""
        number = len(images)
        chosen = torch.linspace(0, number - 1, min(READ_SLICES, number)).round().long()
        return cls(images[chosen.to(images.device)], task, names, channels, threads, chosen.tolist())

    @torch.no_grad()
    def probabilities(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """Return the scan's class probabilities `(slices, classes, *spatial)`, then those under each perturbation.

        Args:
            network: The network.
            own: The first of these, where they are known.
        """
        perturbed = [PERTURBATIONS[name] for name in self.names]
        changes = perturbed if own is not None else [UNCHANGED, *perturbed]
        images = torch.cat([self._changed(change, self.images) for change in changes])
        parts = torch.split(images, batch_size(images))
        # What was adapted may have got what two threads must not call at once.
        threads = self.threads if thread_count(network, images) > 1 else None
        outputs = [network(part) for part in parts] if threads is None else threads.each(network, parts)
        found = torch.cat([self.task.probabilities(output).float() for output in outputs])
        each = torch.split(found, len(self.images))
        seen = [change.back(probabilities) for change, probabilities in zip(changes, each, strict=True)]
        return seen if own is None else [own.to(found), *seen]

    def _changed(self, change: Perturbation, images: Tensor) -> Tensor:
        if self.channels is None:
            return change.there(images)
        return torch.cat([change.there(images[:, : self.channels]), images[:, self.channels :]], 1)

    def labels(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """Return the labels `(slices, *spatial)` of the scan, then those under each perturbation."""
        return [self.task.labels(probabilities) for probabilities in self.probabilities(network, own)]


def agreements(one: Tensor, other: Tensor, structures: int) -> list[float]:
    """Return the Dice of each structure in two label maps; 1 if neither has it."""
    found = []
    for value in range(1, structures + 1):
        here, there = one == value, other == value
        total = float(here.sum() + there.sum())
        found.append(2 * float((here & there).sum()) / total if total else 1.0)
    return found


def stability(labels: Sequence[Tensor], structures: int) -> list[float]:
    """Return the mean Dice of the first prediction with each of the others, by structure."""
    own, *others = labels
    return [fmean(each) for each in zip(*(agreements(own, other, structures) for other in others), strict=True)]


@dataclass(frozen=True)
class StabilityRules:
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
        """Read the labels of a scan and of the perturbed scans, `(slices, *spatial)` each."""
        own = labels[0]
        return cls(
            tuple(stability(labels, structures)),
            tuple(agreements(own, own if source is None else source, structures)),
            tuple(structure_counts(own, structures).tolist()),
        )

    def steadiness(self, rules: StabilityRules) -> float:
        """Return the stability of all structures, in which the least stable one counts more."""
        return (1 - rules.worst) * fmean(self.stability) + rules.worst * min(self.stability)

    def score(self, rules: StabilityRules) -> float:
        """Return the stability less the charge for the change from the source prediction."""
        return self.steadiness(rules) - rules.charge * (1 - fmean(self.agreement))


class StabilityGuard(Guard[StabilityReading]):
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
        rules: StabilityRules | None = None,
        calibration: Calibration | None = None,
        energy: float | None = None,
    ) -> None:
        self.rules, self.calibration, self.energy = rules or StabilityRules(), calibration, energy
        self.failed = self.oddness(source) > self.rules.failed
        # What has failed may be searched to the end for a repair.
        super().__init__(source, sys.maxsize if self.failed else self.rules.patience)
        self.bar = source.score(self.rules)
        self.repaired = False

    def takes(self, look: StabilityReading, energy: float | None) -> bool:
        """Return True if a step is stabler than the best so far, in proportion to its change, or the first repair."""
        score = look.score(self.rules)
        repairs = not self.repaired and self.repairs(look, energy)
        if not (repairs or (score > self.bar and self.explains(energy) and not self.spoils(look))):
            return False
        self.bar, self.repaired = score, self.repaired or repairs
        return True

    def explains(self, energy: float | None) -> bool:
        """Return True if a step has undone enough of the shift to be believed, where there is one structure alone."""
        if len(self.source.counts) > 1 or energy is None or self.energy is None:
            return True
        return energy <= self.rules.fall * self.energy

    def spoils(self, look: StabilityReading) -> bool:
        """Return True if proportions that were usual, or less odd, become odd."""
        return self.oddness(look) > max(self.oddness(self.source), self.rules.usual)

    def repairs(self, look: StabilityReading, energy: float | None) -> bool:
        """Return True if a failed source prediction becomes one of a source subject."""
        known = self.calibration
        if known is None or energy is None or not self.failed:
            return False
        return energy <= known.typical and self.oddness(look) <= self.rules.usual

    def oddness(self, look: StabilityReading) -> float:
        """Return the distance of the proportions from those of source subjects, in deviations; 0 if not known."""
        return 0.0 if self.calibration is None else self.calibration.oddness(torch.tensor(look.counts))

    def gained(self, best: StabilityReading) -> str:
        """Explain what became better."""
        if self.repaired:
            return "the source prediction had odd proportions, which became usual."
        before, after = self.source.steadiness(self.rules), best.steadiness(self.rules)
        steadier = f"the prediction became more stable, {before:.3f} to {after:.3f}"
        return f"{steadier}, and agrees to {fmean(best.agreement):.3f} with that of the source."

    def missed(self) -> str:
        """Explain why no step is kept."""
        before = self.source.steadiness(self.rules)
        return f"no step made the prediction stabler ({before:.3f} before) in proportion to how much it changed it."

    def numbers(self) -> dict[str, float]:
        """Return the stability before and after, and the agreement with the source."""
        numbers = {"stability_before": self.source.steadiness(self.rules)}
        if self.best is None:
            return numbers
        after = self.best.steadiness(self.rules)
        return numbers | {"stability_after": after, "agreement": fmean(self.best.agreement)}
