"""Windows of slices and volumes that are too large for a network to see at once."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.scans.volume import Volume, batch_of

Weighting = Literal["gaussian", "constant"]

SIGMA = 0.125
"""Deviation of Gaussian weights as a share of the window, as in MONAI and nnU-Net."""

LEAST_WEIGHT = 1e-3
"""Smallest weight, as in MONAI."""

SAMPLED_WINDOWS = 8
"""Most windows of a scan that statistics, steps and the assessment see."""

SEED = 0
"""Seed of the choice of windows."""

LEAST_WINDOWS, MOST_VOXELS = 4, 2**24
"""Least number of windows of a bounded number, and the voxels that more of them may have together."""

Place = tuple[slice, ...]


def bounded_number(window: Sequence[int]) -> int:
    """Return how many windows of any size are looked at: more, the smaller they are."""
    return max(LEAST_WINDOWS, MOST_VOXELS // math.prod(window))


@dataclass(frozen=True)
class Tiling:
    """Windows that cover slices or volumes.

    Args:
        window: Spatial size of a window.
        overlap: Share of a window that the next one covers again, in predictions.
        weighting: How overlapping windows are averaged: `gaussian` counts their middle more.
    """

    window: tuple[int, ...]
    overlap: float = 0.5
    weighting: Weighting = "gaussian"

    def __post_init__(self) -> None:
        if len(self.window) not in (2, 3) or min(self.window) < 1:
            raise InputError(f"A window must have 2 or 3 sizes of 1 or more, not {self.window}.")
        if not 0 <= self.overlap < 1:
            raise InputError(f"The overlap of windows must be from 0 to below 1, not {self.overlap}.")

    def starts(self, size: Sequence[int], overlap: float | None = None) -> list[list[int]]:
        """Return where windows start along each axis of a slice or volume that is no smaller than a window."""
        share = self.overlap if overlap is None else overlap
        found = []
        for length, extent in zip(size, self.window, strict=True):
            step = max(int(extent * (1 - share)), 1)
            count = math.ceil(max(length - extent, 0) / step) + 1
            found.append([min(number * step, length - extent) for number in range(count)])
        return found

    def places(self, size: Sequence[int], overlap: float | None = None) -> Iterator[Place]:
        """Yield the windows that cover a slice or volume, the last axis first."""
        for corner in itertools.product(*self.starts(size, overlap)):
            yield tuple(slice(start, start + extent) for start, extent in zip(corner, self.window, strict=True))

    def weights(self) -> Tensor:
        """Return the weight of each position of a window."""
        if self.weighting == "constant":
            return torch.ones(self.window)
        weights = torch.ones(())
        for extent in self.window:
            away = torch.arange(extent) - (extent - 1) / 2
            weights = weights[..., None] * torch.exp(-(away**2) / (2 * (SIGMA * extent) ** 2))
        return weights.clamp_min(max(float(weights.min()), LEAST_WEIGHT))

    def sample(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        reference: Tensor | None = None,
        most: int = SAMPLED_WINDOWS,
    ) -> Volume:
        """Return at most a number of windows with much content, the same for equal scans.

        Windows that hardly overlap are drawn by chance, in proportion to the deviation of their intensities, which
        neither an inversion nor an affine map of the intensities changes.

        Args:
            images: The scan `(slices, channels, *spatial)`.
            padding: True where it is padding, `(slices, 1, *spatial)`.
            reference: Labels `(slices, *spatial)`.
            most: Largest number of windows.
        """
        size = images.shape[2:]
        if any(length < extent for length, extent in zip(size, self.window, strict=True)):
            margins = self._margins(size)
            inside = images.new_zeros(len(images), 1, *size, dtype=torch.bool)
            return self.sample(
                F.pad(images, margins),
                F.pad(inside if padding is None else padding, margins, value=True),
                None if reference is None else F.pad(reference, margins),
                most,
            )
        places = [(number, place) for number in range(len(images)) for place in self.places(size, overlap=0.0)]
        if len(places) > most:
            content = torch.stack([_content(images, padding, *place) for place in places]).cpu()
            chosen = torch.multinomial(content, most, generator=torch.Generator().manual_seed(SEED))
            places = [places[number] for number in sorted(chosen.tolist())]
        share = len(images) * math.prod(size) / (len(places) * math.prod(self.window))
        windows = torch.stack([images[number][(slice(None), *place)] for number, place in places])
        outside = None
        if padding is not None:
            outside = torch.stack([padding[number][(slice(None), *place)] for number, place in places])
        labels = None if reference is None else torch.stack([reference[number][place] for number, place in places])
        return Volume(windows, outside, reference=labels, share=share)

    @torch.no_grad()
    def predict(
        self, network: nn.Module, images: Tensor, read: Callable[[Any], Tensor], batch: int | None = None
    ) -> Tensor:
        """Return the class probabilities of a whole scan `(slices, classes, *spatial)`, on the scan's device.

        Windows are added in place, and weights are divided by plane by plane, so that memory beside the scan and the
        result does not grow with the scan.

        Args:
            network: The network; windows go to its device.
            images: The scan `(slices, channels, *spatial)`.
            read: Turns the output for a window into class probabilities.
            batch: Windows at a time. None chooses by the network's device.
        """
        size = images.shape[2:]
        margins = self._margins(size)
        padded = F.pad(images, margins) if any(margins) else images
        reference = next(network.parameters(), None)
        device = images.device if reference is None else reference.device
        weights = self.weights()
        total: Tensor | None = None
        for number, volume in enumerate(padded):
            places = list(self.places(padded.shape[2:]))
            together = batch_of(self.window, device) if batch is None else batch
            for first in range(0, len(places), together):
                part = places[first : first + together]
                windows = torch.stack([volume[(slice(None), *place)] for place in part])
                found = read(network(windows.to(device))).float().to(images.device)
                if total is None:
                    total = images.new_zeros(len(padded), found.shape[1], *padded.shape[2:], dtype=torch.float32)
                for place, values in zip(part, found, strict=True):
                    total[number][(slice(None), *place)].addcmul_(values, weights.to(values))
        assert total is not None
        self._normalise(total, weights)
        return total if not any(margins) else _cropped(total, margins)

    def _normalise(self, total: Tensor, weights: Tensor) -> None:
        """Divide sums by the weights of all windows that a position is in, in place, along the first axis."""
        starts, *others = self.starts(total.shape[2:])
        corners = list(itertools.product(*others))
        for position in range(total.shape[2]):
            plane = total.new_zeros(total.shape[3:])
            for start in starts:
                if start <= position < start + self.window[0]:
                    for corner in corners:
                        place = tuple(
                            slice(first, first + extent) for first, extent in zip(corner, self.window[1:], strict=True)
                        )
                        plane[place] += weights[position - start].to(plane)
            total[:, :, position] /= plane

    def _margins(self, size: Sequence[int]) -> list[int]:
        """Return the padding that makes a slice or volume as large as a window, for `torch.nn.functional.pad`."""
        margins = []
        for length, extent in zip(reversed(size), reversed(self.window), strict=True):
            missing = max(extent - length, 0)
            margins += [missing // 2, missing - missing // 2]
        return margins


def _content(images: Tensor, padding: Tensor | None, number: int, place: Place) -> Tensor:
    """Return how much there is to see in a window: the deviation of its intensities, and a trace for empty ones."""
    values = images[number][(slice(None), *place)]
    if padding is not None:
        values = values.masked_fill(padding[number][(slice(None), *place)], 0)
    return values.flatten(1).std(1, correction=0).mean().double() + 1e-6


def _cropped(images: Tensor, margins: Sequence[int]) -> Tensor:
    for axis, (before, after) in enumerate(zip(margins[::2], margins[1::2], strict=True), start=1):
        images = images.narrow(-axis, before, images.shape[-axis] - before - after)
    return images
