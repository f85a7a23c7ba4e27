"""How steps are taken: the paper's Adam, or quasi-Newton."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from scantune.adaptation.scaling import scales


class Solver(ABC):
    """How steps are taken."""

    def fitted(self, picture: nn.Module, moving: list[nn.Parameter], images: Tensor) -> Self:  # noqa: ARG002
        """The same, with what it wants to know of a run before the first step.

        Args:
            picture: What makes the picture that the task network sees.
            moving: The parameters.
            images: Some slices `(slices, channels, *spatial)`.
        """
        return self

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

    Args:
        history: Steps that directions are made of. More than a run has cost nothing; with fewer, long runs slow down.
    """

    history: int = 100

    def run(self, moving: list[nn.Parameter], evaluate: Callable[[], Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """Line searches along quasi-Newton directions; the learning rate is not used."""
        # A line search may go on beyond max_eval: it is `evaluate` that keeps the count.
        solver = torch.optim.LBFGS(
            moving, max_iter=steps, max_eval=steps + 1, history_size=self.history, line_search_fn="strong_wolfe"
        )
        solver.step(lambda: _flat(moving, evaluate()))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Bounded(Solver):
    """Quasi-Newton in units of what parameters do to the picture, every step within a radius, none searched for.

    A first step along the gradient, which would lower the objective by a share of itself if it went on as it begins;
    later ones up to four times as long as the last good one, a quarter of it after a bad one, whose gradient tells the
    curvature all the same. A line search takes several gradients instead, and decides by digits that are rounding.

    Args:
        history: Steps that directions are made of.
        first: The share.
        growth: Of the radius, where a step was good and as long as the radius.
        scale: Units of the parameters `(parameters,)`; None for those they come in.
    """

    history: int = 100
    first: float = 0.2
    growth: float = 4.0
    scale: Tensor | None = field(default=None, compare=False, repr=False)

    def fitted(self, picture: nn.Module, moving: list[nn.Parameter], images: Tensor) -> Self:
        """With units."""
        return replace(self, scale=scales(picture, moving, images))

    def run(self, moving: list[nn.Parameter], evaluate: Callable[[], Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """One gradient a step; the learning rate is not used."""
        place = torch.cat([parameter.detach().flatten() for parameter in moving]).double()
        scale = torch.ones_like(place) if self.scale is None else self.scale
        pairs: list[tuple[Tensor, Tensor]] = []
        value, slope = _slope(moving, evaluate, scale)
        radius = self.first * abs(value) / float(slope.norm().clamp_min(1e-30))
        for _ in range(steps):
            step = _newton(slope, pairs[-self.history :])
            length = float(step.norm())
            bound = not pairs or length > radius
            if bound:
                step *= radius / max(length, 1e-30)
            _place(moving, place + scale * step)
            there, turned = _slope(moving, evaluate, scale)
            change = turned - slope
            if float(step @ change) > CURVED * float(step.norm() * change.norm()):
                pairs.append((step, change))
            if there < value + GOOD * float(slope @ step):
                place, value, slope = place + scale * step, there, turned
                radius = self.growth * radius if bound else radius
            else:
                radius = float(step.norm()) / 4


GOOD, CURVED = 1e-4, 1e-4
"""A good step gains this share of what its slope promises; less curvature along a step is noise, or none."""


def _slope(moving: list[nn.Parameter], evaluate: Callable[[], Tensor], scale: Tensor) -> tuple[float, Tensor]:
    """The objective where the parameters are, and its gradient in units of them `(parameters,)`."""
    value = float(evaluate())
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moving]
    return value, torch.cat([part.flatten() for part in parts]).double() * scale


@torch.no_grad()
def _place(moving: list[nn.Parameter], place: Tensor) -> None:
    """Sets the parameters."""
    for parameter, part in zip(moving, torch.split(place, [p.numel() for p in moving]), strict=True):
        parameter.copy_(part.view_as(parameter))


def _newton(slope: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The quasi-Newton step of Nocedal 1980, from steps and the changes of the gradient along them."""
    rest, shares = slope.clone(), []
    for step, change in reversed(pairs):
        shares.append((step @ rest) / (step @ change))
        rest -= shares[-1] * change
    if pairs:
        step, change = pairs[-1]
        rest *= (step @ change) / (change @ change)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        rest += (share - (change @ rest) / (step @ change)) * step
    return -rest


def _flat(moving: list[nn.Parameter], objective: Tensor) -> Tensor:
    """The objective, after the gradients were laid out as PyTorch's L-BFGS can read them."""
    for parameter in moving:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
    return objective
