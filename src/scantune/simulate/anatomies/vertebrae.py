"""The spine of one person around the cord: vertebrae, discs, and the canal with its fat and fluid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomies.neck import AT
from scantune.simulate.solids import ellipse, smooth_max, smooth_min, superellipse


@dataclass(frozen=True, eq=False)
class VertebralColumn:
    """Vertebrae and discs, and the canal with its fat and fluid; lengths in mm, about the middle of the canal."""

    pitch: float  # from disc to disc
    phase: float
    disc: float
    canal: tuple[float, float]  # half axes (y, x) of the dural sac
    taper: float  # how much wider the canal is in front, per mm
    epidural: float
    body: tuple[float, float]
    pillar: tuple[float, float, float]  # middle (y, x) and size of the stack of facet joints on either side
    lamina: float
    spinous: float
    rough: Sequence[float]  # where the bumps of the bones are

    @classmethod
    def draw(cls, rng: np.random.Generator, sac: tuple[float, float]) -> VertebralColumn:
        """Draw the column of one person around a dural sac of half axes `(y, x)`."""
        return cls(
            pitch=rng.uniform(15, 18),
            phase=rng.uniform(-9, 9),
            disc=rng.uniform(4, 6),
            canal=sac,
            taper=rng.uniform(0.025, 0.065),
            epidural=rng.uniform(0.2, 1.3),
            body=(rng.uniform(7.5, 9.0), rng.uniform(10, 12.5)),
            pillar=(rng.uniform(-2.5, 1.5), sac[1] + rng.uniform(7.0, 8.5), rng.uniform(5.5, 7.0)),
            lamina=rng.uniform(2.8, 4.8),
            spinous=rng.uniform(14, 25),
            rough=rng.uniform(0, 2 * math.pi, 2).tolist(),
        )

    def sac(self, z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Return the depth in the dural sac: a rounded triangle, wide in front."""
        wide = x / (1 + self.taper * y).clamp(0.6, 1.4)
        return ellipse(y / (1 + 0.002 * z).clamp(0.85, 1.15), wide, self.canal)

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor) -> None:
        """Write its depths to `out` `(regions, depth, height, width)`; muscles give way."""
        sac, side = self.sac(z, y, x), x.abs()
        level = (z - self.phase) / self.pitch
        within = (level - level.round()).abs() * self.pitch - self.disc / 2  # depth below the endplates
        # laminae and spinous processes point downwards: they lie half a vertebra lower than the bodies
        lower = torch.cos((level + 0.2) * (2 * math.pi)).neg_()
        canal = sac + self.epidural * (1 - y * (0.5 / self.canal[0])).clamp(0.4, 1.5)
        body = superellipse(y - self.canal[0] - self.epidural * 0.6 - self.body[0], x, self.body, 3.0)
        pillar = ellipse(y - self.pillar[0], side - self.pillar[1], (self.pillar[2], self.pillar[2] * 1.1))
        bumps = torch.sin(x * 0.45 + z * 0.2 + self.rough[0]) + torch.sin(y * 0.5 - z * 0.15 + self.rough[1])
        pillar, body = pillar + bumps, body + bumps * 0.4
        arch = torch.minimum(canal + bumps * 0.5 + (1 + 0.35 * lower) * self.lamina, 3 - y)
        spinous = _spinous(y + self.canal[0], side, lower, self.spinous)
        pedicle = ellipse(y - self.canal[0] * 0.5, side - self.canal[1] - 1.5, (3.4, 4.5))
        sheath = torch.maximum(torch.maximum(body + 0.8, pillar + 0.7), torch.minimum(canal + self.lamina + 0.8, 3 - y))
        nuchal = torch.minimum(1.0 - side, torch.minimum(-y, out[AT["fat"]] - 3))
        sheath = torch.maximum(sheath, nuchal)
        solid = smooth_max(smooth_max(arch, spinous, 5.0), pillar, 4.0)
        solid = torch.maximum(solid, torch.minimum(torch.maximum(body, pedicle), within))
        spongy = torch.maximum(torch.minimum(body - 0.9, within - 0.8), spinous - 1.3)
        spongy = torch.maximum(spongy, torch.minimum(pillar - 1.6, within + y * 0.4))
        for name, depth in (("ligament", sheath), ("disc", body - 1.0), ("bone", solid), ("marrow", spongy)):
            out[AT[name]] = torch.maximum(out[AT[name]], depth)
        out[AT["muscle"]] = torch.minimum(out[AT["muscle"]], -sheath)
        for name, depth in (("epidural fat", canal), ("dura", sac + 0.35), ("CSF", sac)):
            out[AT[name]] = depth


def _spinous(behind: Tensor, side: Tensor, lower: Tensor, length: float) -> Tensor:
    """Return a process that runs backwards from the canal, thickest at mid height and forked at its tip."""
    reach = length * (0.7 + 0.3 * lower)
    fork = (-behind - reach * 0.6).clamp_(0, 6) * 0.35
    blade = 2.2 + 1.0 * lower + (behind + 14).clamp(0, 8) * 0.25 + fork * 0.4 - (side - fork).abs()
    return smooth_min(blade, torch.minimum(behind + reach, 2 - behind), 2.0)
