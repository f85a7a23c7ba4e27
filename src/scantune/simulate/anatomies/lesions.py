"""White matter hyperintensities: how many there are, how large they get, and what they look like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scantune.simulate.anatomies.places import FARTHEST
from scantune.simulate.fields import smooth_noise

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
        """Draw the lesion load of one person."""
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
    """Return the share of each voxel that is lesion; never more than was white matter.

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
    touched = ((white > 0.02) & ((spread < FARTHEST) | (deep > 0))).flatten().nonzero()[:, 0]
    wanted = 1000 * load.volume / math.prod(spacing)
    shares = white.new_zeros(white.numel())
    spread, faint, deep, white = (part.flatten()[touched] for part in (spread, faint, deep, white))
    shares[touched] = _filled(spread, faint, deep, white, wanted)
    return shares.view(places.shape[1:])


def _filled(spread: Tensor, faint: Tensor, deep: Tensor, white: Tensor, volume: float) -> Tensor:
    """Spread the disease from the ventricles until the shares of lesion `(voxels,)` add up to `volume`."""
    # on the device: asking for the sum after every step would make a GPU wait
    low, high = (torch.tensor(end, dtype=torch.float64, device=white.device) for end in (-_RIM, FARTHEST))
    shares = deep * white
    for _ in range(14):
        front = (low + high) / 2
        cover = ((front - spread) / _RIM + 0.5).clamp_(0, 1) * faint
        shares = torch.maximum(cover, deep) * white
        much = shares.sum() > volume
        low, high = torch.where(much, low, front), torch.where(much, front, high)
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
    forms = np.stack([rng.uniform((0.6, 0.5, 0.0, 0.75), (1.0, 1.0, math.pi, 1.0)) for _ in radii])
    total = chance.flatten().double().cumsum(0)
    if not float(total[-1]) > 0:
        return torch.zeros_like(chance)
    chosen = torch.searchsorted(total, torch.from_numpy(draws).to(total) * total[-1]).clamp_max_(len(total) - 1)
    places = np.stack(np.unravel_index(chosen.cpu().numpy(), chance.shape), 1) + shifts
    flat, narrow, angle, strength = forms.T
    spots = _Spots(np.asarray(radii), flat, narrow, angle, strength, places)
    return _painted(spots, noise, spacing, thickness)


@dataclass(frozen=True, eq=False)
class _Spots:
    """Small lesions, all `(n,)`: ellipsoids with irregular borders.

    Attributes:
        radius: Longest half axis in mm, across the slices.
        flat: Half axis along z relative to it.
        narrow: Half axis across the longest one relative to it.
        angle: Of the longest half axis with the y axis, in radians.
        strength: Share of lesion in the middle.
        place: Middles `(n, 3)` in voxels.
    """

    radius: NDArray[np.float64]
    flat: NDArray[np.float64]
    narrow: NDArray[np.float64]
    angle: NDArray[np.float64]
    strength: NDArray[np.float64]
    place: NDArray[np.float64]


def _painted(spots: _Spots, noise: Tensor, spacing: tuple[float, float, float], thickness: float) -> Tensor:
    """Cover `(slices, height, width)` of small lesions whose borders follow `noise` of the same shape.

    All are painted at once, each in a box of voxels about its middle.
    """
    tall = spots.radius * spots.flat
    seen = np.sqrt(tall**2 + thickness**2 / 12)  # half axis along z as the slices blur it
    reach = np.stack([1.6 * seen, 1.6 * spots.radius + spacing[1], 1.6 * spots.radius + spacing[2]], 1)
    half = np.ceil(reach.max(0) / spacing).astype(int)
    box = np.stack(np.meshgrid(*(np.arange(-size, size + 1) for size in half), indexing="ij"), -1).reshape(-1, 3)
    voxels = np.round(spots.place).astype(int)[:, None] + box  # (n, voxels of a box, 3)
    away = (voxels - spots.place[:, None]) * spacing
    there = ((np.abs(away) <= reach[:, None]) & (voxels >= 0) & (voxels < noise.shape)).all(-1)
    spot, _ = np.nonzero(there)
    z, y, x = away[there].T
    cos, sin = np.cos(spots.angle)[spot], np.sin(spots.angle)[spot]
    along, across = (cos * y + sin * x) / spots.radius[spot], (cos * x - sin * y) / (spots.narrow * spots.radius)[spot]
    columns = [np.sqrt((z / seen[spot]) ** 2 + along**2 + across**2), spots.radius[spot] / spacing[1]]
    columns.append((spots.strength * tall / seen)[spot])
    distance, steep, most = torch.from_numpy(np.stack(columns).astype(np.float32)).to(noise.device)
    index = torch.from_numpy(np.ravel_multi_index(tuple(voxels[there].T), noise.shape)).to(noise.device)
    depth = (torch.exp((0.4 * noise.flatten()[index]).clamp_(-0.6, 0.45)) - distance) * steep + 0.5
    cover = noise.new_zeros(noise.numel())
    return cover.scatter_reduce_(0, index, depth.clamp_(0, 1) * most, "amax").view(noise.shape)
