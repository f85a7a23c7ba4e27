"""Anatomies drawn from shapes: a body is a list of regions, each known by its depth below the surface."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomy import Anatomy
from scantune.simulate.deform import Sheets, Wobble, random_deformation
from scantune.simulate.fields import lattice_axes
from scantune.simulate.solids import Where
from scantune.simulate.subject import FieldOfView, Subject

_POINTS_IN_CACHE = 2**16  # that a CPU works on at a time: more fall out of its cache
_POINTS_ON_DEVICE = 2**23  # that a GPU works on at a time: it is fastest with all at once, as far as its memory goes


@dataclass(frozen=True, eq=False)
class Body(ABC):
    """The shapes of one person.

    Attributes:
        coverage: Lowest and highest z in mm that slices should cover.
        landmarks: Positions `(z, y, x)` in mm, by name.
    """

    coverage: tuple[float, float]
    landmarks: Mapping[str, tuple[float, float, float]] = field(default_factory=dict, kw_only=True)

    @abstractmethod
    def depths(self, at: Where) -> Tensor:
        """Return the depth of points below the surface of each region.

        Args:
            at: Their coordinates.

        Returns:
            Depths in mm `(regions, depth, height, width)`: positive inside, negative outside, about a true distance
            near the surface. A later region covers an earlier one.
        """


@dataclass(frozen=True)
class Shaped(Anatomy):
    """An anatomy that draws the shapes of a person, then bends them all a little at random.

    Attributes:
        device: Where subjects are computed.
    """

    wobble: ClassVar[Wobble]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @abstractmethod
    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> Body:
        """Draw the shapes of one person in one state, with the same random numbers whatever the state and the view."""

    def subject(self, rng: np.random.Generator, view: FieldOfView, state: str = "") -> Subject:
        """Draw one person and lay the scanner's grid over them."""
        body = self.draw(rng, view, state)
        spacing, origin = view.grid(body.coverage, float(rng.uniform(-0.5, 0.5)))
        reach = max(abs(origin[0]), abs(origin[0] + spacing[0] * view.slices)) + view.thickness
        extent = (2 * reach, view.height, view.width)
        deformation = random_deformation(rng, extent, torch.empty(0, 3), self.device, self.wobble)
        heights, rows, columns = lattice_axes(view.shape, spacing, origin)
        sheets = deformation.sheets(rows, columns)
        planes = view.profile()
        fractions = torch.zeros((len(self.regions), *view.shape), device=self.device)
        together = _POINTS_IN_CACHE if self.device.type == "cpu" else _POINTS_ON_DEVICE
        planes_at_once = max(1, together // (len(rows) * len(columns)))
        slices_at_once = max(1, planes_at_once // len(planes))
        for first in range(0, view.slices, slices_at_once):
            some = slice(first, first + slices_at_once)
            for plane in range(0, len(planes), planes_at_once):
                part = planes[plane : plane + planes_at_once]
                softness = max(view.in_plane, view.border)
                _add_planes(fractions[:, some], body, sheets, heights[some], part, softness)
        return Subject(fractions, self.regions, spacing, origin, body.landmarks)

    def to(self, device: str | torch.device) -> Self:
        """Return the same anatomy on another device."""
        return dataclasses.replace(self, device=torch.device(device))

    def fingerprint(self) -> str:
        """Return its name: everything about it is in the code."""
        return type(self).__name__


def painted(depths: Tensor, softness: float) -> Tensor:
    """Paint regions one over the other with borders `softness` mm wide, and return their shares `(regions, ...)`.

    Args:
        depths: Depths in mm `(regions, ...)`, later regions on top; the result takes their place.
        softness: Width of a border.
    """
    cover = depths.div_(softness).add_(0.5).clamp_(0, 1)
    left = torch.ones_like(cover[0])
    for region in range(len(cover) - 1, -1, -1):
        left -= cover[region].mul_(left)
    return cover


def _add_planes(
    fractions: Tensor,
    body: Body,
    sheets: Sheets,
    heights: Sequence[float],
    planes: Sequence[tuple[float, float]],
    softness: float,
) -> None:
    """Add what some planes across slices at these heights show to the slices `(regions, slices, height, width)`."""
    at = sheets.at([height + shift for shift, _ in planes for height in heights])
    shares = painted(body.depths(at), softness).chunk(len(planes), dim=1)
    for share, (_, weight) in zip(shares, planes, strict=True):
        fractions.add_(share, alpha=weight)
