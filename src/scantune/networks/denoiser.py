"""The denoising autoencoder of label volumes (Karani et al. 2021), and the grid that it works on."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.networks.helper import Helper
from scantune.networks.unet import ConvUnit, UNetLevel, upsample_by_two

POOLINGS = 3


class Denoiser(Helper):
    """Turns an implausible segmentation of a whole volume into a plausible one that is near.

    A 3D U-Net of three poolings whose skip connections leave out the full resolution: what is fine must come from what
    is coarse. It sees a volume on a grid of its own: so many slices, so many mm apart, and, where `shrink` is above 1,
    pixels averaged in squares.

    Args:
        classes: Exclusive classes, background first.
        depth: Slices of the grid.
        spacing: Distance of the grid's slices in mm.
        shrink: Pixels along a side of the squares that become one; 1, as in the paper, keeps every pixel.
        width: Channels of the first level.
    """

    name: ClassVar[str] = "dae"

    def __init__(self, classes: int, depth: int, spacing: float, shrink: int = 1, width: int = 16) -> None:
        super().__init__()
        smallest = {"classes": 2, "depth": 1, "shrink": 1, "width": 1}
        given = {"classes": classes, "depth": depth, "shrink": shrink, "width": width}
        for what, least in smallest.items():
            if given[what] < least:
                raise InputError(f"A denoiser's {what} must be {least} or more, got {given[what]}.")
        if not spacing > 0:
            raise InputError(f"A denoiser's spacing must be above 0 mm, got {spacing}.")
        self.classes, self.depth, self.spacing, self.shrink, self.width = classes, depth, spacing, shrink, width
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            UNetLevel(inputs, outputs, 3) for inputs, outputs in zip([classes, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(
            [UNetLevel(widths[3] + widths[2], widths[2], 3), UNetLevel(widths[2] + widths[1], widths[1], 3)]
        )
        self.fine = ConvUnit(widths[1], widths[0], 3)
        self.classify = nn.Conv3d(width, classes, 3, padding=1, bias=False)

    def record(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        return {name: getattr(self, name) for name in ("classes", "depth", "spacing", "shrink", "width")}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Build the denoiser of a `record`, with random weights."""
        with torch.random.fork_rng(devices=[]):
            return cls(**record)

    def forward(self, x: Tensor) -> Tensor:
        """Map probabilities `(batch, classes, depth, height, width)` of any size to logits of the same shape."""
        depth, height, width = x.shape[2:]
        x = _filled(x)
        skips: list[Tensor] = []
        for level in self.down[:-1]:
            x = level(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = self.down[-1](x)
        for level, skip in zip(self.up, reversed(skips[1:]), strict=True):
            x = level(torch.cat([_upsampled(x), skip], dim=1))
        logits: Tensor = self.classify(self.fine(_upsampled(x)))
        return logits[:, :, :depth, :height, :width]

    @torch.no_grad()
    def restore(self, probabilities: Tensor, distance: float | None = None) -> Tensor:
        """Denoise the segmentation of a whole volume.

        Args:
            probabilities: `(slices, classes, height, width)`.
            distance: Distance of the slices in mm; by default that of the grid.

        Returns:
            Probabilities of the same shape; zeros, no class at all, in slices that lie beyond the grid.
        """
        slices, _, height, width = probabilities.shape
        there, back = self._positions(slices, distance)
        volume = probabilities.float()
        background = F.one_hot(torch.tensor(0), self.classes).to(volume)
        on_grid = self.pooled(_along(volume, there, background))
        logits = self(on_grid.movedim(0, 1)[None])
        answer = logits.softmax(1)[0].movedim(1, 0)
        if self.shrink > 1:
            answer = F.interpolate(answer, scale_factor=self.shrink, mode="bilinear", align_corners=False)
        return _along(answer[..., :height, :width], back, torch.zeros_like(background))

    def placed(self, labels: Tensor, distance: float | None = None) -> Tensor:
        """Place a label volume `(slices, height, width)` on the grid by nearest slices, `(depth, height, width)`."""
        there, _ = self._positions(len(labels), distance)
        nearest = there.round().long().clamp(0, len(labels) - 1).to(labels.device)
        outside = _outside(there, len(labels)).to(labels.device)
        return labels[nearest].masked_fill(outside[:, None, None], 0)

    def pooled(self, volume: Tensor) -> Tensor:
        """Average `(slices, classes, height, width)` over squares, which may be cut at the border."""
        return volume if self.shrink == 1 else F.avg_pool2d(volume, self.shrink, ceil_mode=True)

    def encoded(self, labels: Tensor) -> Tensor:
        """Encode labels on the grid `(depth, height, width)` as network input `(1, classes, depth, *pooled)`."""
        one_hot = F.one_hot(labels.long(), self.classes).movedim(-1, 1).float()
        return self.pooled(one_hot).movedim(0, 1)[None]

    def _positions(self, slices: int, distance: float | None) -> tuple[Tensor, Tensor]:
        """Return where the grid's slices lie among a volume's, `(depth,)`, and the reverse, `(slices,)`.

        The middles of the two are laid on each other. At equal spacing slices meet slices, so that nothing is blurred.
        """
        ratio = self.spacing / (distance or self.spacing)
        first = (slices - 1) / 2 - ratio * (self.depth - 1) / 2
        if abs(ratio - 1) < 1e-3:
            ratio, first = 1.0, float((slices - self.depth) // 2)
        there = first + ratio * torch.arange(self.depth, dtype=torch.float64)
        back = (torch.arange(slices, dtype=torch.float64) - first) / ratio
        return there, back


def _along(volume: Tensor, positions: Tensor, beyond: Tensor) -> Tensor:
    """Interpolate a volume linearly along its slices.

    Args:
        volume: `(slices, classes, height, width)`.
        positions: In slices of the volume, `(new,)`; up to half a slice beyond its ends there is a value.
        beyond: What there is further out, `(classes,)`.

    Returns:
        `(new, classes, height, width)`.
    """
    last = len(volume) - 1
    inside = positions.clamp(0, last)
    below = inside.floor().long()
    weight = (inside - below).to(volume)[:, None, None, None]
    below = below.to(volume.device)
    read = volume[below].lerp(volume[(below + 1).clamp(max=last)], weight)
    outside = _outside(positions, len(volume)).to(volume.device)
    return torch.where(outside[:, None, None, None], beyond[:, None, None], read)


def _outside(positions: Tensor, slices: int) -> Tensor:
    return (positions < -0.5 - 1e-6) | (positions > slices - 0.5 + 1e-6)


def _filled(x: Tensor) -> Tensor:
    """Add background at the far ends, until every axis can be halved at each pooling."""
    step = 2**POOLINGS
    missing = [-size % step for size in x.shape[2:]]
    if not any(missing):
        return x
    ends = [end for size in reversed(missing) for end in (0, size)]
    return torch.cat([F.pad(x[:, :1], ends, value=1.0), F.pad(x[:, 1:], ends)], dim=1)


def _upsampled(x: Tensor) -> Tensor:
    if x.is_cuda:
        return upsample_by_two(x)
    return F.interpolate(x, scale_factor=2, mode="trilinear", align_corners=False)
