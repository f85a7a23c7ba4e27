"""Volumes that networks see, and batches of their slices."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

CPU_BATCH, GPU_PIXELS = 2, 32 * 256 * 256
"""Size of a batch without gradients: few slices or windows on a CPU, whose cache then holds the features, and many
pixels on a GPU, which they keep busy. It is not 1, because PyTorch convolves single volumes of one or two channels by a
method that is ten times slower."""


def batch_size(images: Tensor) -> int:
    """Return how many of `(slices, channels, *spatial)` go through a network together without a gradient."""
    return batch_of(images.shape[2:], images.device)


def batch_of(size: Sequence[int], device: torch.device) -> int:
    """Return how many slices or windows of a spatial size go through a network on a device together."""
    return CPU_BATCH if device.type == "cpu" else max(GPU_PIXELS // math.prod(size), 1)


def is_finite(images: Tensor) -> bool:
    """Return whether no value is NaN or infinite, without memory for a mask."""
    return all(bool(torch.isfinite(end)) for end in images.aminmax())


@dataclass(frozen=True)
class Batch:
    """Slices of a scan that go through a network together.

    Args:
        images: `(slices, channels, *spatial)`.
        padding: True where an image is padding, `(slices, 1, *spatial)`. None without padding.
        slices: Numbers of these slices in the scan, `(slices,)`.
    """

    images: Tensor
    padding: Tensor | None
    slices: Tensor


@dataclass(frozen=True)
class Volume:
    """All slices of a scan, or a selection that represents it.

    Args:
        images: `(slices, channels, *spatial)`.
        padding: True where an image is padding, `(slices, 1, *spatial)`. None without padding.
        distance: Distance of the slices in mm. None if it is unknown.
        chosen: Numbers of these slices in the scan, `(slices,)`. None for all.
        reference: Labels `(slices, *spatial)`. None if they are unknown.
        share: Voxels of the scan that each voxel of a selection stands for.
    """

    images: Tensor
    padding: Tensor | None = None
    distance: float | None = None
    chosen: Tensor | None = None
    reference: Tensor | None = None
    share: float = 1.0

    @property
    def length(self) -> float | None:
        """Return the length in mm that the slices cover, or None if it is unknown."""
        return None if self.distance is None else len(self.images) * self.distance

    def to(self, device: torch.device) -> Self:
        """Return the volume on a device."""
        padding, chosen, reference = (
            None if part is None else part.to(device) for part in (self.padding, self.chosen, self.reference)
        )
        moved = self.images.to(device)
        return replace(self, images=moved, padding=padding, chosen=chosen, reference=reference)

    def padded(self, multiple: int) -> Self:
        """Return a volume whose sizes are divisible by a number: its edges continue, marked as padding.

        The padding comes last along each axis, so that no pixel moves.
        """
        size = self.images.shape[2:]
        more = [-length % multiple for length in size]
        if not any(more):
            return self
        last_first = [end for extent in reversed(more) for end in (0, extent)]
        padding = self.images.new_zeros(len(self.images), 1, *size) if self.padding is None else self.padding.float()
        marked = F.pad(padding, last_first, value=1) > 0
        reference = None if self.reference is None else F.pad(self.reference, last_first)
        return replace(
            self, images=F.pad(self.images, last_first, mode="replicate"), padding=marked, reference=reference
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all slices once, in order."""
        numbers = torch.arange(len(self.images), device=self.images.device) if self.chosen is None else self.chosen
        for first in range(0, len(self.images), size):
            part = slice(first, first + size)
            yield Batch(self.images[part], None if self.padding is None else self.padding[part], numbers[part])

    def spread(self, number: int) -> Batch:
        """Return a number of slices at equal distances, or all if there are fewer."""
        return self._batch(self._places(number))

    def thinned(self, number: int) -> Self:
        """Return the volume of a number of slices at equal distances, or the volume itself if it has no more."""
        if len(self.images) <= number:
            return self
        kept = self.spread(number)
        apart = (len(self.images) - 1) / max(number - 1, 1)
        distance = None if self.distance is None else apart * self.distance
        reference = None if self.reference is None else self.reference[self._places(number)]
        share = self.share * len(self.images) / number
        return type(self)(kept.images, kept.padding, distance, kept.slices, reference, share)

    def draw(self, size: int, generator: torch.Generator) -> Batch:
        """Draw slices uniformly with replacement."""
        return self._batch(torch.randint(len(self.images), (size,), generator=generator))

    def _places(self, number: int) -> Tensor:
        count = len(self.images)
        return torch.linspace(0, count - 1, min(number, count)).round().long()

    def _batch(self, places: Tensor) -> Batch:
        """Return the slices at these positions."""
        at = places.to(self.images.device)
        padding = None if self.padding is None else self.padding[at]
        return Batch(self.images[at], padding, at if self.chosen is None else self.chosen[at])
