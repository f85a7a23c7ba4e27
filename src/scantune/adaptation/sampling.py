"""Samplings of a volume: the objective of all its slices, or the paper's estimate by random ones."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch

from scantune.adaptation.gradients import (
    BatchGradients,
    Gradients,
    SliceGradients,
    mean_terms,
    replayable,
    total_statistics,
    volume_gradients,
)
from scantune.methods import Method, Terms, Update, measure_batches
from scantune.scans.volume import CPU_BATCH, Volume

GPU_BATCH_PIXELS = 64 * 256 * 256
"""Pixels at a time on other devices, so that a GPU is busy."""

KEPT_BYTES = {"cpu": 2_000_000_000, "cuda": 6_000_000_000}
"""Bytes that may be kept for the gradient by device: some 38 slices of 256 x 256 of the default network on a CPU, so
that a whole adaptation stays below 4 GiB, and more than 48 on a GPU."""


class Sampling(ABC):
    """How a step sees the volume."""

    smoothing: float
    """Momentum of the moving average by which steps are compared. It is 0 if the objective is exact."""

    @abstractmethod
    def gradients(self, method: Method, volume: Volume, generator: torch.Generator) -> Gradients:
        """Return what evaluates the objective with its gradient.

        Args:
            method: The method, prepared with a network whose moving parameters record gradients.
            volume: The scan.
            generator: Draws slices.
        """

    @abstractmethod
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """Return the objective, without a gradient."""

    @abstractmethod
    def of_batch(self, batch: int) -> Self:
        """Return the same sampling with another number of slices at a time."""

    def seen(self, method: Method, volume: Volume) -> Volume:  # noqa: ARG002
        """Return the part of the volume that steps use."""
        return volume


@dataclass(frozen=True)
class WholeVolume(Sampling):
    """Exact: statistics of all slices, as the training densities pool all slices of a subject.

    Args:
        batch: Slices at a time. None chooses by the device.
        kept: Largest number of bytes that is kept for a gradient. None chooses by the device.
    """

    batch: int | None = None
    kept: int | None = None
    smoothing: float = 0.0

    def gradients(self, method: Method, volume: Volume, generator: torch.Generator) -> Gradients:  # noqa: ARG002
        """Return the exact gradients of the whole volume's objective."""
        kept = KEPT_BYTES.get(volume.images.device.type, 0) if self.kept is None else self.kept
        return volume_gradients(method, volume, self._size(volume), kept)

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:  # noqa: ARG002
        """Return the whole volume's objective."""
        return method.terms(total_statistics(measure_batches(method, volume, self._size(volume))))

    def of_batch(self, batch: int) -> Self:
        """Return the same sampling with another number of slices at a time."""
        return replace(self, batch=batch)

    def seen(self, method: Method, volume: Volume) -> Volume:
        """Return all slices, or as many of a long scan as the method needs."""
        return method.fast_path.representative(volume)

    def _size(self, volume: Volume) -> int:
        if self.batch is not None:
            return self.batch
        if volume.images.device.type == "cpu":
            return CPU_BATCH
        return max(GPU_BATCH_PIXELS // volume.images[0, 0].numel(), 1)


@dataclass(frozen=True)
class RandomSlices(Sampling):
    """The paper's estimate: mean over as many batches of random slices as cover the volume.

    Args:
        batch: Slices of a batch.
        smoothing: Momentum of the moving average by which steps are compared.
        update: Whether parameters move once an epoch, as in the paper, or after each batch.
    """

    batch: int = 8
    smoothing: float = 0.95
    update: Update = "epoch"

    def gradients(self, method: Method, volume: Volume, generator: torch.Generator) -> Gradients:
        """Return the mean gradients of an epoch's batches, or those of one batch after the other."""
        kind = BatchGradients if self.update == "batch" else SliceGradients
        return kind(method, volume, self.batch, generator, replayable(method, volume))

    @torch.no_grad()
    def objective(self, method: Method, volume: Volume, generator: torch.Generator) -> Terms:
        """Return the mean objective of an epoch's batches."""
        count = math.ceil(len(volume.images) / self.batch)
        draws = (volume.draw(self.batch, generator) for _ in range(count))
        return mean_terms([method.terms(method.measure(batch)) for batch in draws])

    def of_batch(self, batch: int) -> Self:
        """Return the same sampling with another number of slices at a time."""
        return replace(self, batch=batch)
