"""Inversion of a contrast: bright becomes dark, in front of the normaliser."""

from typing import Self

import torch
from torch import Tensor, nn

ENDS = (0.01, 0.99)
"""Quantiles of the intensities that change places."""

BACKGROUND = 0.05
"""Share of the pixels that must have the same intensity to be called background."""

MOST_PIXELS = 2**20
"""Most pixels that quantiles are taken of, at equal distances."""


class Inversion(nn.Module):
    """Maps the low intensities of a scan to high ones and the other way round; the background stays.

    Args:
        low: The lower end of the intensities.
        high: The upper end.
        background: An intensity that stays as it is. NaN for none.
    """

    low: Tensor
    high: Tensor
    background: Tensor

    def __init__(self, low: float, high: float, background: float = float("nan")) -> None:
        super().__init__()
        for name, value in (("low", low), ("high", high), ("background", background)):
            self.register_buffer(name, torch.tensor(float(value)))

    @classmethod
    def of(cls, images: Tensor) -> Self:
        """Return the inversion of a scan `(slices, 1, *spatial)`."""
        values = images.detach().float().flatten()
        values = values[:: -(-len(values) // MOST_PIXELS)].cpu()
        background = values.mode().values
        same = values == background
        held = float(background) if float(same.float().mean()) > BACKGROUND else float("nan")
        low, high = torch.quantile(values[~same] if not bool(same.all()) else values, torch.tensor(ENDS)).tolist()
        return cls(low, high, held).to(images.device)

    def forward(self, images: Tensor) -> Tensor:
        """Invert images `(slices, 1, *spatial)`; intensities beyond the ends become the ends."""
        turned = (self.low + self.high - images).clamp(self.low, self.high)
        return torch.where(images == self.background, images, turned)
