"""The heart in short-axis stacks, when it is filled (ED) and when it is contracted (ES).

Along z runs the long axis of the left ventricle, apex low, base high; y is up and x is right in the image. Hearts are
normal, hypertrophic or dilated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.anatomies import thorax
from scantune.simulate.anatomies.thorax import Solid, Thorax
from scantune.simulate.anatomies.ventricles import Bowl, Form, Ventricles, half_circle
from scantune.simulate.deform import Wobble
from scantune.simulate.extents import Extents
from scantune.simulate.shaped import Body, Shaped
from scantune.simulate.solids import Where, ellipsoid, smooth_max
from scantune.simulate.subject import FieldOfView, Region

_RIGHT_WALL = 2.5  # mm; wall of the right ventricle
_THIN = 1.5  # mm; walls of the atria
_MARGIN = 8.0  # mm beyond apex and base that slices cover
_BELOW = 45.0  # mm below the base where nothing of the atria is left, nor of the fat around them
_FAR = -1e3  # depth of points that are not looked at because they lie far outside

_REGIONS = (
    Region("epicardial fat", "fat"),
    Region("thin walls of the heart", "myocardium"),
    Region("atria and great vessels", "blood", texture=0.3),
    Region("right ventricle", "blood", "RV", texture=0.3),
    Region("left myocardium", "myocardium", "MYO"),
    Region("left ventricle", "blood", "LV", texture=0.3),
    Region("papillary muscles", "myocardium", "LV"),
)


@dataclass(frozen=True)
class _Kind:
    """Ranges of one kind of heart: cavity and wall in mm when filled, ejection fraction, thicker septum."""

    share: float
    diameter: tuple[float, float]
    wall: tuple[float, float]
    ejection: tuple[float, float]
    septal: tuple[float, float]


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "normal": _Kind(0.4, (44, 56), (7, 10), (0.52, 0.68), (-0.05, 0.15)),
        "hypertrophic": _Kind(0.3, (44, 51), (11, 15), (0.55, 0.70), (0.0, 0.35)),
        "dilated": _Kind(0.3, (58, 66), (7, 10), (0.20, 0.38), (-0.1, 0.1)),
    }
)


@dataclass(frozen=True)
class Details:
    """What one person's heart looks like apart from the sizes of its ventricles.

    Attributes:
        middle: Where the left ventricle's axis passes `(y, x)` at height 0.
        turn: Direction of the right ventricle in radians, from x towards y.
        bend: Slope and curvature of the axis, along y and along x.
        grain: Phases of the trabeculae.
        papillary: Angle, distance from the axis as a share of the cavity's radius, and radius in mm of each muscle.
        fat: Thickness of the epicardial fat in mm, by how much it differs between sides, and the thicker side.
        chambers: Middle `(z, across, along)` above the base and half axes of atria and vessels.
    """

    middle: tuple[float, float]
    turn: float
    bend: tuple[float, float, float, float]
    grain: tuple[float, float, float]
    papillary: tuple[tuple[float, float, float], ...]
    fat: tuple[float, float, float]
    chambers: tuple[Solid, ...]

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Self:
        """Draw the heart of one person."""
        u = rng.uniform
        turn = math.radians(160 + float(np.clip(rng.normal(0, 22), -60, 60)))
        return cls(
            middle=(-14 * math.sin(turn) + u(-5, 25), -14 * math.cos(turn) + u(-10, 10)),
            turn=turn,
            bend=(u(-0.04, 0.12), u(-8e-4, 8e-4), u(-0.08, 0.08), u(-8e-4, 8e-4)),
            grain=(u(0, 6.3), u(0, 6.3), u(0, 6.3)),
            papillary=tuple((side * u(1.9, 2.5), u(0.58, 0.72), u(3.8, 6.0)) for side in (-1, 1)),
            fat=(u(-1.0, 2.0), u(1.5, 4.0), u(-1.2, 1.2)),
            chambers=(
                ((20.0, u(8, 18), u(-12, -2)), (34.0, u(20, 26), u(25, 32))),  # left atrium
                ((24.0, u(12, 22), u(36, 44)), (36.0, u(20, 26), u(18, 24))),  # right atrium
                ((25.0, u(-14, -6), u(4, 12)), (50.0, u(13, 16), u(13, 16))),  # root of the aorta
                ((20.0, u(-36, -28), u(14, 28)), (45.0, u(12, 15), u(17, 23))),  # outflow of the right ventricle
            ),
        )

    def frame(self, z: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances from the axis along the septum and towards the right ventricle."""
        y = y - self.middle[0] - (self.bend[0] + self.bend[1] * z) * z
        x = x - self.middle[1] - (self.bend[2] + self.bend[3] * z) * z
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        return y * cos - x * sin, x * cos + y * sin


@dataclass(frozen=True, eq=False)
class HeartBody(Body):
    """One person at one time of the heartbeat.

    Attributes:
        kind: Of heart.
        ejection: Share of the left ventricle's blood that leaves it.
        ventricles: Their shapes.
        details: The rest of the heart.
        chest: What lies around.
    """

    kind: str
    ejection: float
    ventricles: Ventricles
    details: Details
    chest: Thorax

    def depths(self, at: Where) -> Tensor:
        """Return the depth of points below the surface of each region."""
        z, y, x = at
        depths = z.new_full((len(thorax.REGIONS) + len(_REGIONS), *z.shape), _FAR)
        extents = Extents.of(z, y, x)
        self.chest.paint(z, y, x, extents, depths)
        near = extents.around(*self._place())
        heart = self._heart(z[near].contiguous(), y[near].contiguous(), x[near].contiguous(), extents.heights[1])
        depths[(slice(len(thorax.REGIONS), None), *near)] = heart
        return depths

    def _place(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return the middle of the whole heart `(y, x)` and its reach from there."""
        outside, form, turn = self.ventricles.outside.radius, self.ventricles.form, self.details.turn
        right = max(form.beside * outside + self.ventricles.bulge, 65.0)
        shift, reach = (right - outside) / 2, (right + outside) / 2 + 17
        y, x = self.details.middle
        return (y + shift * math.sin(turn), x + shift * math.cos(turn)), (reach, reach)

    def _heart(self, z: Tensor, y: Tensor, x: Tensor, highest: float) -> Tensor:
        """Return depths `(regions, depth, height, width)` of the heart's own regions at points up to a highest z."""
        across, along = self.details.frame(z, y, x)
        angle, away = torch.atan2(across, along), torch.hypot(across, along)
        cavity, outside = self.ventricles.left(z, away, angle)
        right = self.ventricles.right(z, across, along, angle)
        chamber, next_to_it = self._chambers(z, across, along, highest)
        below = self.ventricles.base - z
        walls = torch.maximum(torch.minimum(right + _RIGHT_WALL, below), torch.minimum(chamber + _THIN, -below))
        blood = torch.minimum(chamber, chamber - next_to_it - _THIN)  # leaves walls between chambers
        grain = self._grain(z, angle)
        muscles = torch.maximum(self._papillary(z, across, along), 3 * grain - 0.8 - cavity)
        whole = smooth_max(smooth_max(outside, right + _RIGHT_WALL, 24.0), chamber + _THIN, 16.0)
        cavity = torch.minimum(cavity, below)
        return torch.stack(
            [
                self._fat(angle, whole),
                walls,
                torch.minimum(blood, -below),
                torch.minimum(right + 0.8 * grain, below),
                torch.minimum(outside, below),
                cavity,
                torch.minimum(muscles, cavity),
            ]
        )

    def _chambers(self, z: Tensor, across: Tensor, along: Tensor, highest: float) -> tuple[Tensor, Tensor]:
        """Return the depths in the deepest and the second deepest of atria and great vessels."""
        first, second = torch.full_like(z, _FAR), torch.full_like(z, _FAR)
        if highest - self.ventricles.base > -_BELOW:
            at = (z - self.ventricles.base, across, along)
            for chamber in self.details.chambers:
                depth = ellipsoid(at, *chamber)
                second = torch.maximum(second, torch.minimum(first, depth))
                first = torch.maximum(first, depth)
        return first, second

    def _grain(self, z: Tensor, angle: Tensor) -> Tensor:
        """Return the trabeculae, from -1 to 1."""
        one, two, three = self.details.grain
        return torch.sin(9 * angle + z / 9 + one) * torch.sin(5 * angle - z / 7 + two + torch.sin(3 * angle + three))

    def _papillary(self, z: Tensor, across: Tensor, along: Tensor) -> Tensor:
        cavity = self.ventricles.cavity
        level = (z - self.ventricles.widest) / cavity.length
        radius = cavity.radius * half_circle(level)
        taper = half_circle((level + 0.35) / 0.42)
        depths = [
            size * taper
            - torch.hypot(across - share * math.sin(angle) * radius, along - share * math.cos(angle) * radius)
            for angle, share, size in self.details.papillary
        ]
        return torch.maximum(*depths)

    def _fat(self, angle: Tensor, heart: Tensor) -> Tensor:
        thickness, more, side = self.details.fat
        return heart + thickness + more * torch.cos(angle - side)


@dataclass(frozen=True)
class Heart(Shaped):
    """Hearts in their chests, scanned in short-axis slices."""

    regions = (*thorax.REGIONS, *_REGIONS)
    labels = MappingProxyType({"LV": 1, "MYO": 2, "RV": 3})
    states: ClassVar[tuple[str, ...]] = ("ED", "ES")
    wobble: ClassVar[Wobble] = Wobble(scales=((45.0, 4.0), (16.0, 1.3)), proportions=0.02, tilt=3.0)

    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> HeartBody:  # noqa: ARG002
        """Draw one person, with a filled (`ED`) or contracted (`ES`) heart."""
        if state not in self.states:
            raise InputError(f"A heart is scanned in state ED or ES, but {state!r} was asked for.")
        kind = str(rng.choice(list(_KINDS), p=[kind.share for kind in _KINDS.values()]))
        ejection = float(rng.uniform(*_KINDS[kind].ejection))
        filled = _filled(rng, _KINDS[kind])
        shortening = float(np.clip(0.13 * ejection / 0.6 + rng.uniform(-0.02, 0.02), 0.04, 0.16))
        right = float(np.clip(filled.cavity.volume * rng.uniform(0.85, 1.25), 100, 220))
        right_ejection = float(np.clip(ejection * rng.uniform(0.8, 1.0), 0.25, 0.6))
        details = Details.drawn(rng)
        reach = filled.outside.radius + 4
        chest = Thorax.drawn(rng, details.middle[0] + reach, details.middle[0] - reach)
        ventricles = filled.filled(right)
        if state == "ES":
            ventricles = filled.contracted(ejection, shortening).filled(right * (1 - right_ejection))
        front, back = (chest.middle[0] + side * chest.radii[0] for side in (1, -1))
        landmarks = {"skin front": (0.0, front, 0.0), "skin back": (0.0, back, chest.middle[1])}
        coverage = (filled.apex - _MARGIN, filled.base + _MARGIN)
        return HeartBody(coverage, kind, ejection, ventricles, details, chest, landmarks=landmarks)


def _filled(rng: np.random.Generator, kind: _Kind) -> Ventricles:
    """Return a left ventricle before it contracts, its middle at height 0."""
    radius, wall = float(rng.uniform(*kind.diameter)) / 2, float(rng.uniform(*kind.wall))
    whole = 45 + 1.55 * radius + float(rng.uniform(-4, 4))
    above = whole * float(rng.uniform(0.2, 0.28))
    cavity = Bowl(radius, whole - above, above)
    outside = Bowl(radius + wall, whole - above + wall * float(rng.uniform(0.5, 0.7)), above)
    form = Form.drawn(rng, float(rng.uniform(*kind.septal)))
    return Ventricles(form, cavity, outside, (outside.length + above) / 2)
