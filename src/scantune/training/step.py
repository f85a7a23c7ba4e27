"""One step of training: the loss of what was drawn, its gradients, a move of the optimiser.

On a GPU a step of a small network is a thousand short pieces of work, and asking for them one by one takes the host
longer than doing them takes the device. So there a step is recorded once, as a CUDA graph, and from then on replayed by
one request. The same work is done, on the same numbers.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from scantune.runtime.cuda_graph import CudaGraph, foreign

Drawn = tuple[Tensor, ...]
"""What an iteration learns from, of the same shapes and types every time."""

Loss = Callable[[Drawn], Tensor]

WARM_UP = 3
"""Steps before the recording: they make the optimiser's moments, and libraries choose how they compute."""


class Step:
    """Takes a step every time anew.

    Args:
        loss: From what was drawn to a scalar with gradients.
        optimizer: Moves the parameters.
        remark: Why no better way was taken; empty where there is none.
    """

    def __init__(self, loss: Loss, optimizer: torch.optim.Optimizer, remark: str = "") -> None:
        self.loss, self.optimizer, self.remark = loss, optimizer, remark

    def __call__(self, drawn: Drawn) -> Tensor:
        """Takes it; gives the loss, a scalar, without waiting for the device. It may change with the next call."""
        loss = self.loss(drawn)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class Graph(Protocol):
    """Work of a device that can be asked for again as a whole."""

    def rehearse(self, work: Callable[[], Tensor]) -> tuple[Tensor, str]:
        """Does the work; gives its result, and what would keep it from being recorded."""

    def record(self, work: Callable[[], Tensor]) -> Tensor:
        """Notes the work without doing it; gives the tensor in which each replay leaves the result."""

    def replay(self) -> None:
        """Does what was recorded, on what now stands in the tensors that the work reads."""


class ReplayedStep(Step):
    """Takes the first steps as they are, records one, and replays it from then on.

    Where the rehearsal shows that this cannot be, steps stay as they are, and `remark` says why. Whatever differs in
    shape from what was recorded gets a step of its own.

    Args:
        loss: From what was drawn to a scalar with gradients.
        optimizer: Moves the parameters; it keeps its count of steps on the device.
        graph: Records and replays.
    """

    def __init__(self, loss: Loss, optimizer: torch.optim.Optimizer, graph: Graph) -> None:
        super().__init__(loss, optimizer)
        self.graph, self.taken = graph, 0
        self.places: Drawn = ()
        self.result: Tensor | None = None

    def __call__(self, drawn: Drawn) -> Tensor:
        """Takes a step; the loss stands where the next call will overwrite it."""
        if self.remark or self.taken < WARM_UP:
            return self._warm_up(drawn)
        if self.result is None:
            self.places = tuple(value.clone() for value in drawn)
            self.result = self.graph.record(lambda: super(ReplayedStep, self).__call__(self.places))
        if _form(drawn) != _form(self.places):
            return super().__call__(drawn)
        for place, value in zip(self.places, drawn, strict=True):
            place.copy_(value)
        self.graph.replay()
        return self.result

    def _warm_up(self, drawn: Drawn) -> Tensor:
        self.taken += 1
        if self.taken != WARM_UP:
            return super().__call__(drawn)
        loss, self.remark = self.graph.rehearse(lambda: super(ReplayedStep, self).__call__(drawn))
        return loss


def step_for(
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    networks: Sequence[nn.Module],
    generators: Sequence[torch.Generator] = (),
) -> Step:
    """The best way to take steps.

    Networks with layers of unknown make take their steps plainly.

    Args:
        loss: From what was drawn to a scalar with gradients.
        optimizer: Moves the parameters.
        device: Where to compute.
        networks: All that the loss runs.
        generators: All that the loss draws from, beside the device's own.
    """
    if device.type != "cuda":
        return Step(loss, optimizer)
    strange = foreign(networks)
    if strange is not None:
        return Step(loss, optimizer, f"{strange.__name__} is no layer that is known to do the same every time")
    return ReplayedStep(loss, optimizer, CudaGraph(generators))


def _form(values: Drawn) -> list[tuple[torch.Size, torch.dtype]]:
    return [(value.shape, value.dtype) for value in values]
