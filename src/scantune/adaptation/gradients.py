"""Gradients of a method's objective on a volume: batch after batch, by several CPU threads, or replayed by a GPU."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from scantune.methods import Method, Terms
from scantune.prior.field_of_experts import Statistics
from scantune.runtime.cuda_graph import CudaGraph, ReplayedWork, unrepeatable_layer
from scantune.runtime.threads import Threads, thread_count
from scantune.scans.volume import Batch, Volume


class Gradients(ABC):
    """Objective of a method on a volume, with its gradient.

    Args:
        method: The method, prepared with a network whose moving parameters record gradients.
        volume: The scan.
    """

    updates: int = 1
    """Gradients of a step, after each of which the parameters move."""

    def __init__(self, method: Method, volume: Volume) -> None:
        self.method, self.volume = method, volume
        parameters = method.parameters(method.network).values()
        self.moving = [parameter for parameter in parameters if parameter.requires_grad]

    @abstractmethod
    def __call__(self) -> Terms:
        """Add the gradient at the current parameters to their `.grad`, and return the objective."""

    def clear(self) -> None:
        """Remove the gradient of an earlier call."""
        for parameter in self.moving:
            parameter.grad = None

    def are_finite(self) -> bool:
        """Return whether the gradient is finite."""
        each = [torch.isfinite(parameter.grad).all() for parameter in self.moving if parameter.grad is not None]
        return not each or bool(torch.stack(each).all())

    def restart(self) -> None:  # noqa: B027
        """Discard what was recorded for a GPU, after the method has changed its precision."""


class VolumeGradients(Gradients):
    """Exact gradient of the whole volume's objective, one batch after another.

    If what the gradient needs of all slices takes up to `kept` bytes, it is kept, and one pass is enough. Otherwise
    nothing is kept: a first pass sums the statistics, and a second pass hands the objective's gradient with respect to
    these sums back batch by batch, at the memory of one batch.

    Args:
        method: The method, prepared.
        volume: The scan.
        batch: Slices at a time.
        kept: Largest number of bytes that is kept for the gradient.
    """

    def __init__(self, method: Method, volume: Volume, batch: int, kept: int) -> None:
        super().__init__(method, volume)
        self.batch, self.kept = batch, kept

    def __call__(self) -> Terms:
        """Add the gradient of the whole volume's objective."""
        method, batches = self.method, self.volume.batches(self.batch)
        first = next(batches)
        with _SavedBytes(self.volume.images) as saved:
            start = method.measure(first)
        if saved.total * len(self.volume.images) <= self.kept * len(first.images):
            terms = method.terms(total_statistics(chain([start], map(method.measure, batches))))
            _backward(terms.objective)
            return terms.detached()
        with torch.no_grad():
            start = {key: value.detach() for key, value in start.items()}
            summed = total_statistics(chain([start], map(method.measure, batches)))
            total = {key: value.requires_grad_() for key, value in summed.items()}
        terms = method.terms(total)
        _backward(terms.objective)
        for batch in self.volume.batches(self.batch):
            parts = method.measure(batch)
            pairs = [(part, total[key].grad) for key, part in parts.items() if part.requires_grad]
            used = [(part, grad.to(part)) for part, grad in pairs if grad is not None]
            if used:
                torch.autograd.backward([part for part, _ in used], [grad for _, grad in used])
        return terms.detached()


class ThreadedGradients(VolumeGradients):
    """Exact gradient of the whole volume's objective by several CPU threads, each with batches of its own.

    Threads that share the work of every single operation wait for each other a thousand times per step. Threads that
    share the batches wait once.

    Args:
        method: The method, prepared. It must allow several threads to measure at the same time.
        volume: The scan.
        batch: Slices at a time.
        kept: Largest number of bytes that is kept for the gradient.
        number: Number of threads.
    """

    def __init__(self, method: Method, volume: Volume, batch: int, kept: int, number: int) -> None:
        super().__init__(method, volume, batch, kept)
        self.threads = Threads(number)
        self._bytes_of_slice: float | None = None

    def __call__(self) -> Terms:
        """Add the gradient of the whole volume's objective."""
        method, each = self.method, self.threads.each
        batches = list(self.volume.batches(self.batch))
        if self._bytes_of_slice is None:
            with _SavedBytes(self.volume.images) as saved:
                method.measure(batches[0])
            self._bytes_of_slice = saved.total / len(batches[0].images)
        once = self._bytes_of_slice * len(self.volume.images) <= self.kept
        with torch.set_grad_enabled(once):
            measured = each(method.measure, batches)
        total = {key: value.detach().requires_grad_() for key, value in total_statistics(measured).items()}
        terms = method.terms(total)
        _backward(terms.objective)
        slope = {key: value.grad for key, value in total.items() if value.grad is not None}
        if once:
            self._add(each(lambda parts: self._gradient(parts, slope), measured))
        else:
            self._add(each(lambda batch: self._gradient(method.measure(batch), slope), batches))
        return terms.detached()

    def _gradient(self, parts: Statistics, slope: Statistics) -> list[Tensor | None]:
        """Return the gradient of what one batch contributes, in one of the threads.

        Args:
            parts: Statistics of the batch.
            slope: Gradient of the objective with respect to their sum over all batches, if it has one.
        """
        used = [(part, slope[key].to(part)) for key, part in parts.items() if key in slope and part.requires_grad]
        if not used:
            return [None] * len(self.moving)
        outputs, theirs = [part for part, _ in used], [one for _, one in used]
        return list(torch.autograd.grad(outputs, self.moving, theirs, allow_unused=True))

    def _add(self, gradients: Iterable[Sequence[Tensor | None]]) -> None:
        """Add the gradients of the batches to `.grad` in their order, so that sums do not depend on thread timing."""
        for each in gradients:
            for parameter, found in zip(self.moving, each, strict=True):
                if found is not None:
                    parameter.grad = found if parameter.grad is None else parameter.grad + found


class SliceGradients(Gradients):
    """The paper's estimate: mean gradient of as many batches of random slices as cover the volume.

    Args:
        method: The method, prepared.
        volume: The scan.
        batch: Slices at a time.
        generator: Draws slices.
        replayed: Whether a GPU records the work of a batch once and then replays it.
    """

    def __init__(
        self, method: Method, volume: Volume, batch: int, generator: torch.Generator, replayed: bool = False
    ) -> None:
        super().__init__(method, volume)
        self.batch, self.generator = batch, generator
        self.count = math.ceil(len(volume.images) / batch)
        self.replay = Replay(self.moving) if replayed else None

    def __call__(self) -> Terms:
        """Add the mean gradient of one epoch's batches."""
        epoch = []
        for _ in range(self.count):
            drawn = self.volume.draw(self.batch, self.generator)
            inputs = drawn.images, drawn.padding, drawn.slices
            epoch.append(self._of_batch(*inputs) if self.replay is None else self.replay(self._of_batch, *inputs))
        return mean_terms(epoch)

    def _of_batch(self, images: Tensor, padding: Tensor | None, slices: Tensor) -> Terms:
        terms = self.method.terms(self.method.measure(Batch(images, padding, slices)))
        _backward(terms.objective / self.count)
        return terms.detached()

    def restart(self) -> None:
        """Record again."""
        self.replay = None if self.replay is None else Replay(self.moving)


class BatchGradients(SliceGradients):
    """Gradient of one batch of random slices after the other, with as many moves in a step as batches cover the volume.

    He et al. 2021 move parameters this way.
    """

    def __init__(
        self, method: Method, volume: Volume, batch: int, generator: torch.Generator, replayed: bool = False
    ) -> None:
        super().__init__(method, volume, batch, generator, replayed)
        self.updates, self.count = self.count, 1


class ReplayedGradients(Gradients):
    """Gradients whose work a GPU records once and then replays.

    Args:
        plain: The gradients.
    """

    def __init__(self, plain: Gradients) -> None:
        super().__init__(plain.method, plain.volume)
        self.plain, self.replay = plain, Replay(self.moving)

    def __call__(self) -> Terms:
        """Add the gradient, by the recording from the second call on."""
        return self.replay(self.plain)

    def restart(self) -> None:
        """Record again."""
        self.replay = Replay(self.moving)


def volume_gradients(method: Method, volume: Volume, batch: int, kept: int) -> Gradients:
    """Return the fastest way to the exact gradient that method, network and device allow."""
    if replayable(method, volume):
        return ReplayedGradients(VolumeGradients(method, volume, batch, kept))
    threads = thread_count(method.network, volume.images) if method.fast_path.thread_safe else 1
    if threads > 1:
        return ThreadedGradients(method, volume, batch, kept, threads)
    return VolumeGradients(method, volume, batch, kept)


def replayable(method: Method, volume: Volume) -> bool:
    """Return whether a GPU can record the work of a step."""
    return volume.images.is_cuda and method.fast_path.capturable and unrepeatable_layer([method.network]) is None


class Replay:
    """Evaluates an objective again and again on one GPU: the first time as it is, then from a recording.

    Args:
        moving: The parameters whose `.grad` the work adds to. The work returns tensors without a graph, since a graph
            would tie the parameters to the stream of the recording.
    """

    def __init__(self, moving: Sequence[nn.Parameter]) -> None:
        self.moving = moving
        self.gradients = [torch.zeros_like(parameter) for parameter in moving]
        stream = torch.cuda.Stream(moving[0].device)  # type: ignore[no-untyped-call]
        self.work = ReplayedWork[Terms](CudaGraph(stream=stream), prepare=self._gather)

    def __call__(self, work: Callable[..., Terms], *inputs: Tensor | None) -> Terms:
        """Do the work on inputs, and return a copy of the result."""
        terms = self.work(work, *inputs)
        parts = {name: value.clone() for name, value in terms.parts.items()}
        valid = terms.valid.clone() if isinstance(terms.valid, Tensor) else terms.valid
        return Terms(terms.objective.clone(), parts, valid)

    def _gather(self) -> None:
        """Move the gradients to the tensors that the recording adds to."""
        for parameter, gradient in zip(self.moving, self.gradients, strict=True):
            if parameter.grad is not gradient:
                gradient.zero_()
                if parameter.grad is not None:
                    gradient.add_(parameter.grad)
                parameter.grad = gradient


class _SavedBytes(saved_tensors_hooks):
    """Counts the bytes that are kept for a gradient while it is entered.

    Args:
        images: Tensor that is in memory anyway, and does not count.
    """

    def __init__(self, images: Tensor) -> None:
        self._seen: dict[int, int] = {}
        self._there = images.untyped_storage().data_ptr()
        super().__init__(self._pack, lambda kept: kept)

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    @property
    def total(self) -> int:
        """Return the bytes so far, with what is kept twice counted once."""
        return sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() != self._there:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()


def total_statistics(measured: Iterable[Statistics]) -> Statistics:
    """Return the sum of statistics, in double precision."""
    total: Statistics = {}
    for statistics in measured:
        for key, value in statistics.items():
            total[key] = total[key] + value.double() if key in total else value.double()
    return total


def mean_terms(epoch: Sequence[Terms]) -> Terms:
    """Return the mean of the terms of an epoch's batches."""
    objective = torch.stack([terms.objective for terms in epoch]).mean()
    parts = {name: torch.stack([terms.parts[name].float() for terms in epoch]).mean() for name in epoch[0].parts}
    valid = torch.stack([torch.as_tensor(terms.valid, device=objective.device) for terms in epoch])
    # An epoch counts unless most of its batches lacked the patches to judge it.
    return Terms(objective, parts, 2 * valid.sum() >= len(epoch))


def _backward(objective: Tensor) -> None:
    """Do the backward pass, unless the objective depends on nothing that moves."""
    if objective.requires_grad:
        objective.backward()  # type: ignore[no-untyped-call]
