"""Guard of segmentations: the stability of a prediction under changes of the scan that should not matter."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.base import Guard
from scantune.prior.calibration import Calibration
from scantune.prior.perturbations import PERTURBATIONS, UNCHANGED
from scantune.runtime.threads import Threads, thread_count
from scantune.scans.volume import batch_size
from scantune.tasks import Task, structure_counts, structure_mask

GUARD_PERTURBATIONS = ("mirrored", "darker", "brighter")
"""Perturbations that the guard uses, chosen on validation people of version 0.1."""

READ_SLICES = 8
"""Largest number of slices of a reading, evenly spaced, so that it costs less than a step."""

READ_WINDOWS = 2
"""Largest number of volumes or windows of one, which a step sees `backends/tiling.py::SAMPLED_WINDOWS` of."""


@dataclass(frozen=True)
class PerturbedSlices:
    """Slices of a scan that networks predict as they are and perturbed.

    Args:
        images: The slices `(slices, channels, *spatial)`.
        task: Turns outputs into labels.
        names: The perturbations.
        channels: Number of image channels of the input; None for all. Others are not perturbed.
        threads: Threads that share the slices, if any.
        chosen: Numbers of these slices in the scan, if they are known.
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
        """Choose at most `READ_SLICES` slices of a scan, or `READ_WINDOWS` windows."""
        number = len(images)
        most = READ_SLICES if images.ndim == 4 else READ_WINDOWS
        chosen = torch.linspace(0, number - 1, min(most, number)).round().long()
        return cls(images[chosen.to(images.device)], task, names, channels, threads, chosen.tolist())

    @torch.no_grad()
    def probabilities(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """Return the scan's class probabilities `(slices, classes, *spatial)`, then those under each perturbation.

        Args:
            network: The network.
            own: Class probabilities of the slices as they are, if they are known.
        """
        perturbed = [PERTURBATIONS[name] for name in self.names]
        changes = perturbed if own is not None else [UNCHANGED, *perturbed]
        images = torch.cat([change.change(self.images, self.channels) for change in changes])
        parts = torch.split(images, batch_size(images))
        # An adapted network may hold layers that two threads must not call at once.
        threads = self.threads if thread_count(network, images) > 1 else None
        outputs = [network(part) for part in parts] if threads is None else threads.each(network, parts)
        found = torch.cat([self.task.probabilities(output).float() for output in outputs])
        each = torch.split(found, len(self.images))
        seen = [change.back(probabilities) for change, probabilities in zip(changes, each, strict=True)]
        return seen if own is None else [own.to(found), *seen]

    def labels(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """Return the labels `(slices, *spatial)` of the scan, then those under each perturbation."""
        return [self.task.labels(probabilities) for probabilities in self.probabilities(network, own)]


def agreements(one: Tensor, other: Tensor, structures: int) -> list[float]:
    """Return the Dice of each structure in two label maps, or in masks; 1 if neither has it."""
    found = []
    for value in range(1, structures + 1):
        here, there = structure_mask(one, value), structure_mask(other, value)
        total = float(here.sum() + there.sum())
        found.append(2 * float((here & there).sum()) / total if total else 1.0)
    return found


def stability(labels: Sequence[Tensor], structures: int) -> list[float]:
    """Return the mean Dice of the first prediction with each of the others, by structure."""
    own, *others = labels
    return [fmean(each) for each in zip(*(agreements(own, other, structures) for other in others), strict=True)]


@dataclass(frozen=True)
class StabilityRules:
    """Thresholds of the guard, chosen on validation people of version 0.1, of whom no result is reported."""

    charge: float = 0.05
    """Gain in stability that is asked for, as a share of the part of the prediction that changes."""
    worst: float = 0.5
    """Weight of the least stable structure; the rest is for the mean of all."""
    patience: int = 6
    """Number of readings without a better one after which the run ends."""
    fall: float = 0.5
    """Share of its start to which the scan's energy must fall if there is one structure alone, such as lesions, whose
    stability says less."""
    failed: float = 3.0
    """Oddness of proportions, in deviations of source subjects, beyond which a source prediction has failed, so that a
    step may change it wholly to repair it."""
    usual: float = 2.0
    """Largest oddness of a repaired prediction, whose scan must be as typical as a source subject. Other steps may not
    become odder than this, unless the source prediction is."""


@dataclass(frozen=True)
class StabilityReading:
    """Reading of a segmentation without labels.

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
    """Guard that judges steps by the stability of the prediction.

    A method can go on matching statistics or growing confident while the prediction falls apart. A network that meets a
    strange scan is unsure: its prediction changes when the scan is changed in ways that should not matter. A well
    adapted network is less unsure. Any change may make things worse, so a step has to become more stable in proportion
    to the part of the prediction that it changes. A network can also be wrong without being unsure. If the proportions
    of its structures reveal this, a repair may be any usual prediction.

    Args:
        source: Reading of the source prediction.
        rules: The thresholds.
        calibration: Typical values of source subjects, if they are known.
        energy: FoE-CNN energy of the scan by the source network, if it is known.
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
        # A run on a failed prediction may go to its end in search of a repair.
        super().__init__(source, sys.maxsize if self.failed else self.rules.patience)
        self.bar = source.score(self.rules)
        self.repaired = False

    def takes(self, reading: StabilityReading, energy: float | None) -> bool:
        """Return True if a step is the first repair, or beats the best so far in proportion to its change."""
        score = reading.score(self.rules)
        repairs = not self.repaired and self.repairs(reading, energy)
        if not (repairs or (score > self.bar and self.explains(energy) and not self.spoils(reading))):
            return False
        self.bar, self.repaired = score, self.repaired or repairs
        return True

    def explains(self, energy: float | None) -> bool:
        """Return True if a step has undone enough of the shift to be believed, where there is one structure alone."""
        if len(self.source.counts) > 1 or energy is None or self.energy is None:
            return True
        return energy <= self.rules.fall * self.energy

    def spoils(self, reading: StabilityReading) -> bool:
        """Return True if proportions that were usual, or less odd, become odd."""
        return self.oddness(reading) > max(self.oddness(self.source), self.rules.usual)

    def repairs(self, reading: StabilityReading, energy: float | None) -> bool:
        """Return True if a failed source prediction becomes one of a source subject."""
        known = self.calibration
        if known is None or energy is None or not self.failed:
            return False
        return energy <= known.typical and self.oddness(reading) <= self.rules.usual

    def oddness(self, reading: StabilityReading) -> float:
        """Return the distance of the proportions from those of source subjects, in deviations; 0 if not known."""
        return 0.0 if self.calibration is None else self.calibration.oddness(torch.tensor(reading.counts))

    def gained(self, best: StabilityReading) -> str:
        """Explain what became better."""
        if self.repaired:
            return "the source prediction had odd proportions, which became usual."
        before, after = self.source.steadiness(self.rules), best.steadiness(self.rules)
        steadier = f"the prediction became more stable, {before:.3f} to {after:.3f}"
        return f"{steadier}, and has a Dice of {fmean(best.agreement):.3f} with the source prediction."

    def missed(self) -> str:
        """Explain why no step is kept."""
        before = self.source.steadiness(self.rules)
        return f"no step made the prediction more stable ({before:.3f} before) by enough for how much it changed."

    def numbers(self) -> dict[str, float]:
        """Return the stability before and after, and the agreement with the source."""
        numbers = {"stability_before": self.source.steadiness(self.rules)}
        if self.best is None:
            return numbers
        after = self.best.steadiness(self.rules)
        return numbers | {"stability_after": after, "agreement": fmean(self.best.agreement)}
