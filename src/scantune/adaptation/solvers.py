"""Solvers: how steps are taken, by the paper's Adam or by quasi-Newton methods."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn


class Solver(ABC):
    """How steps are taken."""

    def fitted(self, picture: nn.Module, moving: list[nn.Parameter], images: Tensor) -> Self:  # noqa: ARG002
        """Return the solver with what it needs to know of a run before the first step.

        Args:
            picture: Makes the picture that the task network sees.
            moving: The parameters.
            images: Some slices `(slices, channels, *spatial)`.
        """
        return self

    @abstractmethod
    def run(self, moving: list[nn.Parameter], objectives: Iterator[Tensor], rate: float, steps: int) -> None:
        """Move the parameters until the objectives end.

        Args:
            moving: The parameters.
            objectives: Each next one is the objective at the current parameters, whose `.grad` then holds its
                gradient. It must be asked for wherever the parameters come to, the start and the end included.
            rate: The method's learning rate.
            steps: Largest number of objectives.
        """


@dataclass(frozen=True)
class Adam(Solver):
    """The paper's solver, with a constant learning rate."""

    def run(self, moving: list[nn.Parameter], objectives: Iterator[Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """Take one step per gradient."""
        adam = torch.optim.Adam(moving, lr=rate)
        for _ in objectives:
            adam.step()


@dataclass(frozen=True)
class LBFGS(Solver):
    """Quasi-Newton with a line search: the objective is smooth, and needs tens of evaluations instead of a thousand.

    Adam's first steps move every parameter by the learning rate, however insensitive the objective is to it. On
    normalisers with narrow bumps this throws a scan out of the distribution before it is brought back.

    Args:
        history: Number of steps that directions are made of. More than a run has cost nothing. With fewer, long runs
            slow down.
    """

    history: int = 100

    def run(self, moving: list[nn.Parameter], objectives: Iterator[Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """Search along quasi-Newton directions, without the learning rate."""
        solver = torch.optim.LBFGS(
            moving, max_iter=steps, max_eval=steps + 1, history_size=self.history, line_search_fn="strong_wolfe"
        )
        readable = map(partial(_with_contiguous_gradients, moving), objectives)
        # A line search may go on beyond max_eval: it is the end of the objectives that stops it.
        with suppress(StopIteration):
            solver.step(partial(next, readable))  # type: ignore[no-untyped-call]


def _with_contiguous_gradients(moving: list[nn.Parameter], objective: Tensor) -> Tensor:
    """Return the objective, after the gradients were laid out as PyTorch's L-BFGS can read them."""
    for parameter in moving:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
    return objective


SUFFICIENT_DECREASE, LEAST_CURVATURE = 1e-4, 1e-4
"""A good step gains this share of what its slope promises. Less curvature along a step is noise, or none."""


@dataclass(frozen=True)
class Bounded(Solver):
    """Quasi-Newton in units of what parameters do to the picture, with every step within a radius and no line search.

    The first step goes along the gradient, and would lower the objective by a share of itself if it went on as it
    begins. Later ones are up to four times as long as the last good one, and a quarter of it after a bad one, whose
    gradient shows the curvature all the same. A line search takes several gradients instead, and decides by digits that
    are rounding.

    Args:
        history: Number of steps that directions are made of.
        first: The share.
        growth: Growth of the radius after a good step as long as the radius.
        scale: Units of the parameters `(parameters,)`. None leaves them as they are.
    """

    history: int = 100
    first: float = 0.2
    growth: float = 4.0
    scale: Tensor | None = field(default=None, compare=False, repr=False)

    def fitted(self, picture: nn.Module, moving: list[nn.Parameter], images: Tensor) -> Self:
        """Return the solver with units."""
        return replace(self, scale=scales(picture, moving, images))

    def run(self, moving: list[nn.Parameter], objectives: Iterator[Tensor], rate: float, steps: int) -> None:  # noqa: ARG002
        """Take one step per gradient, without the learning rate."""
        place = torch.cat([parameter.detach().flatten() for parameter in moving]).double()
        scale = torch.ones_like(place) if self.scale is None else self.scale
        value, radius, bound = 0.0, 0.0, False
        slope, step = torch.zeros_like(place), None
        pairs: list[tuple[Tensor, Tensor]] = []
        for objective in objectives:
            there, turned = float(objective), _slope(moving) * scale
            if step is None:
                value, slope = there, turned
                radius = self.first * abs(value) / float(slope.norm().clamp_min(1e-30))
            else:
                change = turned - slope
                if float(step @ change) > LEAST_CURVATURE * float(step.norm() * change.norm()):
                    pairs.append((step, change))
                if there < value + SUFFICIENT_DECREASE * float(slope @ step):
                    place, value, slope = place + scale * step, there, turned
                    radius = self.growth * radius if bound else radius
                else:
                    radius = float(step.norm()) / 4
            step = _newton(slope, pairs[-self.history :])
            length = float(step.norm())
            bound = not pairs or length > radius
            if bound:
                step *= radius / max(length, 1e-30)
            _place(moving, place + scale * step)


def _slope(moving: list[nn.Parameter]) -> Tensor:
    """Return the gradient of the parameters `(parameters,)`."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in moving]
    return torch.cat([part.flatten() for part in parts]).double()


@torch.no_grad()
def _place(moving: list[nn.Parameter], place: Tensor) -> None:
    """Set the parameters."""
    for parameter, part in zip(moving, torch.split(place, [p.numel() for p in moving]), strict=True):
        parameter.copy_(part.view_as(parameter))


def _newton(slope: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the quasi-Newton step of Nocedal 1980, from steps and the changes of the gradient along them."""
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


PROBES = 16
"""Random sums of pixels. The estimate is the mean square of their gradients."""

DAMPING = 0.1
"""Share of the mean square of all parameters that is added to each, so that what hardly matters does not move far."""


def scales(picture: nn.Module, moving: Sequence[nn.Parameter], images: Tensor, seed: int = 0) -> Tensor | None:
    """Return changes of the parameters that change the picture alike, `(parameters,)` in double precision.

    Bumps are narrow or wide, so that the same change of a weight means little in one channel and everything in the
    next. The square of a scale is the inverse of the mean square, over pixels, of the derivative of the picture by the
    parameter: that is the expected square of the gradient of the pixels' sum with random signs.

    Args:
        picture: Makes the picture, such as a normaliser, in single precision.
        moving: The parameters.
        images: Some slices `(slices, channels, *spatial)`.
        seed: Fixes the random signs.

    Returns:
        The scales, 1 in root mean square, or None if a parameter has no part in the picture.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        made = picture(images)
    if not made.requires_grad:
        return None
    squares: Tensor | None = None
    for _ in range(PROBES):
        signs = torch.randint(2, made.shape, generator=generator).mul_(2).sub_(1).to(made)
        found = torch.autograd.grad(made, moving, signs, retain_graph=True, allow_unused=True)
        if any(part is None for part in found):
            return None
        each = torch.cat([part.flatten() for part in found if part is not None]).double().square()
        squares = each if squares is None else squares + each
    assert squares is not None
    if not bool(squares.mean() > 0) or not bool(torch.isfinite(squares).all()):
        return None
    scale = (squares + DAMPING * squares.mean()).rsqrt()
    return scale / scale.square().mean().sqrt()
