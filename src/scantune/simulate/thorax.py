"""The chest around the heart, as short-axis slices cut it: y is up and x is right in the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.subject import Region
from scantune.simulate.ventricles import oval

REGIONS = (
    Region("fat of the chest", "fat"),
    Region("chest wall", "muscle"),
    Region("lungs", "lung", texture=0.5),
    Region("liver", "liver"),
    Region("stomach gas", "air", texture=0.0),
    Region("bone marrow", "marrow"),
    Region("spinal canal", "CSF", texture=0.0),
    Region("descending aorta", "blood", texture=0.3),
)
"""From the skin inwards."""

_MARGIN = 5.0  # mm around a thing in which its depth matters, as borders are soft

_Place = tuple[float, float]
Solid = tuple[tuple[float, float, float], tuple[float, float, float]]


@dataclass(frozen=True)
class Thorax:
    """The chest of one person; the same at every time of the heartbeat.

    Attributes:
        middle: Its middle `(y, x)` in mm.
        drift: By how much it moves `(y, x)` per mm of height: slices are oblique.
        turn: By how many radians it is turned.
        radii: Half axes `(y, x)` in mm.
        fat: Thickness in mm of the fat under the skin.
        muscle: Thickness in mm of the chest wall.
        ribs: Number of ribs around the chest, and their phase.
        spine: Middle of the vertebrae, from the chest's middle.
        aorta: Middle of the descending aorta, from the vertebrae's.
        aorta_radius: In mm.
        pad: Middle `(y, x)` of the fat between heart and breastbone, its thickness and half its width.
        dome: Middle and half axes `(z, y, x)` of what lies under the diaphragm.
        gas: Middle and half axes of the gas in the stomach.
    """

    middle: _Place
    drift: _Place
    turn: float
    radii: _Place
    fat: float
    muscle: float
    ribs: _Place
    spine: _Place
    aorta: _Place
    aorta_radius: float
    pad: tuple[_Place, _Place]
    dome: Solid
    gas: Solid

    @classmethod
    def drawn(cls, rng: np.random.Generator, front: float, back: float) -> Self:
        """One person's.

        Args:
            rng: Where the randomness comes from.
            front: Highest y of the heart in mm.
            back: Lowest y of the heart in mm.
        """
        u = rng.uniform
        fat, muscle = u(6, 24), u(14, 22)
        wall = fat + muscle
        radii = (u(112, 132) + fat / 2, u(135, 160) + fat / 2)
        spine = (0.9 * wall - radii[0] + u(24, 36), u(-25, 5))
        dome = (u(130, 180), u(85, 105), u(110, 145))
        return cls(
            middle=(front + u(4, 26) + 0.7 * wall - radii[0], u(-40, -15)),
            drift=(u(-0.1, 0.2), u(-0.15, 0.15)),
            turn=u(-0.3, 0.15),
            radii=radii,
            fat=fat,
            muscle=muscle,
            ribs=(float(rng.integers(9, 13)), u(0, 2 * math.pi)),
            spine=spine,
            aorta=(u(12, 24), u(20, 28)),
            aorta_radius=u(9, 13),
            pad=((front + 10, u(-50, -10)), (u(8, 34), u(25, 60))),
            dome=((u(-85, -65), back + u(14, 30) - dome[1], u(-35, 10)), dome),
            gas=((u(-70, -20), back - u(20, 36), u(25, 60)), (u(15, 40), u(7, 18), u(10, 30))),
        )

    def paint(self, z: Tensor, y: Tensor, x: Tensor, depths: Tensor) -> None:
        """Write the depth in mm below the surface of each region.

        Args:
            z: Heights of the points `(depth, height, width)`.
            y: How far up they lie in the image.
            x: How far right they lie in the image.
            depths: Where to write `(regions, depth, height, width)`; parts of it that lie far outside are left alone.
        """
        up, over = y - self.middle[0] - self.drift[0] * z, x - self.middle[1] - self.drift[1] * z
        cos, sin = math.cos(self.turn), math.sin(self.turn)
        a, b = (up * cos - over * sin) / self.radii[0], (over * cos + up * sin) / self.radii[1]
        # a chest is squarer than an ellipse
        size = (a * a + b * b - 0.3 * (a * b).square_()).clamp_min_(1e-4).sqrt_()
        skin = (1 - size) * size / torch.hypot(a / self.radii[0], b / self.radii[1]).clamp_min_(1e-6)
        muscle = skin - self.fat * (1 - 0.35 * a + 0.2 * b * b)
        depths[0] = skin
        depths[1] = muscle
        depths[2] = muscle - self.muscle * (1 - 0.3 * a)
        depths[5] = self._ribs(z, a, b, muscle)
        self._clear_pad(y, x, depths)
        self._paint_spine(up - self.spine[0], over - self.spine[1], depths)
        self._paint_belly(z, y, x, depths)

    def _clear_pad(self, y: Tensor, x: Tensor, depths: Tensor) -> None:
        """Take muscle and lungs away where fat lies behind the breastbone."""
        (start, middle), (thickness, width) = self.pad
        at = window(y, x, (start, middle), (40.0, width))
        bump = thickness * (1 - ((x[at] - middle) / width).square_())
        rest = torch.maximum(depths[2][at] - bump, -1 - depths[2][at])
        depths[1][at] = torch.minimum(depths[1][at], rest)
        depths[2][at] = torch.minimum(depths[2][at], rest)

    def _paint_spine(self, up: Tensor, over: Tensor, depths: Tensor) -> None:
        """Vertebra, canal, the muscles beside them, and the aorta in front."""
        at = window(up, over, (-4.0, 0.0), (50.0, 55.0))
        up, over = up[at], over[at]
        muscles = oval(up + 16, over, 34.0, 48.0)
        depths[1][at] = torch.maximum(depths[1][at], torch.minimum(muscles, depths[0][at] - 5))
        depths[2][at] = torch.minimum(depths[2][at], -muscles)
        depths[5][at] = torch.maximum(depths[5][at], oval(up, over, 16.0, 20.0))
        depths[6][at] = 9 - torch.hypot(up + 28, over)
        depths[7][at] = self.aorta_radius - torch.hypot(up - self.aorta[0], over - self.aorta[1])

    def _paint_belly(self, z: Tensor, y: Tensor, x: Tensor, depths: Tensor) -> None:
        """What lies under the diaphragm."""
        at = window(y, x, self.dome[0][1:], self.dome[1][1:])
        depths[3][at] = torch.minimum(solid(z[at], y[at], x[at], self.dome), depths[2][at] + 1)
        at = window(y, x, self.gas[0][1:], self.gas[1][1:])
        depths[4][at] = torch.minimum(solid(z[at], y[at], x[at], self.gas), depths[3][at] - 6)

    def _ribs(self, z: Tensor, a: Tensor, b: Tensor, muscle: Tensor) -> Tensor:
        """Slices cut ribs at many angles: short and long pieces of bone in the chest wall."""
        angle, (number, phase) = torch.atan2(b, a), self.ribs
        pieces = 5 * torch.cos(number * angle + (z / 25 + phase) + 1.5 * torch.sin(2 * angle + phase))
        return torch.minimum(3.5 - (muscle - 0.55 * self.muscle).abs_(), pieces - 1)


def window(y: Tensor, x: Tensor, middle: _Place, reach: _Place) -> tuple[slice, slice, slice]:
    """The part of a grid that may hold a thing: looking only there saves most of the time.

    Args:
        y: How far up points lie `(depth, height, width)`.
        x: How far right they lie.
        middle: Middle of the thing `(y, x)`.
        reach: How far it reaches from there.
    """
    spans = [slice(None)]
    for places, other, start, radius in zip((y, x), (2, 1), middle, reach, strict=True):
        radius += _MARGIN
        near = (places.amin((0, other)) < start + radius) & (places.amax((0, other)) > start - radius)
        indices = near.nonzero().flatten().tolist()
        spans.append(slice(indices[0], indices[-1] + 1) if indices else slice(0, 0))
    return spans[0], spans[1], spans[2]


def solid(z: Tensor, y: Tensor, x: Tensor, shape: Solid) -> Tensor:
    """Depth below the surface of an ellipsoid of a middle and half axes `(z, y, x)`, to first order in the distance."""
    middle, radii = shape
    places = [(place - start) / radius for place, start, radius in zip((z, y, x), middle, radii, strict=True)]
    size = (places[0].square() + places[1].square() + places[2].square()).clamp_min_(1e-8).sqrt_()
    slopes = [place.div_(radius).square_() for place, radius in zip(places, radii, strict=True)]
    return (1 - size) * size / (slopes[0] + slopes[1] + slopes[2]).clamp_min_(1e-12).sqrt_()
