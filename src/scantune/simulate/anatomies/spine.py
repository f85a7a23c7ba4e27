"""The neck around the cervical spinal cord, from C2 to C7: grey and white matter, canal, vertebrae, muscles, airway."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomies.cord import Cord
from scantune.simulate.anatomies.neck import AT, FAR, REGIONS, Neck
from scantune.simulate.anatomies.vertebrae import VertebralColumn
from scantune.simulate.deform import Wobble
from scantune.simulate.extents import Extents
from scantune.simulate.shaped import Body, Shaped
from scantune.simulate.solids import Where
from scantune.simulate.subject import FieldOfView, Region


@dataclass(frozen=True, eq=False)
class SpineBody(Body):
    """One neck, bent along a curve; lengths in mm."""

    neck: Neck
    column: VertebralColumn
    cord: Cord
    middle: tuple[float, float]  # of the cord at z = 0, (y, x)
    place: tuple[float, float]  # of the canal's middle relative to the cord's
    bend: tuple[float, float, float]  # slope and bow of the curve in y, slope in x; mm at z = 50 mm

    def depths(self, at: Where) -> Tensor:
        """Return the depths below the surfaces of all regions."""
        z, y, x = at
        out = z.new_full((len(REGIONS), *z.shape), FAR)
        height = z / 50
        y = y - height * (self.bend[0] + self.bend[1] * height) - self.middle[0]
        x = x - height * self.bend[2] - self.middle[1]
        extents = Extents.of(z, y, x)
        outline = self.neck.outline(z, y, x)
        out[AT["skin"]] = outline
        near = extents.window(*self.neck.box(extents.heights))
        extents, z, y, x, painted = extents.cut(near), z[near], y[near], x[near], out[:, *near]
        self.neck.paint(painted, z, y, x, outline[near], extents)
        near = extents.window((-math.inf, -self.neck.back, -30.0), (math.inf, 32.0, 30.0))
        extents, z, y, x, painted = extents.cut(near), z[near], y[near], x[near], painted[:, *near]
        self.column.paint(painted, z, y - self.place[0], x - self.place[1])
        near = extents.around((0.0, 0.0), (12.0, 16.0))
        self.cord.paint(painted[:, *near], z[near], y[near], x[near], self.column)
        return out


@dataclass(frozen=True)
class Spine(Shaped):
    """Axial scans of the neck; grey and white matter together are the cord."""

    regions = REGIONS
    labels = MappingProxyType({"GM": 1, "WM": 2})
    wobble: ClassVar[Wobble] = Wobble(scales=((40.0, 1.2), (12.0, 0.25)), size=(1.0, 0.01), proportions=0.01, tilt=1.8)
    body: ClassVar[type[SpineBody]] = SpineBody

    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> SpineBody:  # noqa: ARG002
        """Draw the neck of one person."""
        neck, cord = Neck.draw(rng), Cord.draw(rng)
        # fluid in front of, behind and beside the cord
        return self._around(rng, neck, cord, (rng.uniform(1.6, 5.4), rng.uniform(1.0, 2.5), rng.uniform(3.6, 6.0)))

    def _around(self, rng: np.random.Generator, neck: Neck, cord: Cord, fluid: tuple[float, float, float]) -> SpineBody:
        """Draw what is left of a person around a cord with fluid in front of, behind and beside it."""
        front, back, side = fluid
        half = (cord.half[0] + (front + back) / 2, cord.half[1] + side)
        column = VertebralColumn.draw(rng, half)
        middle = (rng.uniform(-5, 5), rng.uniform(-4, 4))
        place = ((front - back) / 2, float(np.clip(rng.normal(0, 0.5), -1, 1)))
        bend = (rng.uniform(-2, 2), rng.uniform(-1.0, 2.5), rng.normal(0, 0.7))
        landmarks = {
            "cord": (0.0, *middle),
            "skin back": (0.0, middle[0] - neck.back + max(neck.flat, 0.0), middle[1]),
            "skin front": (0.0, middle[0] + neck.front, middle[1]),
        }
        return self.body((-50.0, 50.0), neck, column, cord, middle, place, bend, landmarks=landmarks)


@dataclass(frozen=True, eq=False)
class ClearSpineBody(SpineBody):
    """A neck whose masks stay a little inside the borders of cord and grey matter."""

    rims: ClassVar[tuple[float, float]] = (0.2, 0.1)  # mm at these borders that masks drawn by hand leave out

    def depths(self, at: Where) -> Tensor:
        """Return the depths below the surfaces of all regions, the two rims among them."""
        found = super().depths(at)
        white, grey = (found[AT[name]][None] for name in ("white matter", "grey matter"))
        before, fissure = found[: AT["white matter"]], found[AT["fissure"]][None]
        return torch.cat([before, white, white - self.rims[0], fissure, grey, grey - self.rims[1]])


class ClearSpine(Spine):
    """The same necks, with grey matter as bright against white as in real scans, and masks as drawn by hand.

    Hand-drawn masks leave out voxels that are partly fluid: a network that learned from exact masks drew the cords of
    three real people too large.
    """

    regions = (
        *(replace(region, tissue=region.tissue.replace("cord white", "cord white 2")) for region in REGIONS[:-3]),
        Region("rim of the cord", "cord white 2"),
        Region("white matter", "cord white 2", "WM"),
        REGIONS[AT["fissure"]],
        Region("rim of the grey matter", "cord grey 2", "WM"),
        Region("grey matter", "cord grey 2", "GM"),
    )
    body = ClearSpineBody


class VariedSpineBody(ClearSpineBody):
    """A neck whose masks leave out less."""

    rims = (0.1, 0.03)


class VariedSpine(ClearSpine):
    """Necks that differ more: cords of other sizes and proportions, other horns, canals from narrow to very wide."""

    body = VariedSpineBody

    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> SpineBody:  # noqa: ARG002
        """Draw the neck of one person."""
        neck, cord = Neck.draw(rng), Cord.draw_any(rng)
        return self._around(rng, neck, cord, (rng.uniform(1.0, 7.0), rng.uniform(0.7, 6.0), rng.uniform(2.5, 8.0)))
