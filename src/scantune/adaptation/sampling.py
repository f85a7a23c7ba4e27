"""How a step sees the volume: exactly, or by the paper's random slices."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from scantune.adaptation.gradient_threads import Crew
from scantune.adaptation.replay import Replay
from scantune.methods import Method, Terms, measure_batches
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume

SLICES, PIXELS = 2, 64 * 256 * 256
"""What is looked at together: few slices on a CPU, so that features stay in its cache; many pixels elsewhere, so that a
GPU is busy."""

KEPT = {"cpu": 2_000_000_000, "cuda": 6_000_000_000}
"""Bytes that may be kept for the gradient by device: some 38 slices of 256 x 256 of the default network on a CPU, so
that a whole adaptation stays below 4 GiB, and more than 48 on a GPU."""


class Sampling(ABC):
    """How a step sees the volume."""

    smoothing: float
    """Momentum of the moving average by which steps are compared; 0 where the objective is exact."""

    @abstractmethod
    def gradient(
        self,
        method: Method,
        volume: Volume,
        generator: torch.Generator,
        replay: Replay | None = None,
        crew: Crew | None = None,
    ) -> Terms:
        """Adds the objective's gradient to the moving parameters' `.grad`, and tells the objective.

        Args:
            method: What is evaluated.
            volume: The scan.
            generator: Draws slices.
            replay: Does work that is the same in every step, where there is one.
            crew: Measures batches side by side, where there is one.
        """

    @abstractmethod
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The objective alone."""

    @abstractmethod
    def of_batch(self, batch: int) -> Self:
        """The same with so many slices at a time."""

    def seen(self, method: Method, volume: Volume) -> Volume:  # noqa: ARG002
        """What steps are taken by, of the volume."""
        return volume


@dataclass(frozen=True)
class WholeVolume(Sampling):
    """Exact: statistics of all slices, as the training densities pool all slices of a subject.

    Slices go through the network a few at a time: as many as stay in a CPU's cache, or keep a GPU busy. Of a volume for
    which this takes up to `kept` bytes, everything that the gradient needs is kept, and one pass is enough. Of larger
    ones nothing is: a first pass sums the statistics, and the objective's gradient with respect to these sums is handed
    back batch by batch in a second pass, at the memory of one batch.

    Args:
        batch: Slices at a time; None chooses by the device.
        kept: The most bytes that are kept; None chooses by the device.
    """

    batch: int | None = None
    kept: int | None = None
    smoothing: float = 0.0

    def gradient(
        self,
        method: Method,
        volume: Volume,
        generator: torch.Generator,  # noqa: ARG002
        replay: Replay | None = None,
        crew: Crew | None = None,
    ) -> Terms:
        """The gradient of the whole volume's objective."""
        if crew is not None:
            return self._abreast(method, volume, crew)
        return self._gradient(method, volume) if replay is None else replay(lambda: self._gradient(method, volume))

    def _abreast(self, method: Method, volume: Volume, crew: Crew) -> Terms:
        """The same by several threads: each measures batches, and takes their gradients once all are measured."""
        batches = list(volume.batches(self._size(volume)))
        if crew.kept is None:
            with _Weighing(volume.images) as weighing:
                method.measure(batches[0])
            crew.kept = weighing.bytes / len(batches[0].images)
        once = crew.kept * len(volume.images) <= self._kept(volume)
        with torch.set_grad_enabled(once):
            measured = crew.each(method.measure, batches)
        total = {key: value.detach().requires_grad_() for key, value in _total(measured).items()}
        terms = method.terms(total)
        _hand_back(terms.objective)
        slope = {key: value.grad for key, value in total.items() if value.grad is not None}
        if once:
            crew.add(crew.each(lambda parts: crew.slopes(parts, slope), measured))
        else:
            crew.add(crew.each(lambda batch: crew.slopes(method.measure(batch), slope), batches))
        return terms.detached()

    def _gradient(self, method: Method, volume: Volume) -> Terms:
        batches = volume.batches(self._size(volume))
        first = next(batches)
        with _Weighing(volume.images) as weighing:
            start = method.measure(first)
        if weighing.bytes * len(volume.images) <= self._kept(volume) * len(first.images):
            terms = method.terms(_sum(method, batches, start))
            _hand_back(terms.objective)
            return terms.detached()
        with torch.no_grad():
            start = {key: value.detach() for key, value in start.items()}
            total = {key: value.requires_grad_() for key, value in _sum(method, batches, start).items()}
        terms = method.terms(total)
        _hand_back(terms.objective)
        for batch in volume.batches(self._size(volume)):
            parts = method.measure(batch)
            pairs = [(part, total[key].grad) for key, part in parts.items() if part.requires_grad]
            used = [(part, grad.to(part)) for part, grad in pairs if grad is not None]
            if used:
                torch.autograd.backward([part for part, _ in used], [grad for _, grad in used])
        return terms.detached()

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """The whole volume's objective."""
        return method.terms(_total(measure_batches(method, volume, self._size(volume))))

    def of_batch(self, batch: int) -> Self:
        """The same with so many slices at a time."""
        return replace(self, batch=batch)

    def seen(self, method: Method, volume: Volume) -> Volume:
        """All slices, or as many of a long scan as the method makes do with."""
        return method.seen(volume)

    def _size(self, volume: Volume) -> int:
        if self.batch is not None:
            return self.batch
        return SLICES if volume.images.device.type == "cpu" else max(PIXELS // volume.images[0, 0].numel(), 1)

    def _kept(self, volume: Volume) -> int:
        return KEPT.get(volume.images.device.type, 0) if self.kept is None else self.kept


def _sum(method: Method, batches: Iterable[Batch], start: Statistics) -> Statistics:
    """The statistics of batches on top of others, in double precision."""
    return _total(chain([start], map(method.measure, batches)))


def _total(measured: Iterable[Statistics]) -> Statistics:
    """The sum of statistics, in double precision."""
    total: Statistics = {}
    for statistics in measured:
        for key, value in statistics.items():
            total[key] = total[key] + value.double() if key in total else value.double()
    return total


class _Weighing(saved_tensors_hooks):
    """Adds up the bytes that are kept for a gradient while it is entered.

    Args:
        images: Are there in any case.
    """

    def __init__(self, images: Tensor) -> None:
        self._seen: dict[int, int] = {}
        self._there = images.untyped_storage().data_ptr()
        super().__init__(self._pack, lambda kept: kept)

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        """So far; what is kept twice counts once."""
        return sum(self._seen.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() != self._there:
            self._seen[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()


@dataclass(frozen=True)
class RandomSlices(Sampling):
    """The paper's estimate: as many batches of random slices as cover the volume, their gradients averaged."""

    batch: int = 8
    smoothing: float = 0.95

    def gradient(
        self,
        method: Method,
        volume: Volume,
        generator: torch.Generator,
        replay: Replay | None = None,
        crew: Crew | None = None,  # noqa: ARG002
    ) -> Terms:
        """The mean gradient of one epoch's batches."""
        count = self._count(volume)

        def work(images: Tensor, padding: Tensor | None, slices: Tensor) -> Terms:
            terms = method.terms(method.measure(Batch(images, padding, slices)))
            _hand_back(terms.objective / count)
            return terms.detached()

        epoch = []
        for _ in range(count):
            drawn = volume.draw(self.batch, generator)
            inputs = drawn.images, drawn.padding, drawn.slices
            epoch.append(work(*inputs) if replay is None else replay(work, *inputs))
        return _mean(epoch)

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """The mean objective of one epoch's batches."""
        draws = (volume.draw(self.batch, generator) for _ in range(self._count(volume)))
        return _mean([method.terms(method.measure(batch)) for batch in draws])

    def of_batch(self, batch: int) -> Self:
        """The same with so many slices at a time."""
        return replace(self, batch=batch)

    def _count(self, volume: Volume) -> int:
        return math.ceil(len(volume.images) / self.batch)


def _hand_back(objective: Tensor) -> None:
    """The backward pass; none where the objective depends on nothing that moves."""
    if objective.requires_grad:
        objective.backward()  # type: ignore[no-untyped-call]


def _mean(epoch: Sequence[Terms]) -> Terms:
    objective = torch.stack([terms.objective for terms in epoch]).mean()
    parts = {name: torch.stack([terms.parts[name].float() for terms in epoch]).mean() for name in epoch[0].parts}
    valid = torch.stack([torch.as_tensor(terms.valid, device=objective.device) for terms in epoch])
    # An epoch counts unless most of its batches lacked the patches to judge it.
    return Terms(objective, parts, 2 * valid.sum() >= len(epoch))
