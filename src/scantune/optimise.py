"""The one adaptation loop: gradients of a scan's objective, Adam steps, the choice of the final step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
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

    batch: int = 4
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


@dataclass(frozen=True)
class Schedule:
    """How long and in what strides a method runs."""

    sampling: Sampling
    steps: int
    decay: bool
    """Whether the learning rate falls to zero along a half cosine, or stays."""

    def rate(self, step: int) -> float:
        """The share of the learning rate that a step uses."""
        return 0.5 * (1 + math.cos(math.pi * step / self.steps)) if self.decay else 1.0


@dataclass
class Course:
    """What the loop saw, and the parameters of the step it chose."""

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

    def note(self, terms: Terms, smoothing: float, moving: dict[str, nn.Parameter]) -> bool:
        """Adds a step, evaluated at the current parameters; False when the objective is no longer finite."""
        objective = float(terms.objective.detach())
        before = self.trace[-1]["smoothed"] if self.trace else objective
        smoothed = smoothing * before + (1 - smoothing) * objective
        parts = {name: float(value.detach()) for name, value in terms.parts.items()}
        valid = terms.valid and math.isfinite(objective)
        row = {"step": len(self.trace), "objective": objective, "smoothed": smoothed, **parts, "valid": valid}
        self.trace.append(row)
        if valid and (self.best is None or smoothed < self.trace[self.best]["smoothed"]):
            self.best = len(self.trace) - 1
            self.state = {name: parameter.detach().clone() for name, parameter in moving.items()}
        return math.isfinite(objective)


def optimise(
    network: AdaptableNetwork,
    method: Method,
    volume: Volume,
    schedule: Schedule,
    learning_rate: float,
    seed: int,
    on_step: OnStep | None = None,
) -> Course:
    """Runs a method on one scan; `network` is a working copy whose parameters are all frozen.

    Returns:
        The trace, one row per step and one for the end, and the parameters with the lowest smoothed objective among
        the eligible steps. Each row belongs to the parameters before that step's update.
    """
    moving = method.parameters(network)
    course = Course()
    if not moving or not schedule.steps:
        return course
    generator = torch.Generator().manual_seed(seed)
    method.prepare(network)
    for parameter in moving.values():
        parameter.requires_grad_(True)
    adam = torch.optim.Adam(list(moving.values()), lr=learning_rate)
    try:
        for step in range(schedule.steps):
            for group in adam.param_groups:
                group["lr"] = learning_rate * schedule.rate(step)
            adam.zero_grad()
            terms = schedule.sampling.gradient(method, volume, generator)
            if not course.note(terms, schedule.sampling.smoothing, moving) or not _finite(moving.values()):
                return course
            adam.step()
            if on_step is not None:
                on_step(step + 1, schedule.steps)
        course.note(schedule.sampling.objective(method, volume, generator), schedule.sampling.smoothing, moving)
    finally:
        method.finish()
    return course


def _finite(parameters: Any) -> bool:
    return all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in parameters)


def _mean(epoch: Sequence[Terms]) -> Terms:
    objective = torch.stack([terms.objective.detach() for terms in epoch]).mean()
    parts = {
        name: torch.stack([terms.parts[name].detach().float() for terms in epoch]).mean() for name in epoch[0].parts
    }
    # An epoch counts unless most of its batches lacked the patches to judge it.
    return Terms(objective, parts, 2 * sum(terms.valid for terms in epoch) >= len(epoch))
