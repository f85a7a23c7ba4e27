"""Guard of one scan: what it reads off a network's predictions for the scan, and its decision on an adaptation."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from scantune.adaptation.guard.base import Decision, Guard, StepVerdict
from scantune.adaptation.guard.similarity import SimilarityGuard, SimilarityReading, SimilarityRules
from scantune.adaptation.guard.stability import PerturbedSlices, StabilityGuard, StabilityReading, StabilityRules
from scantune.adaptation.loop import Schedule, StopRule, Trajectory
from scantune.adaptation.prediction import Prediction, predict
from scantune.adaptation.settings import Stop
from scantune.methods import Method
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Volume
from scantune.tasks import Task

MOST_VERDICTS = 12
"""Largest number of verdicts in a run."""


@dataclass(frozen=True)
class Unguarded:
    """Keeps the end of every run."""

    def start(self, network: AdaptableNetwork, volume: Volume) -> None:
        """Return None: steps start from the scan as it is."""

    def plan(self, schedule: Schedule, volume: Volume, _steps: int | None) -> tuple[Schedule, Volume]:
        """Return the schedule, and the volume that steps see, as they are."""
        return schedule, volume

    def stop_rule(self, network: nn.Module, method: Method, steps: int, at_source: bool) -> StopRule | None:  # noqa: ARG002
        """Return None: a run goes to its end."""
        return None

    def decide(self, network: nn.Module, trajectory: Trajectory, origin: float) -> Decision:  # noqa: ARG002
        """Keep the step that the run has chosen."""
        network.load_state_dict(trajectory.state, strict=False)
        return Decision("adapted", "the guard was switched off.")


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
        judges_steps: Whether steps are judged during the run. If not, its end is.
    """

    read: Callable[[nn.Module, Tensor | None], Any]
    guard: Guard[Any]
    level: float = -math.inf
    needless: str = ""
    measure_energy: Callable[[nn.Module], float | None] | None = None
    slices: Sequence[int] = ()
    judges_steps: bool = True

    def start(self, network: AdaptableNetwork, volume: Volume) -> None:
        """Return None: steps start from the scan as it is."""

    def plan(self, schedule: Schedule, volume: Volume, _steps: int | None) -> tuple[Schedule, Volume]:
        """Return the schedule, without a step if there is nothing to adapt, and the volume that steps see."""
        return (replace(schedule, steps=0) if self.needless and self.judges_steps else schedule), volume

    def verdict(self, network: nn.Module, energy: float | None, output: Tensor | None = None) -> StepVerdict:
        """Return the guard's verdict on a network, with its energy if the method knows it."""
        if energy is None and self.measure_energy is not None:
            energy = self.measure_energy(network)
        return self.guard.verdict(self.read(network, output), energy)

    def stop_rule(self, network: nn.Module, method: Method, steps: int, at_source: bool) -> StopRule | None:
        """Return the rule by which the guard ends a run, or None if it judges the end alone.

        Args:
            network: The network that the run changes.
            method: Holds outputs of the network that the run has computed.
            steps: Number of steps.
            at_source: Whether the run starts at the source network.
        """
        if not self.judges_steps:
            return None
        outputs = method.fast_path.outputs
        outputs.slices = self.slices
        interval = max(steps // MOST_VERDICTS, 1)
        return StopRule(
            lambda energy: self.verdict(network, energy, outputs.output()), self.level, interval, not at_source
        )

    def decide(self, network: nn.Module, trajectory: Trajectory, origin: float) -> Decision:
        """Return the decision on a run.

        Args:
            network: The adapted network, which gets the parameters of the chosen step.
            trajectory: The course of the run.
            origin: The objective at the source network.
        """
        network.load_state_dict(trajectory.state, strict=False)
        if not trajectory.moving:
            return Decision("left alone", "the method moves nothing.")
        if self.needless and self.judges_steps:
            return Decision("left alone", self.needless)
        if not trajectory.trace:
            return Decision("left alone", "no step was asked for.")
        if trajectory.end < origin and not self.judges_steps:
            self.verdict(network, trajectory.trace[trajectory.best or 0].get("cnn"))
        decision = self.guard.decision()
        if decision.keeps_adapted and not trajectory.end < origin:
            return replace(decision, action="unsolved", reason="the objective ended no lower than the source's.")
        return decision


def guard_scan(
    source: AdaptableNetwork,
    volume: Volume,
    before: Prediction,
    prior: FieldOfExperts | None,
    stop: Stop = "stable",
    judges_steps: bool = True,
) -> ScanGuard:
    """Return the guard of a scan.

    Args:
        source: The source network.
        volume: The scan.
        before: Prediction of the source network.
        prior: Knows what is typical, if it is calibrated.
        stop: When a run ends before its last step.
        judges_steps: Whether steps are judged during the run.
    """
    endless = {"patience": sys.maxsize} if stop == "never" else {}
    if before.task.judged_by == "likeness":
        guard = _by_similarity(source, volume, before, SimilarityRules(**endless))
    else:
        guard = _by_stability(source, volume, before, prior, StabilityRules(**endless), stop)
    return replace(guard, judges_steps=judges_steps)


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
