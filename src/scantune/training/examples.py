"""Labelled scans as training data: checked, stacked on one device, and drawn in a repeatable order."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError

WEIGHTS, SHUFFLE, AUGMENT, NETWORK, CORRUPT, CHECK = range(6)
"""The kinds of random streams of a run, see `stream_seed`."""


@dataclass(frozen=True)
class Example:
    """One labelled scan, ready for a network."""

    volume: Tensor
    """`(slices, channels, height, width)` float."""
    reference: Tensor
    """`(slices, height, width)` integers, 0 is background."""
    name: str = "unnamed scan"

    def __post_init__(self) -> None:
        expected = (len(self.volume), *self.volume.shape[2:])
        if self.volume.ndim != 4 or len(self.volume) == 0 or tuple(self.reference.shape) != expected:
            raise InputError(
                f"{self.name}: a volume must be (slices, channels, height, width) and its reference (slices, "
                f"height, width), got {tuple(self.volume.shape)} and {tuple(self.reference.shape)}."
            )
        if not self.volume.isfinite().all():
            raise InputError(f"{self.name}: the volume has values that are NaN or infinite; repair it first.")
        if self.reference.is_floating_point() or self.reference.min() < 0:
            raise InputError(f"{self.name}: the reference must hold labels, whole numbers from 0 upwards.")

    def to(self, device: torch.device) -> "Example":
        """Return the scan on a device, with its reference in a small type."""
        return Example(self.volume.to(device, torch.float32), self.reference.to(device, torch.int16), self.name)


def check_split(volumes: Sequence[Example], validation: Sequence[Example]) -> None:
    """Refuse a training set without scans, or without foreground to select a network by."""
    if not volumes or not validation:
        raise InputError(
            f"Training needs at least one training scan and one validation scan, got {len(volumes)} and "
            f"{len(validation)}; put some scans aside for validation."
        )
    if not any(bool(example.reference.any()) for example in validation):
        raise InputError("No validation scan has foreground in its reference; choose scans that do.")


def check_examples(examples: Sequence[Example], classes: int) -> None:
    """Refuse scans that do not belong to one training set, or that the network has no class for."""
    channels = examples[0].volume.shape[1]
    for example in examples:
        if example.volume.shape[1] != channels:
            raise InputError(
                f"{example.name} has {example.volume.shape[1]} channels, but {examples[0].name} has "
                f"{channels}; all scans must have the same."
            )
        largest = int(example.reference.max())
        if largest >= classes:
            raise InputError(
                f"{example.name} has the label {largest}, but the network has {classes} classes (0 to "
                f"{classes - 1}); map the labels, or train a network with more classes."
            )


def stack_slices(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor]:
    """Stack the slices of all scans on a device.

    Returns:
        Images `(slices, channels, height, width)` float32 and labels `(slices, height, width)` int16.
    """
    size = examples[0].volume.shape[1:]
    for example in examples:
        if example.volume.shape[1:] != size:
            raise InputError(
                f"{example.name} has slices of {tuple(example.volume.shape[1:])}, but {examples[0].name} has "
                f"{tuple(size)}; preprocess all training scans to one size."
            )
    images = torch.cat([example.volume.to(device, torch.float32) for example in examples])
    return images, torch.cat([example.reference.to(device, torch.int16) for example in examples])


def fingerprint(examples: Sequence[Example]) -> str:
    """Return a checksum of volumes and references, in hexadecimal."""
    total = 0
    for example in examples:
        for part in (example.volume.float(), example.reference.to(torch.int16)):
            array = np.ascontiguousarray(part.detach().cpu().numpy())
            total = zlib.crc32(array.data, zlib.crc32(repr(array.shape).encode(), total))
    return f"{total:08x}"


def stream_seed(seed: int, kind: int, number: int) -> int:
    """Return a seed for the random stream of one kind and number (an epoch, an iteration) under a run's seed."""
    return int(np.random.SeedSequence((seed, kind, number)).generate_state(1, np.uint64)[0])


class SliceOrder:
    """The slices of each iteration: every epoch is shuffled again, and its incomplete last batch dropped.

    The order is a function of the seed and the iteration. With fewer slices than a batch takes, every batch
    is drawn with replacement instead.

    Args:
        slices: Number of slices.
        batch: Slices per iteration.
        seed: The run's seed.
        kind: The number of the random stream, see `stream_seed`.
        device: Where the indices are needed.
    """

    def __init__(self, slices: int, batch: int, seed: int, kind: int, device: torch.device) -> None:
        self.slices, self.batch, self.seed, self.kind, self.device = slices, batch, seed, kind, device
        self.batches_per_epoch = max(1, slices // batch)
        self._epoch = -1
        self._order = torch.empty(0)

    def batch_of(self, iteration: int) -> Tensor:
        """Return the indices of the slices of an iteration, `(batch,)`."""
        epoch, place = divmod(iteration, self.batches_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(stream_seed(self.seed, self.kind, epoch))
            if self.slices < self.batch:
                order = torch.randint(self.slices, (self.batch,), generator=generator)
            else:
                order = torch.randperm(self.slices, generator=generator)
            if self.device.type == "cuda":
                order = order.pin_memory()  # from other memory the copy would wait for what the GPU is doing
            self._epoch, self._order = epoch, order.to(self.device, non_blocking=True)
        return self._order[place * self.batch : (place + 1) * self.batch]
