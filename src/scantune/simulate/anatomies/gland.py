"""The prostate of one person, and the rectum that touches it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scantune.simulate.solids import Place, Where, conic, distance, quadric, smooth_max

FAR = -50.0
"""Depth in mm of points that are far from a region."""


@dataclass(frozen=True)
class Nodule:
    """A ball of overgrown tissue in the transition zone: glandular (bright in T2w) or stromal (dark)."""

    middle: Place
    radius: float
    glandular: bool


@dataclass(frozen=True)
class Gland:
    """One prostate, and how its rectum presses on it.

    Attributes:
        half: Half of its length, depth and width in mm, before pressure.
        rim: How thick the peripheral zone is at the apex, at the back and at the sides.
        lean: How far its middle moves back per mm upwards.
        notch: Depth in mm of the groove along the back.
        uneven: Shift in mm of the transition zone to one side.
        press: Factor on its depth; 1 where nothing presses.
        bend: Curvature per mm with which it wraps around the rectum.
        nodules: Nodules of the transition zone.
        lesion: Middle and half axes of a dark lesion of the peripheral zone, where there is one.
    """

    half: Place
    rim: Place
    lean: float
    notch: float
    uneven: float
    press: float
    bend: float
    nodules: tuple[Nodule, ...]
    lesion: tuple[Place, Place] | None

    @property
    def middle(self) -> float:
        """Return the position y of its middle: pressure moves the back more than the front."""
        return 0.8 * (1 - self.press) * self.half[1]

    @property
    def back(self) -> float:
        """Return the position y of its back, at mid height in the midline."""
        return self.middle - (self.half[1] - self.notch) * self.press

    @property
    def box(self) -> tuple[Place, Place]:
        """Return the lowest and highest corner of what holds it, its veins and the seminal vesicles."""
        length, deep, wide = self.half
        side, lean = 1.1 * wide / self.widening + 8, self.lean * length
        return (-length - 8, -deep - lean - 14, -side), (length + 20, deep + lean + 12, side)

    @property
    def widening(self) -> float:
        """Factor from the width under pressure to that before: what is pressed gets wider."""
        return float(self.press**0.7)

    def frame(self, at: Where) -> Where:
        """Return coordinates in which nothing presses on the gland, it stands upright and its back has no groove."""
        z, y, x = at
        square = x.square()
        y = (y + self.lean * z - self.middle + self.bend * square / (square / 625 + 1)) / self.press
        behind = (y / -self.half[1]).clamp_(0, 1)
        return z, y - self.notch * behind / (square / 60 + 1), x * self.widening

    def depths(self, at: Where, noise: Tensor) -> list[Tensor]:
        """Return the depths of dark walls, veins, vesicles, peripheral zone, lesion, transition zone, stroma, nodules.

        Args:
            at: Where.
            noise: Random fields `(3, depth, height, width)`, coarse to fine, that make all of them uneven.
        """
        flat = self.frame(at)
        z, y, _ = flat
        coarse, middle, fine = noise
        whole = self._whole(flat).add_(coarse, alpha=0.8)
        plexus = 2.3 + (0.12 * y).clamp_min_(0) - (whole + 4).abs_()
        veins = plexus.minimum(1.5 * fine - 0.5).minimum(0.5 * self.half[0] - z)
        vesicles = self._vesicles(flat)
        strands = (1.5 * fine - 3.3).minimum(whole + 5)
        walls = torch.maximum(whole + 0.9, veins + 0.7).maximum(vesicles).maximum(strands)
        lesion = torch.full_like(z, FAR) if self.lesion is None else quadric(flat, *self.lesion).minimum(whole)
        shell = whole - (0.075 * self.half[1] - 0.15 * y).clamp_(0, 2)
        lobes = self._lobes(flat).add_(middle, alpha=0.8).minimum(shell)
        front = self._front(flat).add_(middle, alpha=0.6).minimum(whole)
        dark, bright = self._mixture(flat, lobes, fine)
        tubes = vesicles.minimum(2.5 * fine.abs() - 0.6)
        return [walls, veins, tubes, whole, lesion, lobes.maximum(front), dark.maximum(front), bright]

    def _whole(self, at: Where) -> Tensor:
        """Return the depth below its surface: a chestnut, wide at the base and at the back."""
        z, y, x = (axis / half for axis, half in zip(at, self.half, strict=True))
        x = x / (1 + 0.16 * z - 0.2 * y)
        z, y, x = z.square(), y.square(), x.square()
        one, two, three = (1 / half**2 for half in self.half)
        slope = (z * one).add_(y, alpha=two).add_(x, alpha=three).sqrt_().mul_(2).clamp_min_(1e-2)
        return (1 - x - y - z * (0.6 + 0.4 * z)) / slope

    def _lobes(self, at: Where) -> Tensor:
        """Return the depth below the surface of the two lobes of the transition zone, not yet cut by the gland."""
        (length, deep, wide), (apex, back, side) = self.half, self.rim
        reach = wide - side
        x = (at[2] - self.uneven).abs_()
        middle = (apex / 2, back / 2, 0.44 * reach)
        lobe = quadric((at[0], at[1], x), middle, (length - apex / 2, deep - back / 2, 0.56 * reach))
        return smooth_max(lobe, 2.5 - x, 4.0).minimum(lobe + 4)

    def _front(self, at: Where) -> Tensor:
        """Return the depth below the surface of the muscle in front of the transition zone and around the urethra."""
        z, y, x = at
        length, deep, wide = self.half
        front = quadric(at, (0.0, deep, 0.0), (1.1 * length, 0.36 * deep, 0.6 * wide))
        urethra = (3.5 - torch.hypot(y - 0.15 * deep, x)).minimum(-0.3 * length - z)
        return torch.maximum(front, urethra)

    def _vesicles(self, at: Where) -> Tensor:
        """Return the depth below the surface of the seminal vesicles."""
        length, deep, wide = self.half
        x = at[2].abs()
        return quadric((at[0] - 0.25 * x, at[1], x), (length + 1, -0.85 * deep, 0.62 * wide), (9, 7, 0.72 * wide))

    def _mixture(self, at: Where, lobes: Tensor, fine: Tensor) -> tuple[Tensor, Tensor]:
        """Return the depths of stromal (with dark rims of lobes and nodules) and of glandular tissue of the lobes."""
        dark = torch.maximum(-1.5 * fine - 1.6, 0.6 - (lobes - 0.5).abs_())
        bright = 1.5 * fine - 1.0
        patchy = 1.6 - 1.5 * fine
        for nodule in self.nodules:
            outside = distance(at, nodule.middle).sub_(nodule.radius)
            dark, bright = dark.minimum(outside), bright.minimum(outside)
            if nodule.glandular:
                dark = dark.maximum(0.5 - outside.abs())
                bright = bright.maximum((-0.8 - outside).minimum(patchy))
            else:
                dark = dark.maximum(patchy.minimum(-outside))
        return dark.minimum(lobes), bright.minimum(lobes - 1.2)


@dataclass(frozen=True)
class Rectum:
    """The rectum of one person: a tube along z.

    Attributes:
        middle: Position y of its middle at the height of the middle of the gland.
        lumen: Half of its depth and width in mm.
        wall: Thickness of its wall.
        level: Height, in half depths about the middle, of the surface of the stool under the gas.
        balloon: Whether it is filled by a coil's balloon.
    """

    middle: float
    lumen: tuple[float, float]
    wall: float
    level: float
    balloon: bool

    @property
    def box(self) -> tuple[Place, Place]:
        """Return the lowest and highest corner of what holds it, as far as slices reach."""
        deep, side = self.lumen[0] + self.wall + 15, self.lumen[1] + self.wall + 6
        return (-100.0, self.middle - deep, -side), (100.0, self.middle + deep, side)

    def depths(self, at: Where, noise: Tensor) -> list[Tensor]:
        """Return the depths of wall, stool, gas and balloon; `noise` makes the lining uneven."""
        z, y, x = at
        y = y - self.middle + 0.12 * z + 0.002 * z.square()
        nowhere = torch.full_like(y, FAR)
        if self.balloon:
            lumen = conic(y, x, self.lumen)
            return [lumen + self.wall, nowhere, nowhere, lumen]
        y = y + 0.012 * x.square()
        lumen = conic(y, x, self.lumen)
        lining = lumen + noise[1]
        return [lumen + self.wall, lining, lining.minimum(y - self.level * self.lumen[0]), nowhere]
