"""An evaluation recorded once as a CUDA graph, and replayed: a GPU is not kept waiting for its next kernel."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from scantune.methods import Terms
from scantune.runtime.cuda_graph import CudaGraph

Work = Callable[..., Terms]
"""Evaluates an objective of tensors, and adds its gradient to the parameters' `.grad`.

What it gives has no graph: one that is kept would tie the parameters to the stream that it was made on.
"""


class Replay:
    """Does the same work again and again on one GPU; the first time as it is, then from a recording.

    What the work decides on the host, and tensors that it takes from elsewhere than its arguments, are as they were
    when it was recorded. Work that waits for the device on its way cannot be recorded, and is done as it is.

    Args:
        moving: The parameters.
    """

    def __init__(self, moving: Sequence[nn.Parameter]) -> None:
        self.moving = moving
        self.stream = torch.cuda.Stream(moving[0].device)  # type: ignore[no-untyped-call]
        self.gradients = [torch.zeros_like(parameter) for parameter in moving]
        self.graph = CudaGraph(stream=self.stream)
        self.inputs: tuple[Tensor | None, ...] = ()
        self.terms: Terms | None = None
        self.calls, self.remark = 0, ""

    def __call__(self, work: Work, *inputs: Tensor | None) -> Terms:
        """Does the work on inputs, whose shapes must stay the same."""
        self.calls += 1
        if self.calls == 1:
            terms, self.remark = self.graph.rehearse(lambda: self._plainly(work, inputs))
            return terms
        if self.remark:
            return self._plainly(work, inputs)
        if self.terms is None:
            self.terms = self._record(work, inputs)
        for own, new in zip(self.inputs, inputs, strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        self._gather()
        self.graph.replay()
        parts = {name: value.clone() for name, value in self.terms.parts.items()}
        return Terms(self.terms.objective.clone(), parts, _copied(self.terms.valid))

    def _plainly(self, work: Work, inputs: Sequence[Tensor | None]) -> Terms:
        """On the stream that is recorded later, so that nothing of this time waits on another one then."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            terms = work(*inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return terms

    def _record(self, work: Work, inputs: Sequence[Tensor | None]) -> Terms:
        self.inputs = tuple(None if tensor is None else tensor.clone() for tensor in inputs)
        self._gather()
        return self.graph.record(lambda: work(*self.inputs))

    def _gather(self) -> None:
        """Lets gradients add up where the recording has them."""
        for parameter, gradient in zip(self.moving, self.gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_()
                if parameter.grad is not None:
                    gradient.add_(parameter.grad)
                parameter.grad = gradient


def _copied(valid: bool | Tensor) -> bool | Tensor:
    return valid.clone() if isinstance(valid, Tensor) else valid
