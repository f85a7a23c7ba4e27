"""The replay of an objective and its gradient on a GPU, which then need not wait for the host."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from scantune.methods import Terms
from scantune.runtime.cuda_graph import CudaGraph, ReplayedWork

Work = Callable[..., Terms]
"""Evaluates an objective of tensors, and adds its gradient to the parameters' `.grad`.

Its result has no autograd graph: a graph that is kept would tie the parameters to the stream that it was made on.
"""


class Replay:
    """Evaluates an objective again and again on one GPU: the first time as it is, then from a recording.

    Args:
        moving: The parameters.
    """

    def __init__(self, moving: Sequence[nn.Parameter]) -> None:
        self.moving = moving
        self.gradients = [torch.zeros_like(parameter) for parameter in moving]
        stream = torch.cuda.Stream(moving[0].device)  # type: ignore[no-untyped-call]
        self.work = ReplayedWork[Terms](CudaGraph(stream=stream), prepare=self._gather)

    @property
    def remark(self) -> str:
        """Why the work cannot be recorded; empty if it can."""
        return self.work.remark

    def __call__(self, work: Work, *inputs: Tensor | None) -> Terms:
        """Do the work on inputs, and return a copy of the result."""
        terms = self.work(work, *inputs)
        parts = {name: value.clone() for name, value in terms.parts.items()}
        return Terms(terms.objective.clone(), parts, _copied(terms.valid))

    def _gather(self) -> None:
        """Move the gradients to the tensors that the recording adds to."""
        for parameter, gradient in zip(self.moving, self.gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_()
                if parameter.grad is not None:
                    gradient.add_(parameter.grad)
                parameter.grad = gradient


def _copied(valid: bool | Tensor) -> bool | Tensor:
    return valid.clone() if isinstance(valid, Tensor) else valid
