"""The one adaptation loop: evaluations of a scan's objective, brakes, the choice of the final step."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scantune.adaptation.gradient_threads import Crew
from scantune.adaptation.guard.base import Verdict
from scantune.adaptation.replay import Replay
from scantune.adaptation.sampling import Sampling
from scantune.adaptation.solvers import Solver
from scantune.errors import InputError
from scantune.methods import ClosedForm, Method, Terms
from scantune.networks import AdaptableNetwork
from scantune.runtime.cuda_graph import unrepeatable_layer
from scantune.runtime.threads import number_for
from scantune.scans.volume import Batch, Volume

OnStep = Callable[[int, int], None]

FEW = 4
"""Slices by which a solver finds the units of its steps."""


@dataclass(frozen=True)
class Schedule:
    """How a method runs: how a step sees the volume, how steps are taken, and how many.

    A step costs one gradient. With the start, a run of `steps` looks at one point more.
    """

    sampling: Sampling
    solver: Solver
    steps: int


@dataclass(frozen=True)
class Brakes:
    """What steps are chosen, and when a run stops before the last one.

    Args:
        verdict: Tells of the current parameters, given their energy, whether they are the best so far; asked of steps
            that lower the objective. By default each of these is.
        level: The energy at which the run has arrived.
        every: A verdict has its cost: the fewest steps from one to the next.
        elsewhere: Whether the start is not the source, and is to be judged as a step is.
    """

    verdict: Callable[[float | None], Verdict] = lambda _energy: "accepted"
    level: float = -math.inf
    every: int = 1
    elsewhere: bool = False


@dataclass
class Course:
    """What the loop saw, and the parameters of the step it chose."""

    moving: Mapping[str, Tensor]
    brakes: Brakes = field(default_factory=Brakes)
    trace: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    state: dict[str, Tensor] = field(default_factory=dict)
    _lowest: float = math.inf
    _judged: int = 0

    @property
    def start(self) -> float:
        """The objective before the first step."""
        return float(self.trace[0]["objective"]) if self.trace else math.nan

    @property
    def end(self) -> float:
        """The objective of the chosen step; infinite where none was eligible."""
        return math.inf if self.best is None else float(self.trace[self.best]["objective"])

    def note(self, terms: Terms, smoothing: float) -> bool:
        """Adds a step, evaluated at the current parameters; False when the run is to end with it."""
        objective = float(terms.objective.detach())
        before = self.trace[-1]["smoothed"] if self.trace else objective
        smoothed = smoothing * before + (1 - smoothing) * objective
        parts = {name: float(value.detach()) for name, value in terms.parts.items()}
        valid = bool(terms.valid) and math.isfinite(objective)
        better = valid and smoothed < self._lowest
        verdict = self._verdict(parts.get("cnn")) if better else None
        row = {"step": len(self.trace), "objective": objective, "smoothed": smoothed, **parts}
        self.trace.append({**row, "valid": valid and verdict in ("accepted", None)})
        if better:
            self._lowest = smoothed
        if verdict == "accepted":
            self.best = len(self.trace) - 1
            self.state = {name: parameter.detach().clone() for name, parameter in self.moving.items()}
        arrived = better and parts.get("cnn", math.inf) <= self.brakes.level
        return math.isfinite(objective) and verdict != "strayed" and not arrived

    def _verdict(self, energy: float | None) -> Verdict | None:
        """On a step that lowers the objective, where one is due; the source is the best so far without being judged."""
        step = len(self.trace)
        if step == 0 and not self.brakes.elsewhere:
            return "accepted"
        if 0 < step < self._judged + self.brakes.every:
            return None
        self._judged = step
        return self.brakes.verdict(energy)


def optimise(
    network: AdaptableNetwork,
    method: Method,
    volume: Volume,
    schedule: Schedule,
    seed: int,
    on_step: OnStep | None = None,
    brakes: Brakes | None = None,
) -> Course:
    """Runs a method on one scan; `network` is a working copy whose parameters are all frozen.

    Returns:
        The trace, at most `steps` + 1 rows, one for each time the objective was evaluated, and the parameters of the
        last row that the brakes accepted: by default that with the lowest smoothed objective of the eligible ones.
    """
    sampling = schedule.sampling
    generator = torch.Generator().manual_seed(seed)
    if isinstance(method, ClosedForm):
        course = Course(method.moved(network), brakes or Brakes())
        return _jump(network, method, volume, sampling, generator, course) if schedule.steps else course
    course = Course(method.parameters(network), brakes or Brakes())
    moving = list(method.parameters(network).values())
    if not moving or not schedule.steps:
        return course
    volume = sampling.seen(method, volume)
    method.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)
    gradients = Gradients(method, moving, volume, sampling, generator)

    def evaluate() -> Tensor:
        method.latest.forget()
        method.begin(len(course.trace), volume, generator)
        if len(course.trace) == schedule.steps:
            course.note(sampling.objective(method, volume, generator), sampling.smoothing)
            raise _Arrived
        terms = gradients()
        goes_on = course.note(terms, sampling.smoothing)
        if on_step is not None:
            on_step(len(course.trace), schedule.steps)
        if not goes_on or not gradients.finite():
            raise _Arrived
        return terms.objective.detach()

    try:
        method.start(volume, generator)
        images = volume.spread(FEW).images[:, : network.channels]
        solver = schedule.solver.fitted(network.normalizer, moving, images)
        solver.run(moving, evaluate, method.options.learning_rate, schedule.steps)
    except _Arrived:
        pass
    finally:
        method.finish()
    return course


class Gradients:
    """Evaluates the objective with its gradient; on a GPU the work of a step is recorded and replayed."""

    def __init__(
        self,
        method: Method,
        moving: list[nn.Parameter],
        volume: Volume,
        sampling: Sampling,
        generator: torch.Generator,
    ) -> None:
        self.method, self.moving, self.volume = method, moving, volume
        self.sampling, self.generator = sampling, generator
        self.replay: Replay | None = None
        self.crew = self._crew()

    def __call__(self) -> Terms:
        """The objective at the current parameters, whose `.grad` is left with its gradient."""
        terms = self._once()
        if not self.finite() and self.method.finer():
            self.replay = None
            terms = self._once()
        return terms

    def finite(self) -> bool:
        """Whether the gradient is."""
        each = [torch.isfinite(p.grad).all() for p in self.moving if p.grad is not None]
        return not each or bool(torch.stack(each).all())

    def _replayable(self) -> bool:
        known = self.volume.images.is_cuda and self.method.recordable
        return known and unrepeatable_layer([self.method.network]) is None

    def _crew(self) -> Crew | None:
        """Threads, where cores wait for them and neither the method nor a layer may mind to be called by two."""
        number = number_for(self.method.network, self.volume.images) if self.method.reentrant else 1
        return Crew(self.moving, number) if number > 1 else None

    def _once(self) -> Terms:
        if self.replay is None and self._replayable():
            self.replay = Replay(self.moving)
        for parameter in self.moving:
            parameter.grad = None
        terms = self.sampling.gradient(self.method, self.volume, self.generator, self.replay, self.crew)
        _require_effect(self.method, self.moving)
        return terms


def objective_at(network: AdaptableNetwork, method: Method, volume: Volume, sampling: Sampling, seed: int) -> float:
    """The objective of a method at a network, which is a working copy, without any step."""
    generator = torch.Generator().manual_seed(seed)
    volume = sampling.seen(method, volume)
    method.prepare(network)
    try:
        method.begin(0, volume, generator)
        return float(sampling.objective(method, volume, generator).objective.detach())
    finally:
        method.finish()


@torch.no_grad()
def _jump(
    network: AdaptableNetwork,
    method: ClosedForm,
    volume: Volume,
    sampling: Sampling,
    generator: torch.Generator,
    course: Course,
) -> Course:
    """The run of a method that knows its answer: two rows, before and after."""
    method.prepare(network)
    try:
        course.note(sampling.objective(method, volume, generator), sampling.smoothing)
        method.solve(_Again(volume))
        course.note(sampling.objective(method, volume, generator), sampling.smoothing)
    finally:
        method.finish()
    return course


@dataclass(frozen=True)
class _Again:
    """The batches of a volume, as often as they are asked for."""

    volume: Volume
    size: int = 8

    def __iter__(self) -> Iterator[Batch]:
        return self.volume.batches(self.size)


class _Arrived(Exception):  # noqa: N818
    """Ends a solver's run from within an evaluation."""


def _require_effect(method: Method, moving: Iterable[nn.Parameter]) -> None:
    if method.steady and all(parameter.grad is None for parameter in moving):
        raise InputError(
            f"The objective of method {method.name} does not depend on what moves (moving={method.options.moving}); "
            "choose another setting of moving, or of what the method looks at."
        )
