"""The one adaptation loop: gradients of a scan's objective, steps, brakes, the choice of the final step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scantune.methods import Method, Terms
from scantune.networks import AdaptableNetwork
from scantune.prior import slices

OnStep = Callable[[int, int], None]


@dataclass(frozen=True)
class Volume:
    """A scan as the network sees it: `(slices, channels, *spatial)`, and True where it is padding."""

    images: Tensor
    padding: Tensor | None = None

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """All slices once, in order."""
        return slices(self.images, self.padding, size)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Slices drawn uniformly with replacement."""
        chosen = torch.randint(len(self.images), (size,), generator=generator).to(self.images.device)
        return self.images[chosen], None if self.padding is None else self.padding[chosen]


class Sampling(ABC):
    """How a step sees the volume."""

    smoothing: float
    """Momentum of the moving average by which steps are compared; 0 where the objective is exact."""

    @abstractmethod
    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """Adds the objective's gradient to the moving parameters' `.grad`, and tells the objective."""

    @abstractmethod
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The objective alone."""


@dataclass(frozen=True)
class WholeVolume(Sampling):
    """Exact: statistics of all slices, as the training densities pool all slices of a subject.

    A first pass sums the statistics; the objective's gradient with respect to these sums is then handed back batch by
    batch in a second pass. Memory is that of one batch. A volume that fits in one batch needs one pass.
    """

    batch: int = 8
    smoothing: float = 0.0

    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """The gradient of the whole volume's objective."""
        if len(volume.images) <= self.batch:
            terms = method.terms(method.measure(volume.images, volume.padding))
            terms.objective.backward()  # type: ignore[no-untyped-call]
            return terms
        total = {key: value.requires_grad_() for key, value in self._total(method, volume).items()}
        terms = method.terms(total)
        terms.objective.backward()  # type: ignore[no-untyped-call]
        for images, padding in volume.batches(self.batch):
            parts = method.measure(images, padding)
            pairs = [(part, total[key].grad) for key, part in parts.items() if part.requires_grad]
            used = [(part, grad.to(part)) for part, grad in pairs if grad is not None]
            torch.autograd.backward([part for part, _ in used], [grad for _, grad in used])
        return terms

    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """The whole volume's objective."""
        return method.terms(self._total(method, volume))

    @torch.no_grad()
    def _total(self, method: Method, volume: Volume) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for images, padding in volume.batches(self.batch):
            for key, value in method.measure(images, padding).items():
                total[key] = total.get(key, 0) + value.double()
        return total


@dataclass(frozen=True)
class RandomSlices(Sampling):
    """The paper's estimate: as many batches of random slices as cover the volume, their gradients averaged."""

    batch: int = 8
    smoothing: float = 0.95

    def gradient(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The mean gradient of one epoch's batches."""
        count = self._count(volume)
        epoch = []
        for _ in range(count):
            terms = method.terms(method.measure(*volume.draw(self.batch, generator)))
            (terms.objective / count).backward()  # type: ignore[no-untyped-call]
            epoch.append(terms)
        return _mean(epoch)

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The mean objective of one epoch's batches."""
        draws = (volume.draw(self.batch, generator) for _ in range(self._count(volume)))
        return _mean([method.terms(method.measure(*batch)) for batch in draws])

    def _count(self, volume: Volume) -> int:
        return math.ceil(len(volume.images) / self.batch)


class Solver(ABC):
    """How steps are taken."""

    @abstractmethod
    def run(self, moving: list[nn.Parameter], evaluate: Callable[[], Tensor], rate: float, steps: int) -> None:
        """Moves the parameters, at most `steps` times.

        Args:
            moving: The parameters.
            evaluate: Gives the objective and leaves its gradient in `.grad`; to be called wherever the parameters
                come to, the start and the end included. It ends the run by an exception, after `steps` gradients or
                sooner.
            rate: The method's learning rate.
            steps: The most gradients that `evaluate` gives.
        """


@dataclass(frozen=True)
class Adam(Solver):
    """The paper's: constant learning rate."""

    def run(self, moving: list[nn.Parameter], evaluate: Callable[[], Tensor], rate: float, steps: int) -> None:
        """One update per gradient."""
        adam = torch.optim.Adam(moving, lr=rate)
        for _ in range(steps):
            evaluate()
            adam.step()
        evaluate()


@dataclass(frozen=True)
class LBFGS(Solver):
    """Quasi-Newton with a line search: the objective is smooth, and needs tens of evaluations instead of a thousand.

    Adam's first steps move every parameter by the learning rate, however insensitive the objective is to it; on
    normalisers with narrow bumps this throws a scan out of the distribution before it is brought back.
    """

    history: int = 20

    def run(self, moving: list[nn.Parameter], evaluate: Callable[[], Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """Line searches along quasi-Newton directions; the learning rate is not used."""
        # A line search may go on beyond max_eval: it is `evaluate` that keeps the count.
        solver = torch.optim.LBFGS(
            moving, max_iter=steps, max_eval=steps + 1, history_size=self.history, line_search_fn="strong_wolfe"
        )
        solver.step(evaluate)  # type: ignore[no-untyped-call]


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
    """When to stop before the last step.

    Args:
        level: The energy at which the scan is as typical as a source subject.
        accepts: Tells of the current parameters whether their prediction may stand; asked of every step that would be
            chosen. The first that may not ends the run.
    """

    level: float = -math.inf
    accepts: Callable[[], bool] = lambda: True


@dataclass
class Course:
    """What the loop saw, and the parameters of the step it chose."""

    moving: dict[str, nn.Parameter]
    brakes: Brakes = field(default_factory=Brakes)
    trace: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

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
        valid = terms.valid and math.isfinite(objective)
        better = valid and (self.best is None or smoothed < self.trace[self.best]["smoothed"])
        strays = better and bool(self.trace) and not self.brakes.accepts()
        row = {"step": len(self.trace), "objective": objective, "smoothed": smoothed, **parts}
        self.trace.append({**row, "valid": valid and not strays})
        if better and not strays:
            self.best = len(self.trace) - 1
            self.state = {name: parameter.detach().clone() for name, parameter in self.moving.items()}
        arrived = better and parts.get("cnn", math.inf) <= self.brakes.level
        return math.isfinite(objective) and not strays and not arrived


def optimise(
    network: AdaptableNetwork,
    method: Method,
    volume: Volume,
    schedule: Schedule,
    learning_rate: float,
    seed: int,
    on_step: OnStep | None = None,
    brakes: Brakes | None = None,
) -> Course:
    """Runs a method on one scan; `network` is a working copy whose parameters are all frozen.

    Returns:
        The trace, at most `steps` + 1 rows, one for each time the objective was evaluated, and the parameters with the
        lowest smoothed objective among the eligible rows.
    """
    course = Course(method.parameters(network), brakes or Brakes())
    moving = list(course.moving.values())
    if not moving or not schedule.steps:
        return course
    sampling = schedule.sampling
    generator = torch.Generator().manual_seed(seed)
    method.prepare(network)
    for parameter in moving:
        parameter.requires_grad_(True)

    def evaluate() -> Tensor:
        if len(course.trace) == schedule.steps:
            course.note(sampling.objective(method, volume, generator), sampling.smoothing)
            raise _Arrived
        for parameter in moving:
            parameter.grad = None
        terms = sampling.gradient(method, volume, generator)
        goes_on = course.note(terms, sampling.smoothing)
        if on_step is not None:
            on_step(len(course.trace), schedule.steps)
        if not goes_on or not _finite(moving):
            raise _Arrived
        return terms.objective.detach()

    try:
        schedule.solver.run(moving, evaluate, learning_rate, schedule.steps)
    except _Arrived:
        pass
    finally:
        method.finish()
    return course


class _Arrived(Exception):  # noqa: N818
    """Ends a solver's run from within an evaluation."""


def _finite(parameters: Iterable[nn.Parameter]) -> bool:
    return all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in parameters)


def _mean(epoch: Sequence[Terms]) -> Terms:
    objective = torch.stack([terms.objective.detach() for terms in epoch]).mean()
    parts = {
        name: torch.stack([terms.parts[name].detach().float() for terms in epoch]).mean() for name in epoch[0].parts
    }
    # An epoch counts unless most of its batches lacked the patches to judge it.
    return Terms(objective, parts, 2 * sum(terms.valid for terms in epoch) >= len(epoch))
