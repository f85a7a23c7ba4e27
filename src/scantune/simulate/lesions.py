"""White matter hyperintensities: how many there are, how large they get, and what they look like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.fields import smooth_noise
from scantune.simulate.places import FARTHEST

_VOLUME = (8.0, 0.95, 1.0, 60.0)  # mL: median, deviation of the logarithm, least, most
_COUNT = (18.0, 0.5, 5, 60)  # deep lesions: median, deviation of the logarithm, least, most
_RADIUS = (2.0, 0.35, 1.0, 5.0)  # mm, of deep lesions
_MOST_DEEP = 0.4  # share of the volume in deep lesions, at most
_RIM = 1.6  # mm over which lesions at the ventricles fade into white matter


@dataclass(frozen=True)
class Load:
    """How far the disease has come.

    Attributes:
        volume: Of all lesions, in mL.
        radii: Of the deep lesions, in mm.
        swelling: By what share the ventricles' surroundings give way to them.
        atrophy: Shift of the logarithm of the fluid's share.
    """

    volume: float
    radii: tuple[float, ...]
    swelling: float
    atrophy: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Load:
        """One person's."""
        median, spread, least, most = _VOLUME
        volume = float(np.clip(median * math.exp(spread * rng.standard_normal()), least, most))
        severity = math.log(volume / median) / spread
        middle, wide, fewest, many = _COUNT
        count = round(np.clip(middle * math.exp(0.45 * severity + wide * rng.standard_normal()), fewest, many))
        size, scatter, small, large = _RADIUS
        radii = np.clip(size * np.exp(0.1 * severity + scatter * rng.standard_normal(count)), small, large)
        nominal = float((4 / 3 * math.pi * radii**3).sum()) / 1000
        radii *= min(1.0, (_MOST_DEEP * volume / nominal) ** (1 / 3))
        swelling = float(np.clip(0.08 + 0.06 * severity + 0.05 * rng.standard_normal(), 0.0, 0.25))
        return cls(volume, tuple(radii.tolist()), swelling, 0.25 * severity)


def lesions(
    rng: np.random.Generator,
    load: Load,
    white: Tensor,
    places: Tensor,
    spacing: tuple[float, float, float],
    thickness: float,
) -> Tensor:
    """What share of each voxel is lesion; never more than was white matter.

    Args:
        rng: Where the randomness comes from.
        load: Volume, number and sizes.
        white: Share `(slices, height, width)` of white matter.
        places: Maps `(2, slices, height, width)` of `Places` in this brain.
        spacing: Distances `(z, y, x)` of voxel centres in mm.
        thickness: Slice thickness in mm.
    """
    spread, chance = places
    coarse, fine = (smooth_noise(rng, 1, white.shape, spacing, length, white.device)[0] for length in (7.0, 2.5))
    deep = _deep(rng, load.radii, white * chance, fine, spacing, thickness)
    spread = spread * torch.exp(-0.4 * coarse - 0.2 * fine)
    faint = (0.9 + 0.12 * fine).clamp_(0.7, 1.0)
    touched = (white > 0.02) & ((spread < FARTHEST) | (deep > 0))
    wanted = 1000 * load.volume / math.prod(spacing)
    shares = white.new_zeros(white.shape)
    shares[touched] = _filled(spread[touched], faint[touched], deep[touched], white[touched], wanted)
    return shares


def _filled(spread: Tensor, faint: Tensor, deep: Tensor, white: Tensor, volume: float) -> Tensor:
    """Shares of lesion `(voxels,)` when the disease has spread from the ventricles until their sum is `volume`."""
    low, high = -_RIM, FARTHEST
    shares = deep * white
    for _ in range(14):
        front = (low + high) / 2
        cover = ((front - spread) / _RIM + 0.5).clamp_(0, 1) * faint
        shares = torch.maximum(cover, deep) * white
        low, high = (low, front) if float(shares.sum()) > volume else (front, high)
    return shares


def _deep(
    rng: np.random.Generator,
    radii: Sequence[float],
    chance: Tensor,
    noise: Tensor,
    spacing: tuple[float, float, float],
    thickness: float,
) -> Tensor:
    """Cover `(slices, height, width)` of small lesions, at places drawn by their chance."""
    number = len(radii)
    draws, shifts = rng.random(number), rng.uniform(-0.5, 0.5, (number, 3))
    spots = [_Spot(radius, *rng.uniform((0.6, 0.5, 0.0, 0.75), (1.0, 1.0, math.pi, 1.0)).tolist()) for radius in radii]
    cover = torch.zeros_like(chance)
    total = chance.flatten().double().cumsum(0)
    if not float(total[-1]) > 0:
        return cover
    chosen = torch.searchsorted(total, torch.from_numpy(draws).to(total) * total[-1]).clamp_max_(len(total) - 1)
    places = np.stack(np.unravel_index(chosen.cpu().numpy(), chance.shape), 1) + shifts
    for spot, place in zip(spots, (places * spacing).tolist(), strict=True):
        spot.paint(cover, noise, place, spacing, thickness)
    return cover


@dataclass(frozen=True)
class _Spot:
    """A small lesion: an ellipsoid with an irregular border.

    Attributes:
        radius: Longest half axis in mm, across the slices.
        flat: Half axis along z relative to it.
        narrow: Half axis across the longest one relative to it.
        angle: Of the longest half axis with the y axis, in radians.
        strength: Share of lesion in its middle.
    """

    radius: float
    flat: float
    narrow: float
    angle: float
    strength: float

    def paint(
        self, cover: Tensor, noise: Tensor, place: Sequence[float], spacing: Sequence[float], thickness: float
    ) -> None:
        """Lay it over a cover `(slices, height, width)` at a place `(z, y, x)` in mm from the first voxel."""
        tall = self.radius * self.flat
        seen = math.sqrt(tall**2 + thickness**2 / 12)  # half axis along z as the slices blur it
        reach = (1.6 * seen, 1.6 * self.radius + spacing[1], 1.6 * self.radius + spacing[2])
        box = tuple(
            slice(max(math.ceil((at - far) / edge), 0), max(math.floor((at + far) / edge) + 1, 0))
            for at, far, edge in zip(place, reach, spacing, strict=True)
        )
        part = cover[box]
        z, y, x = (
            (torch.arange(size, device=cover.device) + span.start) * edge - at
            for size, span, edge, at in zip(part.shape, box, spacing, place, strict=True)
        )
        y, x = y[:, None], x[None, :]
        along, across = (
            math.cos(self.angle) * y + math.sin(self.angle) * x,
            math.cos(self.angle) * x - math.sin(self.angle) * y,
        )
        flat = (along / self.radius).square() + (across / (self.narrow * self.radius)).square()
        distance = ((z / seen).square()[:, None, None] + flat).sqrt_()
        depth = (torch.exp((0.4 * noise[box]).clamp_(-0.6, 0.45)) - distance) * (self.radius / spacing[1]) + 0.5
        torch.maximum(part, depth.clamp_(0, 1) * (self.strength * tall / seen), out=part)
