"""Random diffeomorphic deformations: one template becomes many subjects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.fields import lattice_points, sample_at, smooth_noise

_STEP = 4.0  # mm between lattice points of the velocity field
_SQUARINGS = 6
_SWELLING_RADIUS = 16.0  # mm; how far the swelling of a ventricle reaches
_LEAST = -60.0  # exponent; what is smaller is nothing, and denormal numbers are slow


@dataclass(frozen=True)
class Wobble:
    """How much people differ in shape.

    Attributes:
        scales: Smoothness and size in mm of the random velocities that bend a body.
        size: Mean and deviation of the factor by which a body is larger.
        proportions: Deviation of that factor along each axis.
        tilt: Deviation in degrees of the angles at which a body lies in the scanner.
    """

    scales: tuple[tuple[float, float], ...]
    size: tuple[float, float] = (1.0, 0.0)
    proportions: float = 0.0
    tilt: float = 0.0


HEAD = Wobble(scales=((32.0, 3.0), (14.0, 1.6)), size=(0.98, 0.04), proportions=0.025, tilt=3.0)
"""Brains: lobes and single folds differ."""


@dataclass(frozen=True, eq=False)
class Deformation:
    """A smooth invertible map from the subject's space to the template's, both in mm.

    Attributes:
        displacement: Displacement in mm `(3, depth, height, width)`, as `(z, y, x)`, on a regular lattice.
        origin: Position of the first lattice point `(z, y, x)`.
        matrix: Linear part `(3, 3)`, applied after the displacement.
    """

    displacement: Tensor
    origin: tuple[float, float, float]
    matrix: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        """Map points `(depth, height, width, 3)` of the subject to points of the template."""
        moved = points + _at(self.displacement, self.origin, points)
        return moved @ self.matrix.T

    def sheets(self, rows: Sequence[float], columns: Sequence[float]) -> Sheets:
        """Return the deformation of planes across z whose rows and columns lie at these y and x in mm."""
        turned = torch.einsum("ij,jzyx->izyx", self.matrix, self.displacement)
        moved = _stretched(_stretched(turned, columns, self.origin[2], 3), rows, self.origin[1], 2)
        up, forward, right = (part[:, None, None] for part in self.matrix.unbind(1))
        y, x = (torch.tensor(places, dtype=torch.float32, device=moved.device) for places in (rows, columns))
        return Sheets(moved + (forward * y[:, None] + right * x)[:, None], self.origin[0], up)

    def swollen(self, centres: Tensor, amount: float) -> Deformation:
        """Return the deformation after the subject has swollen about centres `(n, 3)` in mm by a share."""
        points = lattice_points(self.displacement.shape[1:], (_STEP,) * 3, self.origin, self.displacement.device)
        inwards = _inwards(points, centres, amount)
        there = _at(self.displacement, self.origin, points + inwards)
        return dataclasses.replace(self, displacement=(inwards + there).permute(3, 0, 1, 2))


@dataclass(frozen=True, eq=False)
class Sheets:
    """A deformation of planes across z: several times as fast as one of points that lie anywhere.

    Attributes:
        places: Positions in mm `(3, heights, rows, columns)` in the template of the points of planes at the heights of
            the deformation's lattice, as `(z, y, x)`, but for what the height itself adds.
        first: The lowest of these heights in mm.
        up: What each mm of height adds `(3, 1, 1)`.
    """

    places: Tensor
    first: float
    up: Tensor

    def at(self, heights: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
        """Return template coordinates z, y and x, each `(planes, rows, columns)`, of planes at heights in mm."""
        low, share = _between([(height - self.first) / _STEP for height in heights], self.places.shape[1])
        device = self.places.device
        below, above = (self.places[:, (low + step).to(device)] for step in (0, 1))
        added = self.up[:, None] * torch.tensor(heights, dtype=torch.float32, device=device)[:, None, None]
        z, y, x = torch.lerp(below, above, share.to(device)[:, None, None]).add_(added)
        return z, y, x


def random_deformation(
    rng: np.random.Generator,
    size: tuple[float, float, float],
    swelling_at: Tensor,
    device: torch.device,
    wobble: Wobble = HEAD,
) -> Deformation:
    """Draw the shape of one subject.

    Args:
        rng: Where the randomness comes from.
        size: Extent `(z, y, x)` in mm, about the origin, in which the map is needed.
        swelling_at: Centres `(n, 3)` in mm about which the anatomy swells or shrinks: the ventricles.
        device: Where the map is wanted.
        wobble: How much people differ.
    """
    shape = tuple(int(np.ceil(extent / _STEP)) + 3 for extent in size)
    origin = tuple(-_STEP * (points - 1) / 2 for points in shape)
    velocity = sum(
        amount * smooth_noise(rng, 3, shape, (_STEP,) * 3, length, device) for length, amount in wobble.scales
    ) + _swelling(rng, lattice_points(shape, (_STEP,) * 3, origin, device), swelling_at.to(device))
    matrix = torch.from_numpy(_random_matrix(rng, wobble)).to(device)
    return Deformation(integrate(velocity, origin), (origin[0], origin[1], origin[2]), matrix)


def integrate(velocity: Tensor, origin: tuple[float, ...]) -> Tensor:
    """Integrate a stationary velocity field for unit time, by scaling and squaring.

    Args:
        velocity: Velocities in mm `(3, depth, height, width)` on the lattice of a `Deformation`.
        origin: Position of the first lattice point `(z, y, x)`.

    Returns:
        Displacements in mm, of the same shape.
    """
    points = lattice_points(velocity.shape[1:], (_STEP,) * 3, origin, velocity.device)
    displacement = velocity * 0.5**_SQUARINGS
    for _ in range(_SQUARINGS):
        there = points + displacement.permute(1, 2, 3, 0)
        displacement = displacement + sample_at(displacement, origin, (_STEP,) * 3, there, border="border")
    return displacement


def _at(displacement: Tensor, origin: tuple[float, ...], points: Tensor) -> Tensor:
    return sample_at(displacement, origin, (_STEP,) * 3, points, border="border").permute(1, 2, 3, 0)


def _stretched(volume: Tensor, places: Sequence[float], first: float, axis: int) -> Tensor:
    """Interpolate a volume on the lattice linearly along one axis, at places in mm."""
    low, share = _between([(place - first) / _STEP for place in places], volume.shape[axis])
    shape = [-1 if own == axis else 1 for own in range(volume.ndim)]
    below, above = (volume.index_select(axis, (low + step).to(volume.device)) for step in (0, 1))
    return torch.lerp(below, above, share.to(volume.device).view(shape))


def _between(places: Sequence[float], size: int) -> tuple[Tensor, Tensor]:
    """Return the lattice points `(n,)` below places, and the position of the places between these and the next ones."""
    at = torch.tensor(places, dtype=torch.float64).clamp_(0, size - 1)
    low = at.floor().clamp_max_(size - 2)
    return low.long(), (at - low).float()


def _swelling(rng: np.random.Generator, points: Tensor, centres: Tensor) -> Tensor:
    """Return velocities `(3, depth, height, width)` that swell or shrink the surroundings of the centres."""
    return _inwards(points, centres, float(rng.uniform(-0.2, 0.35))).permute(3, 0, 1, 2)


def _inwards(points: Tensor, centres: Tensor, amount: float) -> Tensor:
    """Return steps towards each centre: the map leads from subject to template, so the subject swells."""
    steps = torch.zeros_like(points)
    for centre in centres:
        away = points - centre
        power = -0.5 * away.square().sum(-1, keepdim=True) / _SWELLING_RADIUS**2
        steps = steps - amount * away * torch.exp(power.clamp_min_(_LEAST))
    return steps


def _random_matrix(rng: np.random.Generator, wobble: Wobble) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return the size and proportions, and the tilt with which a body lies in the scanner."""
    scale = np.diag(1 / (rng.normal(*wobble.size) * rng.normal(1.0, wobble.proportions, 3)))
    matrix = scale
    for first, second in ((0, 1), (0, 2), (1, 2)):
        angle = np.deg2rad(rng.normal(0.0, wobble.tilt))
        turn = np.eye(3)
        turn[[first, second], [first, second]] = np.cos(angle)
        turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
        matrix = matrix @ turn
    return matrix.astype(np.float32)
