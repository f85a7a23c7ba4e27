"""The cervical spinal cord of one person: white and grey matter, and the roots of its nerves.

Sizes follow what the public Spinal Cord Grey Matter Challenge scans show (T2*-weighted, manual masks): cords of 63 to
102 mm2, 11 to 16 mm wide and 7 to 10 mm deep, with 11 to 22 mm2 of grey matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomies.neck import AT, FAR
from scantune.simulate.anatomies.vertebrae import VertebralColumn
from scantune.simulate.solids import ellipse, smooth_max, wedge

_ENLARGED = 26.0  # mm along z over which the cervical enlargement fades


@dataclass(frozen=True, eq=False)
class Cord:
    """White and grey matter and nerve roots; lengths in mm, about the middle of the cord."""

    half: tuple[float, float]  # (y, x), away from the enlargement
    enlargement: float  # z of its middle
    swell: float
    dent: float
    grey: float  # size of the horns relative to the cord
    lean: float  # how much the horns tilt to one side
    rim: float  # fluid that is always left around the cord
    horn: tuple[float, float]  # tip (y, x) of the posterior horns
    roots: Sequence[float]
    front: tuple[float, float] = (1.65, 2.55)  # tip (y, x) of the anterior horns
    apart: float = 0.0  # how much further apart these tips are at the enlargement
    bridge: tuple[float, float] = (0.7, 0.8)  # y of the commissure, in the middle and where it ends

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Cord:
        """Draw the cord of one person."""
        area = float(np.clip(rng.normal(82, 6), 67, 92))
        aspect = float(np.clip(rng.normal(1.5, 0.14), 1.25, 1.9))
        half = math.sqrt(area / math.pi / aspect)
        return cls(
            half=(half, half * aspect),
            enlargement=rng.uniform(-30, -8),
            swell=rng.uniform(0.06, 0.14),
            dent=rng.uniform(-0.15, 0.2),
            grey=float(np.clip(rng.normal(1.0, 0.06), 0.88, 1.12)),
            lean=rng.normal(0, 0.03),
            rim=rng.uniform(0.8, 1.3),
            horn=(rng.uniform(-2.8, -2.2), rng.uniform(2.9, 3.8)),
            roots=rng.uniform(-0.2, 0.2, 4).tolist(),
        )

    @classmethod
    def draw_any(cls, rng: np.random.Generator) -> Cord:
        """Draw a cord that may be larger, rounder or flatter, with horns of the forms that different levels have."""
        area, aspect, bridge = rng.uniform(65, 100), rng.uniform(1.1, 1.9), rng.uniform(0.3, 1.1)
        half = math.sqrt(area / math.pi / aspect)
        return replace(
            cls.draw(rng),
            half=(half, half * aspect),
            grey=rng.uniform(0.7, 1.15),
            rim=rng.uniform(0.4, 1.3),
            horn=(rng.uniform(-2.9, -1.7), rng.uniform(2.2, 3.8)),
            front=(rng.uniform(1.2, 2.4), rng.uniform(1.3, 2.7)),
            apart=rng.uniform(0.0, 0.8),
            bridge=(bridge, bridge + rng.uniform(-0.1, 0.2)),
        )

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, column: VertebralColumn) -> None:
        """Write its depths to `out` `(regions, depth, height, width)`, and leave room for fluid around it."""
        large = ((z - self.enlargement) / _ENLARGED).square().neg_().exp_()
        wide = x / (1 + self.swell * large)
        deep, side = y / self.half[0], wide.abs() / self.half[1]
        round_ = ellipse(y, wide, self.half)
        # low-order irregularity: a flatter front, a shallow groove behind
        cord = round_ + self.dent * deep.clamp(-1, 1) * (1 - 3 * side.clamp_max(1).square())
        out[AT["white matter"]] = cord
        for name, width in (("CSF", 0.0), ("dura", 0.35), ("epidural fat", 0.6)):
            out[AT[name]] = smooth_max(out[AT[name]], cord + self.rim + width, 1.0)
        out[AT["fissure"]] = torch.minimum(torch.minimum(-0.1 - x.abs(), y - 0.45 * self.half[0]), cord)
        grey = self._butterfly(deep * 4.2, (wide / self.half[1] + self.lean * deep).mul_(6.2), large)
        out[AT["grey matter"]] = torch.minimum(grey, cord - 0.5)
        turn = (z - column.phase) / column.pitch
        out[AT["nerve roots"]] = torch.minimum(self._roots(turn, y, x, column), out[AT["CSF"]] - 0.3)

    def _butterfly(self, y: Tensor, x: Tensor, large: Tensor) -> Tensor:
        """Return the depth in the grey matter of a cord with half axes of 4.2 and 6.2 mm."""
        side = x.abs()
        thick = self.grey * (0.82 + 0.15 * large)
        tip = self.front[1] + self.apart * large if self.apart else self.front[1]
        anterior = wedge(y, side, ((0.9, 1.6), (self.front[0], tip)), (0.72 * thick, 1.05 * thick))
        posterior = wedge(y, side, ((0.7, 1.6), self.horn), (0.56 * thick, 0.45 * thick))
        commissure = wedge(y, side, ((self.bridge[0], 0.0), (self.bridge[1], 1.7)), (0.42 * thick, 0.55 * thick))
        return smooth_max(smooth_max(anterior, posterior, 0.4), commissure, 0.4)

    def _roots(self, turn: Tensor, y: Tensor, x: Tensor, column: VertebralColumn) -> Tensor:
        """Return rods that run outwards from the front and the back of the cord, lower in a level the further out."""
        best = torch.full_like(y, FAR)
        for place, (front, side) in enumerate(((0.8, -1), (0.8, 1), (-0.75, -1), (-0.75, 1))):
            share = 1 - (turn + self.roots[place]).remainder(1.0)
            at_x = side * (self.half[1] * 0.75 + share * (column.canal[1] - self.half[1] * 0.75))
            at_y = front * self.half[0] * (1.15 - share * 0.9)
            best = torch.maximum(
                best, wedge(y - at_y, x - at_x, ((0.3 * front, -0.5 * side), (0.0, 0.5 * side)), (0.35, 0.35))
            )
        return best
