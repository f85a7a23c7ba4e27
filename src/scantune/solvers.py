"""How steps are taken: the paper's Adam, or quasi-Newton."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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


def _flat(moving: list[nn.Parameter], objective: Tensor) -> Tensor:
    """The objective, after the gradients were laid out as PyTorch's L-BFGS can read them."""
    for parameter in moving:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous()
    return objective
