"""Prediction of a whole volume, with its energies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import torch
from torch import Tensor, nn

from scantune.experts import Recorder
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.prior.layer import with_enough_patches
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Batch, Volume, batch_size
from scantune.tasks import Task, structure_counts

COUNTED_AT_ONCE = 16
"""Slices, or planes of a volume, whose labels are counted at once, to bound the memory."""


@dataclass(frozen=True)
class Prediction:
    """Prediction of a network for a scan, before labels are put on the scan's own grid.

    Args:
        probabilities: `(slices, classes, *spatial)`; scores before their activation if `activation` is given.
        task: Turns them into labels.
        energies: Divergences in nats, by expert family and group.
        maps: Other maps that the task keeps of the output, `(slices, channels, *spatial)` by name.
        activation: Turns scores into probabilities, where a framework's own export takes those.
    """

    probabilities: Tensor
    task: Task
    energies: dict[str, dict[str, float]]
    maps: dict[str, Tensor] = field(default_factory=dict)
    activation: Callable[[Tensor], Tensor] | None = None

    def cropped(self, size: Sequence[int]) -> "Prediction":
        """Return the prediction of the first pixels along each axis."""
        maps = {name: _cropped(each, size) for name, each in self.maps.items()}
        return replace(self, probabilities=_cropped(self.probabilities, size), maps=maps)

    @property
    def labels(self) -> Tensor:
        """Return the labels `(slices, *spatial)`, or masks `(slices, structures, *spatial)` of those that overlap."""
        return self._labels(self.probabilities)

    def counts(self) -> list[int]:
        """Count the voxels of each structure, a part of the scan after the other, so that no label map is held."""
        axis = 0 if self.probabilities.ndim == 4 else 2
        parts = torch.split(self.probabilities, COUNTED_AT_ONCE, axis)
        each = [structure_counts(self._labels(part), self.structures) for part in parts]
        return torch.stack(each).sum(0).tolist()

    def _labels(self, part: Tensor) -> Tensor:
        return self.task.labels(part if self.activation is None else self.activation(part))

    @property
    def structures(self) -> int:
        """Return the number of structures besides the background."""
        return self.probabilities.shape[1] - int(self.task.exclusive)

    @property
    def energy(self) -> float | None:
        """Return the FoE-CNN energy, or None without a prior."""
        return fmean(self.energies["cnn"].values()) if "cnn" in self.energies else None


def _cropped(values: Tensor, size: Sequence[int]) -> Tensor:
    """Return the first pixels along each axis of `(slices, channels, *spatial)`."""
    for axis, length in enumerate(size, start=2):
        values = values.narrow(axis, 0, length)
    return values


@torch.no_grad()
def predict(network: nn.Module, volume: Volume, task: Task, prior: FieldOfExperts | None) -> Prediction:
    """Predict a whole volume and measure its energies, in one pass."""
    probabilities: list[Tensor] = []
    maps: dict[str, list[Tensor]] = {}
    total: dict[str, Tensor] = {}

    def measure(part: Batch) -> tuple[Tensor, dict[str, Tensor], Statistics]:
        recording = record(part.images)
        found = {name: value.float().cpu() for name, value in task.maps(recording.output).items()}
        statistics = {} if prior is None else prior.measure(recording, part.padding)
        return task.probabilities(recording.output).float().cpu(), found, statistics

    threads = threads_for(network, volume.images)
    with Recorder(network, [] if prior is None else prior.layers()) as record:
        batches = volume.batches(batch_size(volume.images))
        measured = map(measure, batches) if threads is None else threads.each(measure, batches)
        for predicted, found, statistics in measured:
            probabilities.append(predicted)
            for name, value in found.items():
                maps.setdefault(name, []).append(value)
            for key, value in statistics.items():
                total[key] = total.get(key, 0) + value.double()
    energies = {} if prior is None else prior.energies(with_enough_patches(total))
    return Prediction(
        torch.cat(probabilities),
        task,
        {name: {group: float(value) for group, value in groups.items()} for name, groups in energies.items()},
        {name: torch.cat(parts) for name, parts in maps.items()},
    )
