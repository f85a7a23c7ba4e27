"""Guard of one scan: what it reads off a network's predictions for the scan, and its decision on an adaptation."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from scantune.adaptation.guard.base import Decision, Guard, Verdict
from scantune.adaptation.guard.similarity import SimilarityGuard, SimilarityReading, SimilarityRules
from scantune.adaptation.guard.stability import PerturbedSlices, StabilityGuard, StabilityReading, StabilityRules
from scantune.adaptation.loop import StopRule, Trajectory
from scantune.adaptation.prediction import Prediction, predict
from scantune.adaptation.settings import Stop
from scantune.methods import OutputCache
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Volume
from scantune.tasks import Task

MOST_VERDICTS = 12
"""Largest number of verdicts in a run."""


@dataclass(frozen=True)
class ScanGuard:
    """Guard of one scan, as the source network sees it.

    Args:
        read: Reads off a network's prediction what can be read without labels. The network's output for `slices` may
            be given.
        guard: Judges the readings.
        level: The energy at which a run ends.
        needless: Why there is nothing to adapt, or an empty text.
        measure_energy: Measures a network's energy, for methods that do not know it. None if energy is not needed.
        slices: Slices of the scan whose outputs `read` can make use of.
    """

    read: Callable[[nn.Module, Tensor | None], Any]
    guard: Guard[Any]
    level: float = -math.inf
    needless: str = ""
    measure_energy: Callable[[nn.Module], float | None] | None = None
    slices: Sequence[int] = ()

    def verdict(self, network: nn.Module, energy: float | None, output: Tensor | None = None) -> Verdict:
        """Return the guard's verdict on a network, with its energy if the method knows it."""
        if energy is None and self.measure_energy is not None:
            energy = self.measure_energy(network)
        return self.guard.verdict(self.read(network, output), energy)

    def stop_rule(self, network: nn.Module, steps: int, judges_start: bool, outputs: OutputCache) -> StopRule:
        """Return the rule by which the guard ends a run.

        Args:
            network: The network that the run changes.
            steps: Number of steps.
            judges_start: Whether the run starts elsewhere than at the source network.
            outputs: Holds outputs of the network that the run has computed.
        """
        outputs.slices = self.slices
        interval = max(steps // MOST_VERDICTS, 1)
        return StopRule(
            lambda energy: self.verdict(network, energy, outputs.output()), self.level, interval, judges_start
        )

    def decide(self, network: nn.Module, trajectory: Trajectory, origin: float, judged: bool) -> Decision:
        """Return the decision on a run.

        Args:
            network: The network with the parameters of the chosen step.
            trajectory: What came of the run.
            origin: The objective at the source network.
            judged: Whether the guard has judged the steps. If not, it judges the end.
        """
        if not trajectory.moving:
            return Decision("skipped", "the method moves nothing.")
        if self.needless and judged:
            return Decision("skipped", self.needless)
        if not trajectory.trace:
            return Decision("skipped", "no step was asked for.")
        if trajectory.end < origin and not judged:
            self.verdict(network, trajectory.trace[trajectory.best or 0].get("cnn"))
        decision = self.guard.decision()
        if decision.action == "kept" and not trajectory.end < origin:
            return replace(decision, action="rolled back", reason="the objective ended no lower than the source's.")
        return decision


def guard_scan(
    source: AdaptableNetwork,
    volume: Volume,
    before: Prediction,
    prior: FieldOfExperts | None,
    stop: Stop = "stable",
) -> ScanGuard:
    """Return the guard of a scan.

    Args:
        source: The source network.
        volume: The scan.
        before: Prediction of the source network.
        prior: Knows what is typical, if it is calibrated.
        stop: When a run ends before its last step.
    """
    endless = {"patience": sys.maxsize} if stop == "never" else {}
    if before.task.judged_by == "likeness":
        return _by_similarity(source, volume, before, SimilarityRules(**endless))
    return _by_stability(source, volume, before, prior, StabilityRules(**endless), stop)


def _by_similarity(source: AdaptableNetwork, volume: Volume, before: Prediction, rules: SimilarityRules) -> ScanGuard:
    """Return the guard of a registration. Typical scans are adapted too, since any deformation can be improved."""
    labels = before.labels

    def read(network: nn.Module, _output: Tensor | None = None) -> SimilarityReading:
        return SimilarityReading.of(network, volume, before.task, labels, before.structures, source.channels)

    return ScanGuard(read, SimilarityGuard(read(source), rules))


def _by_stability(
    source: AdaptableNetwork,
    volume: Volume,
    before: Prediction,
    prior: FieldOfExperts | None,
    rules: StabilityRules,
    stop: Stop,
) -> ScanGuard:
    """Return the guard of a segmentation."""
    threads = threads_for(source, volume.images)
    perturbed = PerturbedSlices.of(volume.images, before.task, channels=source.channels, threads=threads)
    labels = perturbed.labels(source, before.probabilities[list(perturbed.chosen)])
    known = None if prior is None else prior.calibration
    guard = StabilityGuard(StabilityReading.at(labels, before.structures), rules, known, before.energy)
    level, needless = -math.inf, ""
    if known is not None and before.energy is not None:
        level = known.typical if stop == "typical" else level
        if before.energy <= known.levels.low:
            theirs = f"energy {before.energy:.4g}, theirs from {known.levels.low:.4g}"
            needless = f"the scan is as typical as source subjects: {theirs}."
    measure_energy = None
    if before.structures == 1 and before.energy is not None:
        measure_energy = partial(_energy, volume=volume, task=before.task, prior=prior)

    def read(network: nn.Module, output: Tensor | None = None) -> StabilityReading:
        own = None if output is None else before.task.probabilities(output).float()
        return StabilityReading.at(perturbed.labels(network, own), before.structures, labels[0])

    return ScanGuard(read, guard, level, needless, measure_energy, perturbed.chosen)


def _energy(network: nn.Module, volume: Volume, task: Task, prior: FieldOfExperts | None) -> float | None:
    return predict(network, volume, task, prior).energy
