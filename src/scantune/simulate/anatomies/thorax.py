"""The chest around the heart, as short-axis slices cut it: y is up and x is right in the image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.extents import Extents, Window
from scantune.simulate.solids import Place, ellipse, ellipsoid
from scantune.simulate.subject import Region

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

_Pair = tuple[float, float]
Solid = tuple[Place, Place]
"""Middle and half axes of an ellipsoid."""


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

    middle: _Pair
    drift: _Pair
    turn: float
    radii: _Pair
    fat: float
    muscle: float
    ribs: _Pair
    spine: _Pair
    aorta: _Pair
    aorta_radius: float
    pad: tuple[_Pair, _Pair]
    dome: Solid
    gas: Solid

    @classmethod
    def drawn(cls, rng: np.random.Generator, front: float, back: float) -> Self:
        """Draw the thorax of one person.

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

    def paint(self, z: Tensor, y: Tensor, x: Tensor, extents: Extents, depths: Tensor) -> None:
        """Write the depth in mm below the surface of each region.

        Args:
            z: Heights of the points `(depth, height, width)`.
            y: How far up they lie in the image.
            x: How far right they lie in the image.
            extents: Of these three.
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
        self._clear_pad(_near(extents, self.pad[0], (40.0, self.pad[1][1])), x, depths)
        self._paint_spine(z, up - self.spine[0], over - self.spine[1], depths)
        self._paint_belly(z, y, x, extents, depths)

    def _clear_pad(self, at: Window, x: Tensor, depths: Tensor) -> None:
        """Take muscle and lungs away where fat lies behind the breastbone."""
        (_, middle), (thickness, width) = self.pad
        bump = thickness * (1 - ((x[at] - middle) / width).square_())
        rest = torch.maximum(depths[2][at] - bump, -1 - depths[2][at]).masked_fill_(bump < 0, math.inf)
        depths[1][at] = torch.minimum(depths[1][at], rest)
        depths[2][at] = torch.minimum(depths[2][at], rest)

    def _paint_spine(self, z: Tensor, up: Tensor, over: Tensor, depths: Tensor) -> None:
        """Paint the vertebra, the canal, the muscles beside them, and the aorta in front."""
        at = _near(Extents.of(z, up, over), (-4.0, 0.0), (50.0, 55.0))
        up, over = up[at], over[at]
        muscles = ellipse(up + 16, over, (34.0, 48.0))
        depths[1][at] = torch.maximum(depths[1][at], torch.minimum(muscles, depths[0][at] - 5))
        depths[2][at] = torch.minimum(depths[2][at], -muscles)
        depths[5][at] = torch.maximum(depths[5][at], ellipse(up, over, (16.0, 20.0)))
        depths[6][at] = 9 - torch.hypot(up + 28, over)
        depths[7][at] = self.aorta_radius - torch.hypot(up - self.aorta[0], over - self.aorta[1])

    def _paint_belly(self, z: Tensor, y: Tensor, x: Tensor, extents: Extents, depths: Tensor) -> None:
        """Paint the organs under the diaphragm."""
        at = _near(extents, self.dome[0][1:], self.dome[1][1:])
        depths[3][at] = torch.minimum(ellipsoid((z[at], y[at], x[at]), *self.dome), depths[2][at] + 1)
        at = _near(extents, self.gas[0][1:], self.gas[1][1:])
        depths[4][at] = torch.minimum(ellipsoid((z[at], y[at], x[at]), *self.gas), depths[3][at] - 6)

    def _ribs(self, z: Tensor, a: Tensor, b: Tensor, muscle: Tensor) -> Tensor:
        """Return the depth of ribs, which slices cut at many angles into short and long pieces of bone."""
        angle, (number, phase) = torch.atan2(b, a), self.ribs
        pieces = 5 * torch.cos(number * angle + (z / 25 + phase) + 1.5 * torch.sin(2 * angle + phase))
        return torch.minimum(3.5 - (muscle - 0.55 * self.muscle).abs_(), pieces - 1)


def _near(extents: Extents, middle: _Pair, reach: _Pair) -> Window:
    """Return the part of a grid in which the depth of a body of this middle and reach `(y, x)` matters."""
    return extents.around(middle, (reach[0] + _MARGIN, reach[1] + _MARGIN))
