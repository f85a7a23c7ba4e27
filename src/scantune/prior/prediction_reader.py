"""Readers of a network's prediction for a scan: they predict it and its perturbations, and read the label maps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scantune.networks import in_evaluation
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings, Readings, overlaps
from scantune.prior.perturbations import PERTURBATIONS, SHOWING, UNCHANGED
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Volume, batch_size
from scantune.tasks import Task, are_masks

READ_SLICES = 24
"""Most slices of a scan that readings are taken from, at equal distances."""

UNIT_ML = 1e-3
"""Volume of a voxel whose volume is unknown."""


@dataclass(frozen=True)
class PredictionReader:
    """Reads the predictions of networks for one scan.

    Args:
        images: The slices that are read `(slices, channels, *spatial)`.
        slices: Their numbers in the scan.
        task: Turns outputs into labels.
        structures: Number of structures besides the background.
        voxel_ml: Volume in mL that a pixel of a slice stands for.
        channels: Number of image channels, which are perturbed; None for all.
        length: Length in mm that all slices of the scan cover; None if it is unknown.
    """

    images: Tensor
    slices: Sequence[int]
    task: Task
    structures: int
    voxel_ml: float
    channels: int | None = None
    length: float | None = None

    @classmethod
    def of(
        cls, volume: Volume, task: Task, structures: int, voxel_ml: float = UNIT_ML, channels: int | None = None
    ) -> "PredictionReader":
        """Return a reader of at most `READ_SLICES` slices of a scan.

        Args:
            volume: The scan.
            task: Turns outputs into labels.
            structures: Number of structures besides the background.
            voxel_ml: Volume of a voxel of the scan in mL.
            channels: Number of image channels; None for all.
        """
        part = volume.spread(READ_SLICES)
        share = volume.share * len(volume.images) / len(part.images)
        numbers = part.slices.tolist()
        return cls(part.images, numbers, task, structures, voxel_ml * share, channels, volume.length)

    def read(self, network: nn.Module, names: Sequence[str] = SHOWING, own: Tensor | None = None) -> Readings:
        """Return the readings of a network's prediction.

        Args:
            network: The network.
            names: The perturbations.
            own: Labels of the slices as they are `(slices, *spatial)`, if they are known, or masks.
        """
        labels = self.labels(network) if own is None else own
        perturbed = {name: self.labels(network, name) for name in names}
        return Readings.of(labels.cpu(), perturbed, self.structures, self.voxel_ml, self.length)

    @torch.no_grad()
    def labels(self, network: nn.Module, name: str = "") -> Tensor:
        """Return the labels `(slices, *spatial)` of the slices, or of the perturbed slices, put back in place."""
        change = PERTURBATIONS[name] if name else UNCHANGED
        images = change.change(self.images, self.channels)
        parts = torch.split(images, batch_size(images))
        threads = threads_for(network, images)
        outputs = [network(part) for part in parts] if threads is None else threads.each(network, parts)
        return torch.cat([change.back(self.task.predict(output)).cpu() for output in outputs])


@dataclass(frozen=True)
class GradedReader(PredictionReader):
    """Reads predictions for a scan whose truth is known, always by all perturbations.

    Args:
        reference: Labels of the slices that are read `(slices, *spatial)`.
    """

    reference: Tensor | None = None

    def read(self, network: nn.Module, names: Sequence[str] = SHOWING, own: Tensor | None = None) -> GradedReadings:  # noqa: ARG002
        """Return the readings of a network's prediction, and its Dice."""
        labels = self.labels(network).cpu() if own is None else own.cpu()
        found = super().read(network, SHOWING, labels)
        assert self.reference is not None
        dice = overlaps(labels, self.reference.cpu(), self.structures)
        return GradedReadings(
            found.sizes, found.steadiness, found.contacts, dice, length=found.length, passing=found.passing
        )


@dataclass(frozen=True)
class HomeScan:
    """A scan of a source subject that the network was not trained on.

    Args:
        volume: The scan, with its reference if that is known.
        voxel_ml: Volume of a voxel in mL; None if it is unknown.
    """

    volume: Volume
    voxel_ml: float | None = None


@torch.no_grad()
def count_structures(network: nn.Module, volume: Volume, task: Task) -> int:
    """Count the structures that a network predicts, besides the background."""
    return task.scores(network(volume.images[:1])).shape[1] - int(task.exclusive)


@torch.no_grad()
def read_home(network: nn.Module, scans: Iterable[HomeScan], task: Task, structures: int) -> HomeReadings:
    """Return the readings of held-out source scans, with the Dice of their predictions if all have references."""
    readings, scores = [], []
    scans = list(scans)
    with in_evaluation(network):
        for scan in scans:
            reader = PredictionReader.of(scan.volume, task, structures, scan.voxel_ml or UNIT_ML)
            labels = reader.labels(network)
            readings.append(reader.read(network, own=labels))
            reference = scan.volume.reference
            # A label map does not show structures that overlap.
            if reference is not None and are_masks(reference) == task.overlapping:
                scores.append(overlaps(labels, reference.cpu()[list(reader.slices)], structures))
    home = HomeReadings.fit(readings, scores if len(scores) == len(readings) else None)
    return replace(home, in_voxels=any(scan.voxel_ml is None for scan in scans))
