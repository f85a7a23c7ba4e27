"""Anatomies drawn from shapes: a body is a list of regions, each known by its depth below the surface."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomy import Anatomy
from scantune.simulate.deform import Deformation, Wobble, random_deformation
from scantune.simulate.fields import lattice_points
from scantune.simulate.subject import FieldOfView, Subject

_SLICES_IN_CACHE = 2  # that a CPU works on at a time: larger ones fall out of its cache


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
    def depths(self, points: Tensor) -> Tensor:
        """How far below the surface of each region points lie.

        Args:
            points: Positions `(depth, height, width, 3)`, each `(z, y, x)` in mm.

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
        """The shapes of one person in one state; draws the same random numbers whatever the state and the view."""

    def subject(self, rng: np.random.Generator, view: FieldOfView, state: str = "") -> Subject:
        """Draw one person and lay the scanner's grid over them."""
        body = self.draw(rng, view, state)
        spacing, origin = view.grid(body.coverage, float(rng.uniform(-0.5, 0.5)))
        reach = max(abs(origin[0]), abs(origin[0] + spacing[0] * view.slices)) + view.thickness
        extent = (2 * reach, view.height, view.width)
        deformation = random_deformation(rng, extent, torch.empty(0, 3), self.device, self.wobble)
        fractions = _fractions(body, deformation, view, spacing, origin)
        return Subject(fractions, self.regions, spacing, origin, body.landmarks)

    def to(self, device: str | torch.device) -> Self:
        """The same anatomy, computed on a device."""
        return dataclasses.replace(self, device=torch.device(device))

    def fingerprint(self) -> str:
        """Its name: everything about it is in the code."""
        return type(self).__name__


def painted(depths: Tensor, softness: float) -> Tensor:
    """Shares `(regions, ...)` of regions painted one over the other, with borders `softness` mm wide.

    Args:
        depths: Depths in mm `(regions, ...)`, later regions on top; the result takes their place.
        softness: Width of a border.
    """
    cover = depths.div_(softness).add_(0.5).clamp_(0, 1)
    left = torch.ones_like(cover[0])
    for region in range(len(cover) - 1, -1, -1):
        share = cover[region] * left
        left = left - share
        cover[region] = share
    return cover


def _fractions(
    body: Body,
    deformation: Deformation,
    view: FieldOfView,
    spacing: tuple[float, float, float],
    origin: tuple[float, float, float],
) -> Tensor:
    """Fractions `(regions, slices, height, width)`, each slice the weighted mean over planes across its profile."""
    device = deformation.matrix.device
    grid = lattice_points(view.shape, spacing, origin, device)
    together = len(grid) if device.type == "cuda" else _SLICES_IN_CACHE
    parts = []
    for slices in torch.split(grid, together):
        planes = (
            painted(body.depths(deformation(slices + slices.new_tensor([shift, 0.0, 0.0]))), view.in_plane).mul_(weight)
            for shift, weight in view.profile()
        )
        parts.append(functools.reduce(Tensor.add_, planes))
    return torch.cat(parts, dim=1)
