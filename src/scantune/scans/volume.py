"""A scan as a network sees it, whole or a batch of its slices."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

CPU_SLICES, GPU_PIXELS = 2, 32 * 256 * 256
"""What goes through a network together where no gradient is wanted: few slices on a CPU, so that features stay in its
cache; many pixels elsewhere, so that a GPU is busy."""


def batch_size(images: Tensor) -> int:
    """How many of `(slices, channels, *spatial)` go through a network together, without a gradient."""
    if images.device.type == "cpu":
        return CPU_SLICES if images.ndim == 4 else 1
    return max(GPU_PIXELS // images[0, 0].numel(), 1)


@dataclass(frozen=True)
class Batch:
    """Some slices of a scan.

    Args:
        images: `(slices, channels, *spatial)`.
        padding: True where an image is padding, `(slices, 1, *spatial)`; None where there is none.
        slices: Which slices of the scan these are `(slices,)`.
    """

    images: Tensor
    padding: Tensor | None
    slices: Tensor


@dataclass(frozen=True)
class Volume:
    """All slices of a scan, or those that stand for it.

    Args:
        images: `(slices, channels, *spatial)`.
        padding: True where it is padding, `(slices, 1, *spatial)`; None where there is none.
        distance: Distance of the slices in mm, where it is known.
        chosen: Which slices of the scan these are `(slices,)`; None for all.
    """

    images: Tensor
    padding: Tensor | None = None
    distance: float | None = None
    chosen: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """On a device."""
        padding, chosen = (None if part is None else part.to(device) for part in (self.padding, self.chosen))
        return type(self)(self.images.to(device), padding, self.distance, chosen)

    def batches(self, size: int) -> Iterator[Batch]:
        """All slices once, in order."""
        numbers = torch.arange(len(self.images), device=self.images.device) if self.chosen is None else self.chosen
        for first in range(0, len(self.images), size):
            part = slice(first, first + size)
            yield Batch(self.images[part], None if self.padding is None else self.padding[part], numbers[part])

    def spread(self, number: int) -> Batch:
        """So many slices, or all if there are fewer, at equal distances."""
        count = len(self.images)
        return self._batch(torch.linspace(0, count - 1, min(number, count)).round().long())

    def thinned(self, number: int) -> Self:
        """The volume of so many slices at equal distances; itself if there are no more."""
        if len(self.images) <= number:
            return self
        kept = self.spread(number)
        apart = (len(self.images) - 1) / max(number - 1, 1)
        distance = None if self.distance is None else apart * self.distance
        return type(self)(kept.images, kept.padding, distance, kept.slices)

    def draw(self, size: int, generator: torch.Generator) -> Batch:
        """Slices drawn uniformly with replacement."""
        return self._batch(torch.randint(len(self.images), (size,), generator=generator))

    def _batch(self, places: Tensor) -> Batch:
        """The slices at these places."""
        at = places.to(self.images.device)
        padding = None if self.padding is None else self.padding[at]
        return Batch(self.images[at], padding, at if self.chosen is None else self.chosen[at])
