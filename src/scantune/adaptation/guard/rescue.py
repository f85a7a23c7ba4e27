"""Rescue of failed scans: predictions that are fine are left alone, others are adapted all the way and assessed.

A prediction that is fine can gain next to nothing, so it is recognised and left alone. One that is not is adapted to
convergence, and of the stages on the way the one of the best estimate is kept if it promises enough more than the
source prediction. The energy has been minimised, so it has no say in the choice.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from scantune.adaptation.guard.base import Action, Decision, StepVerdict
from scantune.adaptation.loop import Schedule, StopRule, Trajectory
from scantune.adaptation.prediction import Prediction
from scantune.adaptation.solvers import Adam, Bounded
from scantune.methods import ClosedForm, Method
from scantune.networks import AdaptableNetwork, Inversion
from scantune.prior.assessment import Assessment, Excesses, assess
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings
from scantune.prior.perturbations import SELECTING
from scantune.prior.prediction_reader import READ_SLICES, PredictionReader
from scantune.scans.volume import Volume

RESCUE_STEPS = 32
"""Bounded steps that bring a failed scan to convergence."""

CANDIDATES = 8
"""Most stages of an adaptation that are assessed."""

RELIABLE = "The segmentation looks reliable; nothing was changed."
AS_USUAL = (
    "The segmentation is as good as this network's usually are, but these are often poor: look at it before you use "
    "it; nothing was changed."
)
TOO_VARIABLE = (
    "The segmentation is worse than this network's usually are, and what it shows varies too much from person to "
    "person to judge whether adapting helps: do not use it without looking; nothing was changed."
)
NO_HELP = "The network fails on this scan and adaptation did not help: do not use this segmentation."
NOT_ENOUGH = "The network fails on this scan and adaptation did not help enough: do not use this segmentation."
UNSURE = "The network had failed on this scan; adaptation helped, but look at the segmentation before you use it."
DOUBTFUL = "The segmentation is doubtful and adaptation did not help: look at it before you use it."


@dataclass(frozen=True)
class Margins:
    """Margins of the choice of a stage, chosen on networks that no result is reported on.

    Args:
        gain: Smallest rise of the expected Dice.
        share: Smallest rise as a share of the distance to a prediction as good as at home.
        plateau: Stages whose estimates are this close to the best count as equal; the earliest of them is taken.
        steady: Mean excess of unsteadiness, in odds, below which a prediction is as steady as at home. Unless it has
            failed, it is given up only for a steadier one.
    """

    gain: float = 0.05
    share: float = 0.5
    plateau: float = 0.02
    steady: float = 0.05

    @classmethod
    def of(cls, home: HomeReadings) -> "Margins":
        """Return the margins for a site, with the gain that was fitted to its degraded scans if it does better."""
        gain = None if home.local is None else home.local.used_gain
        return cls() if gain is None else cls(gain=gain)


def candidate_steps(steps: int) -> list[int]:
    """Return the numbers of the steps that are assessed: at most `CANDIDATES`, by equal ratios, with the last one."""
    if steps <= CANDIDATES:
        return list(range(1, steps + 1))
    first = 2
    wished = (first * (steps / first) ** (number / (CANDIDATES - 1)) for number in range(CANDIDATES))
    return sorted({int(wish + 1e-6) for wish in wished})


def best_stage(before: float, stages: Sequence[float], home: float, margins: Margins | None = None) -> int | None:
    """Return the number of the best stage by estimates, or None if no stage promises enough.

    Args:
        before: The estimate of the source prediction.
        stages: Those of the stages, in order.
        home: That of a prediction as good as at home.
        margins: Margins of the choice.
    """
    asked = margins or Margins()
    best = max(stages, default=0.0)
    if best - before <= max(asked.gain, asked.share * (home - before)):
        return None
    return next(number for number, each in enumerate(stages) if each >= best - asked.plateau)


@dataclass(frozen=True)
class Stage:
    """A stage of an adaptation.

    Args:
        step: Number of the step.
        state: Parameters by name.
        readings: Readings of the prediction.
    """

    step: int
    state: dict[str, Tensor]
    readings: Readings


@dataclass(kw_only=True)
class StageRule(StopRule):
    """Rule of a run that goes to its end and whose stages are read on the way.

    Args:
        network: The network that the run changes.
        reader: Reads its predictions.
        steps: Number of steps of the run.
        moving: The parameters that move, by their names before the run: a GPU may wrap the normaliser during it.
        stages: The stages that were read so far.
    """

    network: nn.Module
    reader: PredictionReader
    steps: int
    moving: Mapping[str, Tensor]
    stages: list[Stage] = field(default_factory=list)

    def judge(self, step: int, objective: float, energy: float | None) -> StepVerdict | None:  # noqa: ARG002
        """Read the prediction at candidate steps; the run goes on in any case."""
        self.ends = False
        if step == 0:
            return "accepted"
        if step not in candidate_steps(self.steps) or objective == math.inf:
            return None
        state = {name: part.detach().clone() for name, part in self.moving.items()}
        self.stages.append(Stage(step, state, self.reader.read(self.network, SELECTING)))
        return "accepted"


@dataclass(frozen=True)
class Rescue:
    """Assessment of one scan before, during and after its adaptation.

    Args:
        reader: Reads predictions for the scan.
        home: Readings of held-out source scans.
        names: Names of the structures.
        source: Readings of the source prediction.
        before: Its assessment.
        margins: Margins of the choice of a stage.
    """

    reader: PredictionReader
    home: HomeReadings
    names: Sequence[str]
    source: Readings
    before: Assessment
    margins: Margins = field(default_factory=Margins)

    @classmethod
    def of(
        cls,
        network: nn.Module,
        reader: PredictionReader,
        prediction: Prediction,
        home: HomeReadings,
        names: Sequence[str],
    ) -> "Rescue":
        """Assess the source prediction of a scan.

        Args:
            network: The source network.
            reader: Reads predictions for the scan.
            prediction: The source prediction.
            home: Readings of held-out source scans.
            names: Names of the structures.
        """
        source = reader.read(network, own=prediction.labels[list(reader.slices)])
        return cls(reader, home, names, source, assess(source, home, names), Margins.of(home))

    @property
    def leaves_alone(self) -> bool:
        """Return True if the scan is left alone."""
        return self.before.leave

    def start(self, network: AdaptableNetwork, volume: Volume) -> Inversion | None:
        """Return what to put in front of the network before the first step, or None to start from the scan as it is.

        Small steps cannot invert a contrast. The source prediction must have failed, and the prediction for the
        inverted scan must look fine before any step.

        Args:
            network: The source network.
            volume: The scan.
        """
        if self.before.verdict != "failed" or volume.images.shape[1] != 1:
            return None
        inversion, turned = Inversion.of(volume.images), deepcopy(network)
        turned.curve = inversion
        before, after = map(self._compared, (self.source, self.reader.read(turned, SELECTING)))
        looks_fine = after >= self.home.coefficients.fine * self.before.home
        return inversion if looks_fine and best_stage(before, [after], self.before.home) is not None else None

    def plan(self, schedule: Schedule, volume: Volume, steps: int | None) -> tuple[Schedule, Volume]:
        """Return the schedule and the volume that steps see.

        Args:
            schedule: That of the preset.
            volume: The scan.
            steps: Number of steps, if it was set.
        """
        if self.leaves_alone:
            return replace(schedule, steps=0), volume
        if not isinstance(schedule.solver, Adam):
            schedule = replace(schedule, solver=Bounded(), steps=RESCUE_STEPS if steps is None else steps)
        return schedule, volume.thinned(READ_SLICES)

    def stop_rule(self, network: AdaptableNetwork, method: Method, steps: int, at_source: bool) -> StageRule:  # noqa: ARG002
        """Return the rule of a run whose stages are read on the way."""
        if isinstance(method, ClosedForm):
            return StageRule(network=network, reader=self.reader, steps=1, moving=method.moved(network))
        return StageRule(network=network, reader=self.reader, steps=steps, moving=method.parameters(network))

    def decide(self, network: nn.Module, trajectory: Trajectory, origin: float) -> Decision:  # noqa: ARG002
        """Return the decision on a run.

        Args:
            network: The adapted network, which gets the parameters of the chosen stage.
            trajectory: The course of the run.
            origin: The objective at the source network, which has no say.
        """
        rule = trajectory.rule
        stage = self.choose(rule.stages) if isinstance(rule, StageRule) else None
        trajectory.choose(None if stage is None else stage.step, {} if stage is None else stage.state)
        unknown = network.load_state_dict(trajectory.state, strict=False).unexpected_keys
        assert not unknown, f"The network has no {unknown[0]}."
        after = None if stage is None or self.leaves_alone else self.reader.read(network)
        return self.settle(after)

    def choose(self, stages: Sequence[Stage]) -> Stage | None:
        """Return the stage of the best estimate, or None if no stage promises enough.

        The rise counts from the lower of the two estimates of the source prediction: by what compares stages, and by
        all readings.
        """
        first, *others = map(self._compared, (self.source, *(stage.readings for stage in stages)))
        number = best_stage(min(first, self.before.expected), others, self.before.home, self.margins)
        return None if number is None or self._gives_up_steadiness(stages[number]) else stages[number]

    def _compared(self, readings: Readings) -> float:
        """Return the estimate by which stages are compared."""
        weights = self.home.coefficients.without_contacts()
        return assess(readings, self.home, using=SELECTING, coefficients=weights).expected

    def _rises(self, readings: Readings) -> bool:
        """Return True if a prediction promises enough more than the source prediction by what compares stages alone."""
        before, after = map(self._compared, (self.source, readings))
        return best_stage(before, [after], self.before.home, self.margins) is not None

    def _gives_up_steadiness(self, stage: Stage) -> bool:
        """Return True if a doubtful prediction as steady as at home would be given up for its sizes alone.

        A failed one may be steady because there is hardly anything left of it.
        """
        if self.before.verdict == "failed" or self.source.vanished:
            return False
        before, after = (
            float(Excesses.of(readings, self.home, SELECTING).unsteady.mean())
            for readings in (self.source, stage.readings)
        )
        return before < self.margins.steady and after >= before

    def settle(self, readings: Readings | None) -> Decision:
        """Return the decision on the chosen stage.

        Args:
            readings: Readings of the chosen stage by all perturbations. None if no stage was chosen.
        """
        if self.leaves_alone:
            return self._left_alone()
        if readings is None:
            return self._unhelped()
        after = assess(readings, self.home, self.names)
        # Readings that did not choose the stage must agree that it is better. Where the rise rests on them, it must be
        # fine.
        if after.expected <= self.before.expected or not (after.verdict == "fine" or self._rises(readings)):
            return self._unhelped()
        if self.before.verdict == "failed" and after.verdict != "fine":
            return self._withheld(NOT_ENOUGH if after.verdict == "failed" else UNSURE, after)
        was = "had failed" if self.before.verdict == "failed" else "was unsure"
        good = "the estimated quality is good" if after.verdict == "fine" else "it is still doubtful: look at it first"
        return self._decided("adapted", f"The network {was} on this scan; after adaptation {good}.", after, kept=True)

    def _left_alone(self) -> Decision:
        """Return the decision on a scan that is not adapted to."""
        if self.before.verdict == "fine":
            return self._decided("left alone", RELIABLE, self.before)
        if self.before.expected >= self.home.coefficients.fine * self.before.home:
            return self._decided("left alone", AS_USUAL, self.before)
        return self._decided("unsolved", TOO_VARIABLE, self.before)

    def _facts(self, after: Assessment) -> dict[str, Any]:
        """Return what a manifest says about the assessment, as JSON."""
        return {
            "verdict": after.verdict,
            "estimate": "dice" if after.labelled else "agreement",
            "expected": after.expected,
            "expected_range": None if after.low is None else [after.low, after.high],
            "expected_by_structure": dict(zip(self.names, after.structures, strict=False)),
            "verdict_before": self.before.verdict,
            "expected_before": self.before.expected,
            "signs": list(after.reasons),
        }

    def _unhelped(self) -> Decision:
        """Return the decision on a scan whose source prediction stands although it is not fine."""
        reason = NO_HELP if self.before.verdict == "failed" else DOUBTFUL
        return self._decided("unsolved", reason, self.before)

    def _withheld(self, reason: str, after: Assessment) -> Decision:
        """Return the decision on a scan that had failed and is not fine: such estimates are often far too good."""
        decision = self._decided("unsolved", reason, after, kept=True)
        reach = None if after.high is None else [0.0, after.high]
        unknown: dict[str, Any] = {"expected": None, "expected_range": reach, "expected_by_structure": {}}
        numbers = {"expected_before": self.before.expected}
        return replace(decision, numbers=numbers, assessment={**decision.assessment, **unknown})

    def _decided(self, action: Action, reason: str, after: Assessment, kept: bool = False) -> Decision:
        """Return a decision with the numbers that it rests on."""
        numbers = {"expected_before": self.before.expected, "expected_after": after.expected}
        return Decision(action, reason, numbers, kept, self._facts(after))
