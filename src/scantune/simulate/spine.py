"""The neck around the cervical spinal cord, from C2 to C7: grey and white matter, canal, vertebrae, muscles, airway.

Sizes follow what the public Spinal Cord Grey Matter Challenge scans show (T2*-weighted, manual masks): cords of 63 to
102 mm2, 11 to 16 mm wide and 7 to 10 mm deep, with 11 to 22 mm2 of grey matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.deform import Wobble
from scantune.simulate.shaped import Body, Shaped
from scantune.simulate.solids import smooth_max, smooth_min, superellipse
from scantune.simulate.subject import FieldOfView, Region

REGIONS = (
    Region("skin", "skin"),
    Region("fat", "fat"),
    Region("ligament", "ligament"),
    Region("muscle", "muscle"),
    Region("airway", "air", texture=0.0),
    Region("vessels", "blood", texture=0.3),
    Region("disc", "disc"),
    Region("bone", "bone"),
    Region("marrow", "marrow"),
    Region("epidural fat", "fat"),
    Region("dura", "ligament"),
    Region("CSF", "spinal CSF", texture=0.0),
    Region("nerve roots", "cord white"),
    Region("white matter", "cord white", "WM"),
    Region("fissure", "spinal CSF", "WM", texture=0.0),  # masks drawn by hand count it to the cord
    Region("grey matter", "cord grey", "GM"),
)
_AT = {region.name: place for place, region in enumerate(REGIONS)}
_FAR = -99.0  # mm; the depth of points that are nowhere near a region
_SKIP = 4  # points of a grid from one that is looked at to the next where only the extent of a region is sought
_ENLARGED = 26.0  # mm along z over which the cervical enlargement fades

# Middle (y, x), half axes (y, x) in mm and turn in degrees of the muscles of the right side, in a neck of mean size.
_MUSCLES = (
    (-42.0, 16.0, 4.5, 24.0, -24.0),  # trapezius
    (-32.0, 24.0, 6.0, 19.0, -38.0),  # splenius
    (-26.0, 9.0, 9.5, 6.5, 8.0),  # semispinalis capitis
    (-15.0, 10.5, 6.0, 6.0, 30.0),  # semispinalis cervicis and multifidus
    (-12.0, 39.0, 11.0, 7.0, -20.0),  # levator scapulae
    (-5.0, 28.0, 8.0, 6.5, 0.0),  # longissimus and scalenes
    (14.0, 48.0, 14.0, 6.0, -14.0),  # sternocleidomastoid
    (26.0, 8.0, 4.0, 8.5, 10.0),  # longus colli
    (33.0, 2.0, 3.5, 8.0, 0.0),  # oesophagus
    (24.0, 30.0, 8.0, 10.0, 0.0),  # around the carotid sheath
    (50.0, 17.0, 11.0, 13.0, 30.0),  # floor of the mouth, strap muscles
)


# Middle (y, x), radius and how much longer than wide they may be.
_VESSELS = (
    (13.0, 15.0, 2.3, 1.2),  # vertebral artery
    (24.0, 28.0, 3.1, 1.1),  # carotid
    (20.0, 36.0, 4.2, 1.6),  # internal jugular
    (30.0, 26.0, 1.6, 1.5),
    (5.0, 37.0, 1.6, 2.0),
    (-9.0, 21.0, 1.2, 2.5),
    (-15.0, 16.0, 1.5, 2.5),
    (-20.0, 6.0, 0.9, 2.5),
    (-24.0, 15.0, 1.0, 2.5),
)


def _rise(value: Tensor, width: float) -> Tensor:
    """From 0 far below 0 to 1 far above it."""
    return torch.sigmoid(value * (4 / width))


def _rod(
    y: Tensor, x: Tensor, ends: Sequence[tuple[float, float]], radii: tuple[Tensor | float, Tensor | float]
) -> Tensor:
    """Depth below the surface of a rod with round ends whose radius changes from one end to the other."""
    (start_y, start_x), (end_y, end_x) = ends
    run_y, run_x = end_y - start_y, end_x - start_x
    along = ((y - start_y) * run_y + (x - start_x) * run_x).div_(run_y**2 + run_x**2).clamp_(0, 1)
    radius = radii[0] + along * (radii[1] - radii[0])
    return radius - torch.hypot(y - start_y - along * run_y, x - start_x - along * run_x)


def _box(inside: Tensor) -> tuple[slice, slice, slice]:
    """The part of a grid around all points that are inside.

    Args:
        inside: Every `_SKIP`th point of the rows and columns of a grid `(depth, height, width)`, bool.
    """
    spans = []
    for axis in (2, 1):
        there = inside.any(0).any(axis - 1).nonzero()
        first, last = (int(there[0]), int(there[-1])) if len(there) else (0, -1)
        spans.append(slice(max(first - 1, 0) * _SKIP, (last + 1) * _SKIP))
    return slice(None), spans[0], spans[1]


def _middle_box(y: Tensor, x: Tensor, low: float, high: float, side: float) -> tuple[slice, slice, slice]:
    """The part of a grid that holds all points between two y and within `side` of the middle."""
    y, x = y[:, ::_SKIP, ::_SKIP], x[:, ::_SKIP, ::_SKIP]
    return _box((y > low) & (y < high) & (x.abs() < side))


@dataclass(frozen=True, eq=False)
class _Neck:
    """Skin, fat, muscles with their septa, airway, jaw and vessels; lengths in mm."""

    back: float
    front: float
    side: float
    skin: float
    fat: float
    flat: float  # how much of the back the table presses flat
    jaw: float  # z above which the jaw is seen
    septum: float
    fibres: float  # turns of the streaks in the muscles
    phases: Sequence[float]
    forms: np.ndarray  # (muscles, 6): squared distance to each muscle's middle as a form in y2, x2, yx, y, x, 1
    dots: np.ndarray  # (vessels, 6): depth in each vessel, likewise
    airway: tuple[float, float]

    @classmethod
    def draw(cls, rng: np.random.Generator) -> _Neck:
        back, front, side = rng.uniform(42, 56), rng.uniform(54, 70), rng.uniform(50, 62)
        return cls(
            back=back,
            front=front,
            side=side,
            skin=rng.uniform(1.2, 2.0),
            fat=rng.uniform(1.5, 6.0),
            flat=rng.uniform(-6, 6),
            jaw=rng.uniform(-5, 45),
            septum=rng.uniform(0.15, 0.7),
            fibres=rng.uniform(0.05, 0.35),
            phases=rng.uniform(0, 2 * math.pi, 2).tolist(),
            forms=_muscle_forms(rng, back / 50, side / 57),
            dots=_vessel_forms(rng),
            airway=(rng.uniform(36, 42), rng.uniform(0.85, 1.2)),
        )

    def outline(self, z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Depth below the skin."""
        shoulders, chin = _rise(-z - 55, 30), _rise(z - self.jaw - 8, 25)
        away = y - (self.front - self.back) / 2
        away = away / (1 + 0.55 * chin * (away > 0))
        depth = superellipse(away, x / (1 + 0.45 * shoulders), ((self.front + self.back) / 2, self.side))
        return smooth_min(depth, y + self.back - self.flat, 12.0)

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, outline: Tensor) -> None:
        """Write the depths of all but the skin to `out` `(regions, depth, height, width)`."""
        wave_y, wave_x = torch.sin(y * 0.08 + self.phases[0]), torch.sin(x * 0.09 + self.phases[1])
        flesh = outline - self.skin
        out[_AT["fat"]] = flesh
        gap = self._septa(z, y, x + 1.5 * wave_y) - (wave_x + wave_y).mul_(0.5).add_(0.6).mul_(self.septum)
        # broken streaks of fat along the fibres of the muscles behind the spine
        bent = torch.sin(y * 0.3 + x.abs() * self.fibres + 2.5 * wave_x + 1.5 * wave_y).abs_().mul_(2.5)
        streaks = bent.sub_(wave_y * wave_x).add_(y.add(10).clamp_min_(0))
        inner = flesh - (1.0 - y * (0.5 / self.back)).clamp_(0.5, 1.5).mul_(self.fat)
        out[_AT["ligament"]] = torch.minimum(torch.minimum(gap, streaks + 0.1), inner)
        out[_AT["muscle"]] = torch.minimum(torch.minimum(gap - 0.35, streaks), inner - 0.3)
        near = _middle_box(y, x, -32, 40, 46)
        out[_AT["vessels"]][near] = _forms(self.dots, y[near] + 0.05 * z[near], x[near]).amax(0)
        self._front(out, z, y, x, outline)

    def _septa(self, z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Distance in mm, more or less, to the nearest border between muscles."""
        side, along = x.abs(), y + z * 0.05
        distances = _forms(self.forms, along, side)
        nearest, second = torch.minimum(distances[0], distances[1]), torch.maximum(distances[0], distances[1])
        for distance in distances[2:]:
            second = torch.minimum(second, torch.maximum(nearest, distance))
            nearest = torch.minimum(nearest, distance)
        gap = second.clamp_min_(0).sqrt_().sub_(nearest.clamp_min_(0).sqrt_()).mul_(4.0)
        return torch.where(y < 0, torch.minimum(gap, side), gap)

    def _front(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, outline: Tensor) -> None:
        """Airway, wide and flat behind the mouth, round below the larynx; lower jaw at high z."""
        place, scale = self.airway
        near = _middle_box(y, x, place - 14, place + 14, 20)
        up = _rise(z[near] - self.jaw + 15, 20)
        low = superellipse(y[near] - place, x[near], (7.5 * scale, 7.0 * scale))
        high = superellipse(y[near] - place + 2, x[near], (4.0 * scale, 11.0 * scale))
        out[_AT["airway"]][near] = torch.lerp(low, high, up)
        band = torch.minimum(5.0 - (outline - 13).abs(), smooth_min(y - 22, z - self.jaw, 4.0))
        out[_AT["bone"]] = band
        out[_AT["marrow"]] = band - 1.8


def _forms(factors: np.ndarray, y: Tensor, x: Tensor) -> Tensor:
    features = torch.stack([y.square(), x.square(), y * x, y, x, torch.ones_like(x)])
    return (y.new_tensor(factors) @ features.flatten(1)).view(-1, *y.shape)


def _muscle_forms(rng: np.random.Generator, deep: float, wide: float) -> np.ndarray:
    forms = []
    for y, x, half_y, half_x, turn in _MUSCLES:
        place = (y * (deep if y < 0 else 1.0), x * (wide if x > 20 else 1.0))
        half = np.array([half_y, half_x]) * rng.uniform(0.85, 1.15, 2)
        forms.append(_form(place + rng.normal(0, 1.2, 2), half, math.radians(turn + rng.normal(0, 6))))
    return np.array(forms, dtype=np.float32)


def _vessel_forms(rng: np.random.Generator) -> np.ndarray:
    """Vertebral arteries, carotids, jugular veins, and veins between the muscles of the back."""
    forms = []
    for y, x, radius, stretch in _VESSELS:
        for side in (-1, 1):
            middle = np.array([y, side * x]) + rng.normal(0, 0.07 * math.hypot(y, x), 2)
            size = radius * rng.uniform(0.5, 1.2)
            form = _form(middle, np.array([size, size * rng.uniform(1, stretch)]), rng.uniform(0, math.pi))
            # half of 1 - (distance / radius)^2, times the radius, is the depth to first order
            forms.append((np.array([0, 0, 0, 0, 0, 1]) - form) * (size / 2))
    return np.array(forms, dtype=np.float32)


def _form(middle: np.ndarray, half: np.ndarray, angle: float) -> np.ndarray:
    """Squared distance from an ellipse's middle relative to its half axes: factors of y2, x2, yx, y, x and 1."""
    cos, sin = math.cos(angle), math.sin(angle)
    axes = np.array([[cos, -sin], [sin, cos]]) / half[:, None]
    metric = axes.T @ axes
    return np.array([metric[0, 0], metric[1, 1], 2 * metric[0, 1], *(-2 * metric @ middle), middle @ metric @ middle])


@dataclass(frozen=True, eq=False)
class _Column:
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
    def draw(cls, rng: np.random.Generator, sac: tuple[float, float]) -> _Column:
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
        """Depth in the dural sac: a rounded triangle, wide in front."""
        wide = x / (1 + self.taper * y).clamp(0.6, 1.4)
        return superellipse(y / (1 + 0.002 * z).clamp(0.85, 1.15), wide, self.canal)

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor) -> None:
        sac, side = self.sac(z, y, x), x.abs()
        level = (z - self.phase) / self.pitch
        within = (level - level.round()).abs() * self.pitch - self.disc / 2  # depth below the endplates
        # laminae and spinous processes point downwards: they lie half a vertebra lower than the bodies
        lower = torch.cos((level + 0.2) * (2 * math.pi)).neg_()
        canal = sac + self.epidural * (1 - y * (0.5 / self.canal[0])).clamp(0.4, 1.5)
        body = superellipse(y - self.canal[0] - self.epidural * 0.6 - self.body[0], x, self.body, 3.0)
        pillar = superellipse(y - self.pillar[0], side - self.pillar[1], (self.pillar[2], self.pillar[2] * 1.1))
        bumps = torch.sin(x * 0.45 + z * 0.2 + self.rough[0]) + torch.sin(y * 0.5 - z * 0.15 + self.rough[1])
        pillar, body = pillar + bumps, body + bumps * 0.4
        arch = torch.minimum(canal + bumps * 0.5 + (1 + 0.35 * lower) * self.lamina, 3 - y)
        spinous = _spinous(y + self.canal[0], side, lower, self.spinous)
        pedicle = superellipse(y - self.canal[0] * 0.5, side - self.canal[1] - 1.5, (3.4, 4.5))
        sheath = torch.maximum(torch.maximum(body + 0.8, pillar + 0.7), torch.minimum(canal + self.lamina + 0.8, 3 - y))
        nuchal = torch.minimum(1.0 - side, torch.minimum(-y, out[_AT["fat"]] - 3))
        sheath = torch.maximum(sheath, nuchal)
        solid = smooth_max(smooth_max(arch, spinous, 5.0), pillar, 4.0)
        solid = torch.maximum(solid, torch.minimum(torch.maximum(body, pedicle), within))
        spongy = torch.maximum(torch.minimum(body - 0.9, within - 0.8), spinous - 1.3)
        spongy = torch.maximum(spongy, torch.minimum(pillar - 1.6, within + y * 0.4))
        for name, depth in (("ligament", sheath), ("disc", body - 1.0), ("bone", solid), ("marrow", spongy)):
            out[_AT[name]] = torch.maximum(out[_AT[name]], depth)
        out[_AT["muscle"]] = torch.minimum(out[_AT["muscle"]], -sheath)
        for name, depth in (("epidural fat", canal), ("dura", sac + 0.35), ("CSF", sac)):
            out[_AT[name]] = depth


def _spinous(behind: Tensor, side: Tensor, lower: Tensor, length: float) -> Tensor:
    """A process that runs backwards from the canal, thickest in the middle of its height, forked at its tip."""
    reach = length * (0.7 + 0.3 * lower)
    fork = (-behind - reach * 0.6).clamp_(0, 6) * 0.35
    blade = 2.2 + 1.0 * lower + (behind + 14).clamp(0, 8) * 0.25 + fork * 0.4 - (side - fork).abs()
    return smooth_min(blade, torch.minimum(behind + reach, 2 - behind), 2.0)


@dataclass(frozen=True, eq=False)
class _Cord:
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

    @classmethod
    def draw(cls, rng: np.random.Generator) -> _Cord:
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

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, column: _Column) -> None:
        large = ((z - self.enlargement) / _ENLARGED).square().neg_().exp_()
        wide = x / (1 + self.swell * large)
        deep, side = y / self.half[0], wide.abs() / self.half[1]
        round_ = superellipse(y, wide, self.half)
        # low-order irregularity: a flatter front, a shallow groove behind
        cord = round_ + self.dent * deep.clamp(-1, 1) * (1 - 3 * side.clamp_max(1).square())
        out[_AT["white matter"]] = cord
        for name, width in (("CSF", 0.0), ("dura", 0.35), ("epidural fat", 0.6)):
            out[_AT[name]] = smooth_max(out[_AT[name]], cord + self.rim + width, 1.0)
        out[_AT["fissure"]] = torch.minimum(torch.minimum(-0.1 - x.abs(), y - 0.45 * self.half[0]), cord)
        grey = self._butterfly(deep * 4.2, (wide / self.half[1] + self.lean * deep).mul_(6.2), large)
        out[_AT["grey matter"]] = torch.minimum(grey, cord - 0.5)
        turn = (z - column.phase) / column.pitch
        out[_AT["nerve roots"]] = torch.minimum(self._roots(turn, y, x, column), out[_AT["CSF"]] - 0.3)

    def _butterfly(self, y: Tensor, x: Tensor, large: Tensor) -> Tensor:
        """Depth in the grey matter of a cord with half axes of 4.2 and 6.2 mm."""
        side = x.abs()
        thick = self.grey * (0.82 + 0.15 * large)
        anterior = _rod(y, side, ((0.9, 1.6), (1.65, 2.55)), (0.72 * thick, 1.05 * thick))
        posterior = _rod(y, side, ((0.7, 1.6), self.horn), (0.56 * thick, 0.45 * thick))
        commissure = _rod(y, side, ((0.7, 0.0), (0.8, 1.7)), (0.42 * thick, 0.55 * thick))
        return smooth_max(smooth_max(anterior, posterior, 0.4), commissure, 0.4)

    def _roots(self, turn: Tensor, y: Tensor, x: Tensor, column: _Column) -> Tensor:
        """Rods from the front and the back of the cord outwards, further out the lower in a level."""
        best = torch.full_like(y, _FAR)
        for place, (front, side) in enumerate(((0.8, -1), (0.8, 1), (-0.75, -1), (-0.75, 1))):
            share = 1 - (turn + self.roots[place]).remainder(1.0)
            at_x = side * (self.half[1] * 0.75 + share * (column.canal[1] - self.half[1] * 0.75))
            at_y = front * self.half[0] * (1.15 - share * 0.9)
            best = torch.maximum(
                best, _rod(y - at_y, x - at_x, ((0.3 * front, -0.5 * side), (0.0, 0.5 * side)), (0.35, 0.35))
            )
        return best


@dataclass(frozen=True, eq=False)
class SpineBody(Body):
    """One neck, bent along a curve; lengths in mm."""

    neck: _Neck
    column: _Column
    cord: _Cord
    middle: tuple[float, float]  # of the cord at z = 0, (y, x)
    place: tuple[float, float]  # of the canal's middle relative to the cord's
    bend: tuple[float, float, float]  # slope and bow of the curve in y, slope in x; mm at z = 50 mm

    def depths(self, points: Tensor) -> Tensor:
        """Depths below the surfaces of all regions."""
        out = points.new_full((len(REGIONS), *points.shape[:-1]), _FAR)
        # slice by slice a CPU works within its cache, a GPU is faster with all at once
        step = 1 if points.device.type == "cpu" else len(points)
        for first in range(0, len(points), step):
            self._paint(out[:, first : first + step], points[first : first + step])
        return out

    def _paint(self, out: Tensor, points: Tensor) -> None:
        z, y, x = (axis.contiguous() for axis in points.unbind(-1))
        height = z / 50
        y = y - height * (self.bend[0] + self.bend[1] * height) - self.middle[0]
        x = x - height * self.bend[2] - self.middle[1]
        outline = self.neck.outline(z, y, x)
        out[_AT["skin"]] = outline
        near = _box(outline[:, ::_SKIP, ::_SKIP] > -2)
        z, y, x, out = z[near], y[near], x[near], out[:, *near]
        self.neck.paint(out, z, y, x, outline[near])
        near = _middle_box(y, x, -self.neck.back, 32, 30)
        z, y, x, out = z[near], y[near], x[near], out[:, *near]
        self.column.paint(out, z, y - self.place[0], x - self.place[1])
        near = _middle_box(y, x, -12, 12, 16)
        self.cord.paint(out[:, *near], z[near], y[near], x[near], self.column)


@dataclass(frozen=True)
class Spine(Shaped):
    """Axial scans of the neck; grey and white matter together are the cord."""

    regions = REGIONS
    labels = MappingProxyType({"GM": 1, "WM": 2})
    wobble: ClassVar[Wobble] = Wobble(scales=((40.0, 1.2), (12.0, 0.25)), size=(1.0, 0.01), proportions=0.01, tilt=1.8)

    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> SpineBody:  # noqa: ARG002
        """One person's neck."""
        neck, cord = _Neck.draw(rng), _Cord.draw(rng)
        # fluid in front of, behind and beside the cord
        front, back, side = rng.uniform(1.6, 5.4), rng.uniform(1.0, 2.5), rng.uniform(3.6, 6.0)
        half = (cord.half[0] + (front + back) / 2, cord.half[1] + side)
        column = _Column.draw(rng, half)
        middle = (rng.uniform(-5, 5), rng.uniform(-4, 4))
        place = ((front - back) / 2, float(np.clip(rng.normal(0, 0.5), -1, 1)))
        bend = (rng.uniform(-2, 2), rng.uniform(-1.0, 2.5), rng.normal(0, 0.7))
        landmarks = {
            "cord": (0.0, *middle),
            "skin back": (0.0, middle[0] - neck.back + max(neck.flat, 0.0), middle[1]),
            "skin front": (0.0, middle[0] + neck.front, middle[1]),
        }
        return SpineBody((-50.0, 50.0), neck, column, cord, middle, place, bend, landmarks=landmarks)
