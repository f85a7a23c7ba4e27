"""The ventricles of the heart: their sizes, and how they contract.

The left ventricle is a pair of bowls about the z axis, cavity and outside; the right one is an oval that the left one
covers in part, so that a crescent remains. From filled to contracted the left muscle keeps its volume: how much the
wall thickens follows from how far the cavity shrinks.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.fields import lattice_points
from scantune.simulate.solids import ellipse

_STEP = 4.0  # mm between the points with which the volume of the right ventricle is measured


@dataclass(frozen=True)
class Bowl:
    """An ellipsoid about the z axis, cut off at the base of the heart.

    Attributes:
        radius: At its widest, in mm.
        length: From where it is widest down to the apex, in mm.
        above: From where it is widest up to the base, in mm.
    """

    radius: float
    length: float
    above: float

    @property
    def volume(self) -> float:
        """Return the volume in mL."""
        height = 2 / 3 * self.length + self.above - self.above**3 / (3 * self.length**2)
        return math.pi * self.radius**2 * height / 1000


@dataclass(frozen=True)
class Waves:
    """A border's deviation from a circle: angular waves, each how many per turn, its size and its phase."""

    terms: tuple[tuple[int, float, float], ...]

    @classmethod
    def drawn(cls, rng: np.random.Generator, size: float) -> Self:
        """Draw waves of random phase; shorter waves are smaller."""
        return cls(tuple((k, size * rng.normal() / (k - 1), rng.uniform(0, 2 * math.pi)) for k in (2, 3, 4, 5)))

    def __call__(self, angle: Tensor) -> Tensor:
        """Return the relative deviation of the radius."""
        total = torch.zeros_like(angle)
        for waves, size, phase in self.terms:
            total += size * torch.cos(waves * angle + phase)
        return total


@dataclass(frozen=True)
class Form:
    """What one person's ventricles look like at every time of the heartbeat.

    Attributes:
        inner: Deviation of the cavity from a circle.
        wall: Deviation of the wall's thickness from its mean.
        right: Deviation of the right ventricle from an ellipse.
        septal: By what share the wall towards the right ventricle is thicker, and the opposite one thinner.
        beside: Distance of the right ventricle's middle from the axis, as a share of the left one's outer radius.
        across: Half axis of the right ventricle along the septum, likewise.
        right_apex: How far the right ventricle ends above the left one's apex, as a share of the length.
    """

    inner: Waves
    wall: Waves
    right: Waves
    septal: float
    beside: float
    across: float
    right_apex: float

    @classmethod
    def drawn(cls, rng: np.random.Generator, septal: float) -> Self:
        """Draw the ventricles of one person."""
        waves = (Waves.drawn(rng, 0.035), Waves.drawn(rng, 0.1), Waves.drawn(rng, 0.04))
        return cls(*waves, septal, rng.uniform(0.70, 0.85), rng.uniform(1.06, 1.24), rng.uniform(0.08, 0.18))


@dataclass(frozen=True)
class Ventricles:
    """Both ventricles at one time of the heartbeat.

    Attributes:
        form: What stays the same.
        cavity: Inside of the left one.
        outside: Outside of its wall.
        base: Height in mm at which the ventricles end.
        bulge: Half axis of the right one away from the septum, in mm.
    """

    form: Form
    cavity: Bowl
    outside: Bowl
    base: float
    bulge: float = 0.0

    @property
    def widest(self) -> float:
        """Return the height in mm at which the left ventricle is widest."""
        return self.base - self.cavity.above

    @property
    def apex(self) -> float:
        """Return the height in mm of the outer apex."""
        return self.widest - self.outside.length

    @property
    def wall(self) -> float:
        """Return the mean thickness in mm of the left wall where the ventricle is widest."""
        return self.outside.radius - self.cavity.radius

    def contracted(self, ejection: float, shortening: float) -> Ventricles:
        """Return the left ventricle after a share of its blood has left: the apex stays, the base comes down."""
        short = 1 - shortening
        length, above = self.cavity.length * short, self.cavity.above * short
        cavity = Bowl(self.cavity.radius * math.sqrt((1 - ejection) / short), length, above)
        tip = 1.2 * (self.outside.length - self.cavity.length)
        muscle = self.outside.volume - self.cavity.volume
        radius = math.sqrt((muscle + cavity.volume) / Bowl(1.0, length + tip, above).volume)
        base = self.apex + tip + length + above
        return Ventricles(self.form, cavity, Bowl(radius, length + tip, above), base)

    def filled(self, volume: float) -> Ventricles:
        """Return the same ventricles with a right ventricle of a volume in mL."""
        return dataclasses.replace(self, bulge=_bulge(self, volume))

    def left(self, z: Tensor, away: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Return the depths below the surfaces of left cavity and left ventricle, as if the base were open.

        Args:
            z: Height in mm.
            away: Distance from the axis in mm.
            angle: Direction from the axis, 0 towards the right ventricle.
        """
        inner = (1 + self.form.inner(angle)) * self.cavity.radius
        outer = inner + self.wall * (1 + self.form.wall(angle) + self.form.septal * torch.cos(angle))
        level = z - self.widest
        return ellipse(away, level, (inner, self.cavity.length)), ellipse(away, level, (outer, self.outside.length))

    def right(self, z: Tensor, across: Tensor, along: Tensor, angle: Tensor) -> Tensor:
        """Return the depth below the surface of the oval of the right ventricle outside the left one.

        Args:
            z: Height in mm.
            across: Distance from the axis along the septum.
            along: Distance from the axis towards the right ventricle.
            angle: Direction from the axis, 0 towards the right ventricle.
        """
        middle, half, waves = self.crescent(z, angle)
        return ellipse(across, along - middle, (half, self.bulge * waves))

    def crescent(self, z: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return middle and half axis of that oval along the septum in mm, and its other half axis over the bulge."""
        form, outside, top = self.form, self.outside, 0.1 * self.cavity.length
        level = half_circle((z - self.widest) / outside.length)
        reach = (1 - form.right_apex) * (outside.length + outside.above) - top
        waves = half_circle((z - self.base + top) / reach) * (1 + form.right(angle))
        return form.beside * outside.radius * level, form.across * outside.radius * waves, waves


def half_circle(place: Tensor) -> Tensor:
    """Return the height of a half circle over places from -1 to 1; almost nothing beyond."""
    return (1 - place.square()).clamp_min_(1e-4).sqrt_()


def _bulge(ventricles: Ventricles, volume: float) -> float:
    """Search for the bulge that gives the right ventricle its volume; crescents have no formula."""
    outside = ventricles.outside
    edges = (outside.length + outside.above, 3 * outside.radius, 4 * outside.radius)
    shape = [math.ceil(edge / _STEP) for edge in edges]
    origin = (ventricles.base - _STEP * (shape[0] - 0.5), -edges[1] / 2, -outside.radius / 2)
    z, across, along = lattice_points(shape, (_STEP,) * 3, origin, torch.device("cpu")).unbind(-1)
    angle = torch.atan2(across, along)
    free = (0.5 - ventricles.left(z, torch.hypot(across, along), angle)[1] / _STEP).clamp_(0, 1)
    middle, half, waves = ventricles.crescent(z, angle)
    low, high = 0.2 * outside.radius, 2.5 * outside.radius
    for _ in range(9):
        bulge = (low + high) / 2
        depth = ellipse(across, along - middle, (half, bulge * waves))
        measured = float(((depth / _STEP + 0.5).clamp_(0, 1) * free).sum()) * _STEP**3 / 1000
        low, high = (low, bulge) if measured > volume else (bulge, high)
    return (low + high) / 2
