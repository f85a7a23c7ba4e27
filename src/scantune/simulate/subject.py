"""What is scanned and where: regions of the body, the scanner's grid, and one person's anatomy on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scantune.errors import InputError

_PLANES_APART = 1.5  # mm; thicker slices are averaged over several planes at most this far apart
_MOST_PLANES = 4


@dataclass(frozen=True)
class Region:
    """A part of the body that is of one tissue.

    Attributes:
        name: What it is called.
        tissue: A name of `scantune.simulate.TISSUES`.
        structure: What segmentations call it; empty for background.
        texture: Strength of the grain of its signal; 0 for fluids and air.
    """

    name: str
    tissue: str
    structure: str = ""
    texture: float = 1.0


@dataclass(frozen=True)
class FieldOfView:
    """Where the scanner's voxels lie.

    Attributes:
        slices: Number of slices.
        height: Extent from back to front in mm.
        width: Extent from left to right in mm.
        in_plane: Voxel edge in mm.
        thickness: Slice thickness in mm; what is left between slices is a gap.
        spacing: Distance of slice centres in mm; None spreads the slices evenly over the anatomy.
        edges: Share of the thickness over which the slice profile falls off at either side; 0 is a box.
        endorectal: Whether a coil in the rectum presses on the organs.
        border: Width in mm over which tissues blend into each other; never less than a voxel's edge.
    """

    slices: int = 16
    height: float = 208.0
    width: float = 176.0
    in_plane: float = 1.0
    thickness: float = 1.5
    spacing: float | None = None
    edges: float = 0.0
    endorectal: bool = False
    border: float = 0.0

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise InputError(f"A scan needs at least 1 slice, but {self.slices} were asked for.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of slices, rows and columns."""
        return self.slices, round(self.height / self.in_plane), round(self.width / self.in_plane)

    def grid(self, coverage: tuple[float, float], jitter: float) -> tuple[tuple[float, float, float], ...]:
        """Return the distances and first position, both `(z, y, x)` in mm, of voxel centres.

        Args:
            coverage: Lowest and highest z of what is scanned; slices are laid around its middle.
            jitter: By what share of a slice distance the stack is off.
        """
        low, high = coverage
        spacing = (self.spacing or (high - low) / self.slices, self.in_plane, self.in_plane)
        middle = (low + high) / 2 + jitter * spacing[0]
        half = [edge * (size - 1) / 2 for edge, size in zip(spacing, self.shape, strict=True)]
        return spacing, (middle - half[0], -half[1], -half[2])

    def profile(self) -> list[tuple[float, float]]:
        """Return planes across a slice, each with its shift in mm and its weight; the weights add up to 1.

        The profile is a trapezoid whose width at half of its height is the thickness.
        """
        reach = self.thickness * (1 + self.edges)
        count = min(math.ceil(reach / _PLANES_APART), max(_MOST_PLANES, math.ceil(self.thickness / _PLANES_APART)))
        shifts = [reach * ((plane + 0.5) / count - 0.5) for plane in range(count)]
        half = reach / count / 2
        weights = [self._below(shift + half) - self._below(shift - half) if self.edges else 1.0 for shift in shifts]
        return [(shift, weight / sum(weights)) for shift, weight in zip(shifts, weights, strict=True)]

    def _below(self, shift: float) -> float:
        """Return the area of the profile below a shift in mm from the middle of the slice."""
        if shift > 0:
            return self.thickness - self._below(-shift)
        fall, inwards = self.edges * self.thickness, self.thickness * (1 + self.edges) / 2 + shift
        return inwards**2 / (2 * fall) if inwards < fall else inwards - fall / 2


@dataclass(frozen=True, eq=False)
class Subject:
    """The true anatomy of one person on a scanner's grid.

    Attributes:
        fractions: Share of each region in a voxel `(regions, slices, height, width)`; what is left of 1 is air, or
            has been stripped away.
        regions: What the fractions are of.
        spacing: Distances `(z, y, x)` of voxel centres in mm.
        origin: Position `(z, y, x)` of the first voxel in mm.
        landmarks: Positions `(z, y, x)` in mm by name, such as where a coil lies.
        around: Tissue of what was stripped away and is to be zero in the image; empty where nothing was.
    """

    fractions: Tensor
    regions: tuple[Region, ...]
    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]
    landmarks: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    around: str = ""

    def labels(self, values: Mapping[str, int]) -> Tensor:
        """Return the label `(slices, height, width)`, uint8, that fills most of each voxel.

        Args:
            values: Label value of each structure; regions of other structures are background.
        """
        shares = self.fractions.new_zeros((max(values.values()) + 1, *self.fractions.shape[1:]))
        shares[0] = 1 - self.fractions.sum(0)
        for region, share in zip(self.regions, self.fractions, strict=True):
            shares[values.get(region.structure, 0)] += share
        label, most = torch.zeros_like(shares[0], dtype=torch.uint8), shares[0]
        for value, share in enumerate(shares[1:], start=1):  # many times as fast as argmax
            label.masked_fill_(share > most, value)
            most = torch.maximum(most, share)
        return label
