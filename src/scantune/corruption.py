"""How label volumes are spoilt for a denoising autoencoder: a jigsaw of boxes (Karani et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
        sizes, targets, sources = self.draw(labels.shape, generator)
        spoilt = labels.clone()
        for size, target, source in zip(sizes.tolist(), targets.tolist(), sources.tolist(), strict=True):
            spoilt[_box(target, size)] = labels[_box(source, size)]
        return spoilt

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
