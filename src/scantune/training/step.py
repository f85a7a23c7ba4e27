"""One step of training: the loss of a batch, its gradients, a step of the optimiser.

On a GPU a step of a small network is a thousand short pieces of work, and asking for them one by one takes the host
longer than the device needs to do them. So a step is recorded once, as a CUDA graph, and then replayed by one request.
The same work is done, on the same numbers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from scantune.runtime.cuda_graph import CudaGraph, ReplayedWork, WorkRecorder, unrepeatable_layer

TrainingBatch = tuple[Tensor, ...]
"""Tensors that an iteration learns from, of the same shapes and types every time."""

LossFunction = Callable[[TrainingBatch], Tensor]

WARM_UP = 3
"""Steps before the recording, in which the optimiser makes its moments and libraries choose their algorithms."""


class Step:
    """Takes optimisation steps as they are.

    Args:
        loss: From a batch to a scalar with gradients.
        optimizer: Moves the parameters.
        remark: Why steps are not replayed, if they could be.
    """

    def __init__(self, loss: LossFunction, optimizer: torch.optim.Optimizer, remark: str = "") -> None:
        self.loss, self.optimizer, self.remark = loss, optimizer, remark

    def __call__(self, drawn: TrainingBatch) -> Tensor:
        """Take a step; return the loss without waiting for the device. The next call may overwrite it."""
        loss = self.loss(drawn)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class ReplayedStep(Step):
    """Takes the first steps as they are, records one, and replays it from then on.

    If the rehearsal shows that a step cannot be recorded, steps stay as they are, and `remark` holds the reason.

    Args:
        loss: From a training batch to a scalar with gradients.
        optimizer: Moves the parameters; it keeps its count of steps on the device.
        recorder: Records and replays.
    """

    def __init__(self, loss: LossFunction, optimizer: torch.optim.Optimizer, recorder: WorkRecorder) -> None:
        super().__init__(loss, optimizer)
        self.work = ReplayedWork[Tensor](recorder, WARM_UP)

    def __call__(self, drawn: TrainingBatch) -> Tensor:
        """Take a step; return the loss, which the next call may overwrite."""
        loss = self.work(self._step, *drawn)
        self.remark = self.work.remark
        return loss

    def _step(self, *drawn: Tensor) -> Tensor:
        return super().__call__(drawn)


def step_for(
    loss: LossFunction,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    networks: Sequence[nn.Module],
    generators: Sequence[torch.Generator] = (),
) -> Step:
    """Return the fastest step for a device.

    Networks with layers that are not known to repeat their work are not replayed.

    Args:
        loss: From a batch to a scalar with gradients.
        optimizer: Moves the parameters.
        device: Where to compute.
        networks: All networks that the loss runs.
        generators: All generators that the loss draws from, beside the device's own.
    """
    if device.type != "cuda":
        return Step(loss, optimizer)
    strange = unrepeatable_layer(networks)
    if strange is not None:
        return Step(loss, optimizer, f"{strange.__name__} is no layer that is known to do the same every time")
    return ReplayedStep(loss, optimizer, CudaGraph(generators))
