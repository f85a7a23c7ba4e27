"""The adaptation loop: steps that lower a scan's objective, the rule that ends them, and the choice of a step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scantune.adaptation.gradients import Gradients, mean_terms
from scantune.adaptation.guard.base import StepVerdict
from scantune.adaptation.sampling import Sampling
from scantune.adaptation.solvers import Solver
from scantune.errors import InputError
from scantune.methods import ClosedForm, Method, Terms
from scantune.networks import AdaptableNetwork
from scantune.scans.volume import Batch, Volume

OnStep = Callable[[int, int], None]

UNIT_SLICES = 4
"""Slices by which a solver finds the units of its steps."""


@dataclass(frozen=True)
class Schedule:
    """How a method runs: how a step sees the volume, how steps are taken, and how many.

    A step costs one gradient of the volume. A run of `steps` evaluates the objective once more than that, at the end.
    """

    sampling: Sampling
    solver: Solver
    steps: int
    rate: float | None = None
    """Learning rate of the solver. None leaves it to the method."""


@dataclass
class StopRule:
    """Rule that says which steps may be kept, and when a run ends before its last step.

    Args:
        verdict: Judges the current parameters, given their energy. It is asked about steps that lower the objective.
            By default each of these is accepted.
        level: The energy at which the run ends.
        interval: Smallest number of steps between two verdicts, which have a cost.
        judges_start: Whether the start is judged too, because it is not the source network.
    """

    verdict: Callable[[float | None], StepVerdict] = lambda _energy: "accepted"
    level: float = -math.inf
    interval: int = 1
    judges_start: bool = False
    ends: bool = field(default=False, init=False)
    """Whether the run is to end with the latest step."""
    _lowest: float = field(default=math.inf, init=False)
    _judged: int = field(default=0, init=False)

    def judge(self, step: int, objective: float, energy: float | None) -> StepVerdict | None:
        """Return the verdict on the next step, or None if the step is not judged.

        Args:
            step: Its number. The start is step 0.
            objective: Its objective, smoothed. It is infinite if the step must not be chosen.
            energy: Its FoE-CNN energy, if the method knows it.
        """
        self.ends = False
        if not objective < self._lowest:
            return None
        self._lowest = objective
        verdict = self._verdict(step, energy)
        self.ends = verdict == "strayed" or (energy is not None and energy <= self.level)
        return verdict

    def _verdict(self, step: int, energy: float | None) -> StepVerdict | None:
        if step == 0 and not self.judges_start:
            return "accepted"
        if 0 < step < self._judged + self.interval:
            return None
        self._judged = step
        return self.verdict(energy)


@dataclass
class Trajectory:
    """What the loop saw, and the parameters of the step that it chose.

    Attributes:
        moving: The parameters, by name.
        rule: Says which steps may be chosen.
        trace: One row per evaluation of the objective.
        best: Number of the chosen step, or None.
        state: Parameters of the chosen step, by name.
    """

    moving: Mapping[str, Tensor]
    rule: StopRule = field(default_factory=StopRule)
    trace: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    @property
    def start(self) -> float:
        """Return the objective before the first step."""
        return float(self.trace[0]["objective"]) if self.trace else math.nan

    @property
    def end(self) -> float:
        """Return the objective of the chosen step, which is infinite if there is none."""
        return math.inf if self.best is None else float(self.trace[self.best]["objective"])

    def choose(self, step: int | None, state: dict[str, Tensor]) -> None:
        """Choose a step after the run, or None.

        Args:
            step: Its number.
            state: Its parameters by name.
        """
        self.best, self.state = step, state

    def add(self, terms: Terms, smoothing: float) -> bool:
        """Add a step, evaluated at the current parameters, and return whether the run goes on."""
        objective = float(terms.objective.detach())
        before = self.trace[-1]["smoothed"] if self.trace else objective
        smoothed = smoothing * before + (1 - smoothing) * objective
        parts = {name: float(value.detach()) for name, value in terms.parts.items()}
        valid = bool(terms.valid) and math.isfinite(objective)
        verdict = self.rule.judge(len(self.trace), smoothed if valid else math.inf, parts.get("cnn"))
        if verdict == "accepted":
            self.best = len(self.trace)
            self.state = {name: parameter.detach().clone() for name, parameter in self.moving.items()}
        row = {"step": len(self.trace), "objective": objective, "smoothed": smoothed, **parts}
        self.trace.append({**row, "valid": valid and verdict in ("accepted", None)})
        return math.isfinite(objective) and not self.rule.ends


def optimise(
    network: AdaptableNetwork,
    method: Method,
    volume: Volume,
    schedule: Schedule,
    seed: int,
    on_step: OnStep | None = None,
    rule: StopRule | None = None,
) -> Trajectory:
    """Run a method on one scan.

    Args:
        network: A working copy whose parameters are all frozen.
        method: How to adapt.
        volume: The scan.
        schedule: How long, and by which steps.
        seed: Fixes every random choice.
        on_step: Called after each step with its number and the number of steps.
        rule: Says which steps may be kept and when the run ends. By default the step with the lowest smoothed
            objective is chosen of all eligible ones, and the run goes to its end.

    Returns:
        The trace, at most `steps` + 1 rows, and the parameters of the last step that the rule accepted.
    """
    sampling, generator = schedule.sampling, torch.Generator().manual_seed(seed)
    if isinstance(method, ClosedForm):
        trajectory = Trajectory(method.moved(network), rule or StopRule())
        return _solve(network, method, volume, sampling, generator, trajectory) if schedule.steps else trajectory
    trajectory = Trajectory(method.parameters(network), rule or StopRule())
    moving = list(method.parameters(network).values())
    if not moving or not schedule.steps:
        return trajectory
    volume = sampling.seen(method, volume)
    method.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    gradients = sampling.gradients(method, volume, generator)
    try:
        method.start(volume, generator)
        images = volume.spread(UNIT_SLICES).images[:, : network.channels]
        solver = schedule.solver.fitted(network.normalizer, moving, images)
        points = _evaluations(method, volume, schedule, gradients, generator, trajectory, on_step)
        rate = method.options.learning_rate if schedule.rate is None else schedule.rate
        solver.run(moving, points, rate, schedule.steps)
    finally:
        method.finish()
    return trajectory


def _evaluations(
    method: Method,
    volume: Volume,
    schedule: Schedule,
    gradients: Gradients,
    generator: torch.Generator,
    trajectory: Trajectory,
    on_step: OnStep | None,
) -> Iterator[Tensor]:
    """Yield the objective at the current parameters, with its gradient in their `.grad`, until the run ends.

    The caller moves the parameters between iterations: each objective is that of the parameters at that moment.
    """
    sampling = schedule.sampling
    for step in range(schedule.steps):
        _begin(method, step, volume, generator)
        epoch: list[Terms] = []
        while len(epoch) < gradients.updates:
            epoch.append(_evaluation(method, gradients))
            goes_on = True
            if len(epoch) == gradients.updates:
                goes_on = trajectory.add(epoch[0] if len(epoch) == 1 else mean_terms(epoch), sampling.smoothing)
                if on_step is not None:
                    on_step(step + 1, schedule.steps)
            if not goes_on or not gradients.are_finite():
                return
            yield epoch[-1].objective.detach()
    _begin(method, schedule.steps, volume, generator)
    trajectory.add(sampling.objective(method, volume, generator), sampling.smoothing)


def _evaluation(method: Method, gradients: Gradients) -> Terms:
    """Return the objective at the current parameters, with a finite gradient in their `.grad` if precision allows."""
    gradients.clear()
    terms = gradients()
    if not gradients.are_finite() and method.fast_path.leave_half_precision():
        gradients.restart()
        gradients.clear()
        terms = gradients()
    _require_effect(method, gradients)
    return terms


def _begin(method: Method, step: int, volume: Volume, generator: torch.Generator) -> None:
    """Tell the method that the objective is about to be evaluated at new parameters."""
    method.fast_path.outputs.forget()
    method.begin(step, volume, generator)


def _require_effect(method: Method, gradients: Gradients) -> None:
    """Check that the objective depends on the parameters.

    Raises:
        InputError: It does not.
    """
    if method.steady and all(parameter.grad is None for parameter in gradients.moving):
        raise InputError(
            f"The objective of method {method.name} does not depend on what moves (moving={method.options.moving}); "
            "choose another setting of moving, or of what the method looks at."
        )


def objective_at(network: AdaptableNetwork, method: Method, volume: Volume, sampling: Sampling, seed: int) -> float:
    """Return the objective of a method at a network, which is a working copy, without any step."""
    generator = torch.Generator().manual_seed(seed)
    volume = sampling.seen(method, volume)
    method.prepare(network)
    try:
        method.begin(0, volume, generator)
        return float(sampling.objective(method, volume, generator).objective.detach())
    finally:
        method.finish()


@torch.no_grad()
def _solve(
    network: AdaptableNetwork,
    method: ClosedForm,
    volume: Volume,
    sampling: Sampling,
    generator: torch.Generator,
    trajectory: Trajectory,
) -> Trajectory:
    """Run a method that knows its answer: the trace has two rows, before and after."""
    method.prepare(network)
    try:
        trajectory.add(sampling.objective(method, volume, generator), sampling.smoothing)
        method.solve(_RepeatedBatches(volume))
        trajectory.add(sampling.objective(method, volume, generator), sampling.smoothing)
    finally:
        method.finish()
    return trajectory


@dataclass(frozen=True)
class _RepeatedBatches(Iterable[Batch]):
    """Batches of a volume that can be iterated over several times."""

    volume: Volume
    size: int = 8

    def __iter__(self) -> Iterator[Batch]:
        return self.volume.batches(self.size)
