"""The neck of one person: skin, fat, muscles, vessels, airway and jaw; and the regions of which all of it consists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.extents import Extents
from scantune.simulate.solids import ellipse, smooth_min
from scantune.simulate.subject import Region

REGIONS: tuple[Region, ...] = (
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
"""The parts of the neck in the order in which they are painted."""

AT = {region.name: place for place, region in enumerate(REGIONS)}
"""Where in that order a region comes."""

FAR = -99.0
"""mm; the depth of points that are nowhere near a region."""

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


@dataclass(frozen=True, eq=False)
class Neck:
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
    def draw(cls, rng: np.random.Generator) -> Neck:
        """Draw the neck of one person."""
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
        """Return the depth below the skin."""
        shoulders, chin = _rise(-z - 55, 30), _rise(z - self.jaw - 8, 25)
        away = y - (self.front - self.back) / 2
        away = away / (1 + 0.55 * chin * (away > 0))
        depth = ellipse(away, x / (1 + 0.45 * shoulders), ((self.front + self.back) / 2, self.side))
        return smooth_min(depth, y + self.back - self.flat, 12.0)

    def box(self, heights: tuple[float, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the lowest and highest corner of what holds it between two heights, and a little more."""
        shoulders = 1 / (1 + math.exp((heights[0] + 55) * 4 / 30))
        chin = 1 / (1 + math.exp((self.jaw + 8 - heights[1]) * 4 / 25))
        middle, half = (self.front - self.back) / 2, (self.front + self.back) / 2
        side = (1 + 0.45 * shoulders) * (self.side + 3)
        return (-math.inf, middle - half - 3, -side), (math.inf, middle + (1 + 0.55 * chin) * (half + 3), side)

    def paint(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, outline: Tensor, extents: Extents) -> None:
        """Write the depths of all but the skin to `out` `(regions, depth, height, width)`."""
        wave_y, wave_x = torch.sin(y * 0.08 + self.phases[0]), torch.sin(x * 0.09 + self.phases[1])
        flesh = outline - self.skin
        out[AT["fat"]] = flesh
        gap = self._septa(z, y, x + 1.5 * wave_y) - (wave_x + wave_y).mul_(0.5).add_(0.6).mul_(self.septum)
        # broken streaks of fat along the fibres of the muscles behind the spine
        bent = torch.sin(y * 0.3 + x.abs() * self.fibres + 2.5 * wave_x + 1.5 * wave_y).abs_().mul_(2.5)
        streaks = bent.sub_(wave_y * wave_x).add_(y.add(10).clamp_min_(0))
        inner = flesh - (1.0 - y * (0.5 / self.back)).clamp_(0.5, 1.5).mul_(self.fat)
        out[AT["ligament"]] = torch.minimum(torch.minimum(gap, streaks + 0.1), inner)
        out[AT["muscle"]] = torch.minimum(torch.minimum(gap - 0.35, streaks), inner - 0.3)
        near = extents.around((4.0, 0.0), (36.0, 46.0))
        out[AT["vessels"]][near] = _forms(self.dots, y[near] + 0.05 * z[near], x[near]).amax(0)
        self._front(out, z, y, x, outline, extents)

    def _septa(self, z: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """Return the approximate distance in mm to the nearest border between muscles."""
        side, along = x.abs(), y + z * 0.05
        distances = _forms(self.forms, along, side)
        nearest, second = torch.minimum(distances[0], distances[1]), torch.maximum(distances[0], distances[1])
        for distance in distances[2:]:
            second = torch.minimum(second, torch.maximum(nearest, distance))
            nearest = torch.minimum(nearest, distance)
        gap = second.clamp_min_(0).sqrt_().sub_(nearest.clamp_min_(0).sqrt_()).mul_(4.0)
        return torch.where(y < 0, torch.minimum(gap, side), gap)

    def _front(self, out: Tensor, z: Tensor, y: Tensor, x: Tensor, outline: Tensor, extents: Extents) -> None:
        """Paint the airway, wide and flat behind the mouth and round below the larynx, and the lower jaw at high z."""
        place, scale = self.airway
        near = extents.around((place, 0.0), (14.0, 20.0))
        up = _rise(z[near] - self.jaw + 15, 20)
        low = ellipse(y[near] - place, x[near], (7.5 * scale, 7.0 * scale))
        high = ellipse(y[near] - place + 2, x[near], (4.0 * scale, 11.0 * scale))
        out[AT["airway"]][near] = torch.lerp(low, high, up)
        band = torch.minimum(5.0 - (outline - 13).abs(), smooth_min(y - 22, z - self.jaw, 4.0))
        out[AT["bone"]] = band
        out[AT["marrow"]] = band - 1.8


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
    """Return the forms of vertebral arteries, carotids, jugular veins, and veins between the muscles of the back."""
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
    """Return factors of y2, x2, yx, y, x and 1 in the squared distance from an ellipse relative to its half axes."""
    cos, sin = math.cos(angle), math.sin(angle)
    axes = np.array([[cos, -sin], [sin, cos]]) / half[:, None]
    metric = axes.T @ axes
    return np.array([metric[0, 0], metric[1, 1], 2 * metric[0, 1], *(-2 * metric @ middle), middle @ metric @ middle])


def _rise(value: Tensor, width: float) -> Tensor:
    """Rise from 0 far below 0 to 1 far above it."""
    return torch.sigmoid(value * (4 / width))
