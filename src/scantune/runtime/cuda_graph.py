"""Work of a GPU that is recorded once, as a CUDA graph, and then replayed by one request.

A failed recording leaves the process unable to draw random numbers on the GPU. So nothing is recorded on trial: a
rehearsal of the work shows first whether it can be recorded.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

ResultT = TypeVar("ResultT")

REPEATABLE_PACKAGES = ("scantune", "torch", "torchvision", "monai")
"""Packages whose layers do the same work every time they are called."""


def unrepeatable_layer(networks: Iterable[nn.Module]) -> type | None:
    """Return the first layer type that is not known to repeat its work, if any.

    A replay repeats what the device did, not what Python did. A layer that counts its calls in Python, or draws from
    Python's generator, would do the same for ever.
    """
    parts = (type(part) for network in networks for part in network.modules())
    return next((kind for kind in parts if kind.__module__.split(".")[0] not in REPEATABLE_PACKAGES), None)


class WorkRecorder(Protocol):
    """Records work of a device, and replays it as a whole."""

    def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Do the work as it is."""

    def rehearse(self, work: Callable[[], ResultT]) -> tuple[ResultT, str]:
        """Do the work; return its result, and the reason why it cannot be recorded, or an empty text."""

    def record(self, work: Callable[[], ResultT]) -> ResultT:
        """Record the work without doing it; return the tensors that each replay fills with the result."""

    def replay(self) -> None:
        """Do the recorded work on the present values of the tensors that it reads."""


class CudaGraph:
    """The recorder of a GPU, which holds one CUDA graph.

    Args:
        generators: Generators that the work draws from, beside the device's own. Seed them before each replay.
        stream: The stream for the work and its recording. By default the work runs on the current stream and is
            recorded on a stream of its own.
    """

    def __init__(self, generators: Iterable[torch.Generator] = (), stream: torch.cuda.Stream | None = None) -> None:
        self.graph, self.stream = torch.cuda.CUDAGraph(), stream
        for generator in generators:
            self.graph.register_generator_state(generator)

    def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Do the work on the recorder's stream, so that its recording need not wait for another stream."""
        if self.stream is None:
            return work()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def rehearse(self, work: Callable[[], ResultT]) -> tuple[ResultT, str]:
        """Do the work, and check whether the host waits for the device on the way, which no recording allows.

        Returns:
            The result, and the reason why the work cannot be recorded, or an empty text.
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = self.run(work)
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = any("synchronizing CUDA operation" in str(warning.message) for warning in caught)
        return result, "the network waits for the GPU while it computes" if waits else ""

    def record(self, work: Callable[[], ResultT]) -> ResultT:
        """Record the work without doing it; return the tensors that each replay fills with the result."""
        # Other threads may go on using the GPU meanwhile.
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Do the recorded work on the present values of the tensors that it reads."""
        self.graph.replay()


class ReplayedWork(Generic[ResultT]):
    """Does the same work again and again: as it is at first, then from a recording.

    Decisions of the work on the host, and tensors that are not among its inputs, stay as they were when it was
    recorded. Work that cannot be recorded is done as it is, and `remark` holds the reason. Inputs of other shapes than
    the recorded ones are also worked on as they are.

    Args:
        recorder: Records and replays.
        plain_calls: Calls before the recording, 1 or more; the last of them is the rehearsal.
        prepare: Called before the recording and before each replay.
    """

    def __init__(
        self, recorder: WorkRecorder, plain_calls: int = 1, prepare: Callable[[], object] = lambda: None
    ) -> None:
        self.recorder, self.plain_calls, self.prepare = recorder, plain_calls, prepare
        self.calls, self.remark = 0, ""
        self._inputs: tuple[Tensor | None, ...] = ()
        self._result: list[ResultT] = []

    @property
    def recorded(self) -> bool:
        """Whether the work has been recorded."""
        return bool(self._result)

    def __call__(self, work: Callable[..., ResultT], *inputs: Tensor | None) -> ResultT:
        """Do the work on inputs; return its result, whose tensors the next call may overwrite."""
        self.calls += 1
        if self.calls == self.plain_calls:
            result, self.remark = self.recorder.rehearse(lambda: work(*inputs))
            return result
        if self.remark or self.calls < self.plain_calls:
            return self.recorder.run(lambda: work(*inputs))
        if not self._result:
            self._record(work, inputs)
        if _shapes(inputs) != _shapes(self._inputs):
            return self.recorder.run(lambda: work(*inputs))
        for own, new in zip(self._inputs, inputs, strict=True):
            if own is not None and new is not None:
                own.copy_(new)
        self.prepare()
        self.recorder.replay()
        return self._result[0]

    def _record(self, work: Callable[..., ResultT], inputs: tuple[Tensor | None, ...]) -> None:
        self._inputs = tuple(None if tensor is None else tensor.clone() for tensor in inputs)
        self.prepare()
        self._result = [self.recorder.record(lambda: work(*self._inputs))]


def _shapes(tensors: Iterable[Tensor | None]) -> list[tuple[torch.Size, torch.dtype] | None]:
    return [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors]
