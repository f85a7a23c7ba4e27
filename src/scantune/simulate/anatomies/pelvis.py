"""The male pelvis of one person: what lies around the prostate, and all of it painted in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.simulate.anatomies.gland import FAR, Gland, Rectum
from scantune.simulate.extents import Extents, Window
from scantune.simulate.fields import sample_at
from scantune.simulate.shaped import Body
from scantune.simulate.solids import Place, Where, conic, distance, quadric, rod, union
from scantune.simulate.subject import Region

REGIONS = (
    Region("skin", "skin"),
    Region("fat", "fat"),
    Region("muscle", "muscle"),
    Region("veins", "blood"),
    Region("bone", "bone"),
    Region("marrow", "marrow"),
    Region("vessels", "vessel", texture=0.0),
    Region("urine", "urine", texture=0.0),
    Region("seminal vesicles", "peripheral zone"),
    Region("peripheral zone", "peripheral zone", "PZ"),
    Region("lesion", "muscle", "PZ"),
    Region("transition zone", "transition zone", "TZ"),
    Region("stroma", "muscle", "TZ"),
    Region("nodules", "peripheral zone", "TZ"),
    Region("rectal wall", "rectal wall"),
    Region("stool", "stool"),
    Region("gas", "air", texture=0.0),
    Region("balloon", "balloon", texture=0.0),
)
"""The parts of the pelvis in the order in which they are painted; the walls of bladder, gland, veins and
seminal vesicles are muscle."""

_MUSCLE, _VEINS, _BONE, _VESICLES, _RECTUM = 2, 3, 4, 8, 14  # where in that order these come
_COARSE = 2  # rows and columns per point at which large shapes are computed
_HIP = 175.0  # mm from the middle of the body to the skin at either side

NOISE_BOX: tuple[Place, Place] = ((-60.0, -80.0, -56.0), (60.0, 48.0, 56.0))
"""Lowest and highest corner of the noise that makes gland and rectum uneven."""
NOISE_STEP: Place = (2.0, 2.0, 2.0)
"""Distances in mm of its points."""


@dataclass(frozen=True)
class Bladder:
    """The bladder of one person: middle and half axes of the urine, and the thickness of its wall, in mm."""

    middle: Place
    half: Place
    wall: float


@dataclass(frozen=True)
class Skin:
    """Where the skin is: positions y in front and behind, and how deep the cleft between the buttocks is, in mm."""

    front: float
    back: float
    cleft: float

    def depth(self, y: Tensor, side: Tensor) -> Tensor:
        """Return the depth below the skin, at a distance `side` from the middle: a rounded box with a cleft behind."""
        half = (self.front - self.back) / 2
        high, wide = (y - (self.front + self.back) / 2) / half, side / _HIP
        value = high.square().square_() + wide.square().square_()
        slope = 4 * torch.hypot(high * high.square() / half, wide * wide.square() / _HIP)
        cleft = 0.9 * side + 0.45 * (y - self.back - self.cleft)
        return ((1 - value) / slope.clamp_min_(1e-2)).minimum(cleft)


@dataclass(frozen=True, eq=False)
class Pelvis(Body):
    """One person.

    Attributes:
        gland: The prostate.
        rectum: What lies behind it.
        bladder: What lies above it.
        skin: What lies around everything.
        forward: How far bones and muscles are in front of their usual place, as a large gland needs room.
        noise: Random fields `(3, depth, height, width)`, coarse to fine, on the points of `NOISE_BOX`.
    """

    gland: Gland
    rectum: Rectum
    bladder: Bladder
    skin: Skin
    forward: float
    noise: Tensor

    def depths(self, at: Where) -> Tensor:
        """Return the depths of all regions, in the order of `REGIONS`."""
        # large shapes have smooth depths, so a quarter of the points is enough for them
        z, y, x = F.avg_pool2d(torch.stack(at, 1), _COARSE, ceil_mode=True).movedim(1, 0).contiguous()
        around = F.interpolate(self._around((z, y, x)), scale_factor=_COARSE, mode="bilinear")
        out = at[0].new_full((len(REGIONS), *at[0].shape), FAR)
        around = around[..., : out.shape[2], : out.shape[3]]
        out[:_VEINS], out[_BONE:_VESICLES] = around[:_VEINS], around[_VEINS:]
        extents = Extents.of(z, y, x, step=_COARSE)
        box = extents.window(*self.gland.box)
        walls, veins, *zones = self._near(self.gland, at, box)
        out[_MUSCLE][box] = walls.maximum(out[_MUSCLE][box])
        out[_VEINS][box] = veins
        for region, depth in enumerate(zones, start=_VESICLES):
            out[region][box] = depth
        box = extents.window(*self.rectum.box)
        for region, depth in enumerate(self._near(self.rectum, at, box), start=_RECTUM):
            out[region][box] = depth
        return out

    def _near(self, organ: Gland | Rectum, at: Where, box: Window) -> list[Tensor]:
        """Return the depths of the parts of an organ in its box."""
        z, y, x = (axis[box].contiguous() for axis in at)
        noise = sample_at(self.noise, NOISE_BOX[0], NOISE_STEP, torch.stack([z, y, x], -1))
        return organ.depths((z, y, x), noise)

    def _around(self, at: Where) -> Tensor:
        """Return the depths `(7, depth, height, width)` of what lies around gland and rectum."""
        z, y, x = at
        side = (z, y - self.forward, x.abs())
        skin = self.skin.depth(y, side[2])
        urine = quadric(at, self.bladder.middle, self.bladder.half)
        muscle = union(_muscles(side), self._levator(side), urine + self.bladder.wall)
        bone = _bones(side)
        # the joint of the pubic bones in the midline has no marrow
        marrow = (bone - 2.2).minimum(torch.maximum(side[2] - 2.5, -y))
        return torch.stack([skin, skin - 2.5, muscle, bone, marrow, _vessels(side), urine])

    def _levator(self, at: Where) -> Tensor:
        """Return the depth below the surface of the sling around gland and rectum, wider the higher, open in front."""
        z, y, x = at
        length, _, wide = self.gland.half
        reach = 0.6 * wide + 8 + 0.32 * (z + length)
        sling = torch.hypot((y + 14) / (reach + 10), x / reach)
        return (1.7 - (reach * (sling - 1)).abs_()).minimum(16 - y).minimum(0.4 * (6 - z))


def _muscles(at: Where) -> Tensor:
    """Return the depth below the surface of obturator, gluteal, hip and thigh muscles of one side."""
    z, y, x = at
    obturator = conic(y - 4, x - 45 - 0.15 * z + 0.1 * y, (38, 9))
    middle = y + 66 + 0.3 * x - 0.0055 * x.square()
    fibres = 5 * torch.sin(0.17 * middle + 0.02 * x + 0.06 * z).abs_() - 0.3
    gluteus = (20 * (1 - ((x - 70) / 68).square_()) - middle.abs()).minimum(fibres)
    hip = conic(y - 46, x - 86, (17, 20))
    thigh = quadric(at, (-18, 28, 62), (40, 19, 19))
    behind = conic(y + 20, x - 92, (15, 23))
    joint = 30 - distance(at, (16, 10, 88))
    return union(obturator, gluteus, hip, thigh, behind, joint)


def _bones(at: Where) -> Tensor:
    """Return the depth below the surface of pubis, ischium, acetabulum, femur and coccyx, of one side."""
    z, y, x = at
    head = distance(at, (16, 10, 88))
    socket = (3.8 - (head - 30.8).abs_()).minimum(86 - x)
    ischium = conic(y + 16 - 0.15 * z, x - 62 - 0.18 * z, (20, 13))
    pubis = quadric((z, y - 0.25 * z + 0.5 * x, x), (4, 47, 11), (24, 17, 12))
    above = rod(at, (12, 44, 10), (28, 26, 62), 9.5)
    below = rod(at, (-4, 38, 12), (-45, 6, 42), 7.5)
    femur = rod(at, (16, 10, 88), (-15, -8, 124), 14.0)
    coccyx = quadric((z, y + 0.3 * z, x), (12, -70, 0), (28, 5.5, 9))
    return union(24 - head, socket, union(ischium, above).minimum(head - 27), pubis, below, femur, coccyx)


def _vessels(at: Where) -> Tensor:
    """Return the depth below the surface of the femoral artery and vein of one side."""
    _, y, x = at
    return torch.maximum(4.5 - torch.hypot(y - 66, x - 64), 5.5 - torch.hypot(y - 62, x - 52))
