"""How label volumes are spoilt for a denoising autoencoder: a jigsaw of boxes (Karani et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Jigsaw:
    """Replaces boxes of a label volume by what lies elsewhere in it; the defaults are the paper's.

    The content of a box is that of a box of the same size anywhere in the clean volume, so no label is invented. Later
    boxes overwrite earlier ones.
    """

    boxes: int = 200
    """The most boxes; their number is uniform from 1."""
    half_width: int = 10
    """The largest half-width in voxels, uniform from 1; along short axes it is cut to dim // 2 - 2."""

    def __call__(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """A spoilt copy of a label volume `(depth, height, width)`.

        Args:
            labels: Integers, on any device.
            generator: The source of randomness, on the CPU: the same draws on every device.
        """
        return self.spoilt(labels, self.boxes_of(labels.shape, generator).to(labels.device))

    def spoilt(self, labels: Tensor, boxes: Tensor) -> Tensor:
        """A copy of a label volume `(depth, height, width)` with boxes, as `boxes_of` gives them, replaced."""
        if labels.is_cuda:
            return labels.flatten()[origins(labels.shape, boxes)]
        spoilt = labels.clone()
        for size, target, source in zip(*boxes.tolist(), strict=True):
            spoilt[_box(target, size)] = labels[_box(source, size)]
        return spoilt

    def boxes_of(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Draws the boxes of a volume, as `draw` does, and adds empty ones up to the most, `(3, most, 3)`."""
        drawn = torch.stack(self.draw(shape, generator))
        return F.pad(drawn, (0, 0, 0, self.boxes - drawn.shape[1]))

    def draw(self, shape: torch.Size, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draws the boxes of a volume: their sizes, first corners, and those of their contents, `(boxes, 3)` each."""
        boxes = int(torch.randint(1, self.boxes + 1, (), generator=generator))
        half = torch.randint(1, self.half_width + 1, (boxes, 1), generator=generator)
        dimensions = torch.tensor(shape)
        sizes = (2 * half.minimum(dimensions // 2 - 2)).clamp(min=1)
        places = dimensions - sizes + 1
        # In double precision, so that no place is left out or favoured by rounding.
        uniform = torch.rand(2, boxes, 3, generator=generator, dtype=torch.float64)
        targets, sources = (uniform * places).long()
        return sizes, targets, sources


def _box(first: list[int], size: list[int]) -> tuple[slice, ...]:
    return tuple(slice(start, start + length) for start, length in zip(first, size, strict=True))


BITS = 52
"""Boxes per word: as many as a double holds exactly."""


def origins(shape: torch.Size, boxes: Tensor) -> Tensor:
    """Where each voxel's label comes from, `(depth, height, width)` numbers of voxels.

    The last box that covers a voxel counts. A set of boxes is the bits of a word, those that cover a voxel are the
    conjunction of three words, one per axis, and the last of them is the highest bit: a dozen passes over the volume,
    whatever the number of boxes, where one box after the other would be two each, and none that waits for the device.

    Args:
        shape: Of the volume.
        boxes: Sizes, first corners, and those of their contents, `(3, boxes, 3)`.
    """
    sizes, targets, sources = boxes
    numbers = torch.arange(boxes.shape[1], device=boxes.device)
    last = torch.zeros(shape, dtype=torch.int64, device=boxes.device)
    for word in range(-(-boxes.shape[1] // BITS)):
        chosen = slice(word * BITS, (word + 1) * BITS)
        bits = 1 << (numbers[chosen] % BITS)
        covering = []
        for axis, length in enumerate(shape):
            place = torch.arange(length, device=boxes.device)[:, None]
            first, size = targets[chosen, axis], sizes[chosen, axis]
            covering.append(((place >= first) & (place < first + size)).long().mul(bits).sum(1))
        along, down, across = covering
        words = along[:, None, None] & down[:, None] & across
        highest = torch.frexp(words.double()).exponent
        last = torch.where(words > 0, word * BITS + highest, last)
    planes, rows, columns = (sources - targets).unbind(1)
    shifts = F.pad((planes * shape[1] + rows) * shape[2] + columns, (1, 0))
    return torch.arange(shape.numel(), device=boxes.device).view(shape) + shifts[last]
