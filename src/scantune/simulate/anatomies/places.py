"""Where in the brain white matter hyperintensities arise: around the lateral ventricles, and in deep white matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.simulate.extents import Window
from scantune.simulate.fields import gaussian_blur, lattice_points, sample_at
from scantune.simulate.template import Template

FARTHEST = 45.0
"""mm from the ventricles beyond which there are no lesions."""

_STEP = 2.0  # mm; voxel edge of the maps
_NOWHERE = 99.0  # mm; how far white matter is that is spared

# In mm (z, y, x) from the middle of the brain's template, mirrored at x = 0.
_VENTRICLES = ((-6.0, 26.0), (-42.0, 58.0), (4.0, 33.0))  # box that holds the lateral ventricles
_CISTERN = (4.0, -5.0, 14.0)  # below, behind and between these, fluid of that box is outside the brain
_CAPS = (((3.0, 50.0, 17.0), 9.0), ((3.0, -38.0, 28.0), 10.0))  # tips of the frontal and occipital horns; radii
_CALLOSUM = 9.0  # mm from the midline in which fibres cross, which are rarely affected
_CEREBELLUM = ((-42.0, -44.0, 0.0), (28.0, 33.0, 56.0))  # centre and radii of an ellipsoid


@dataclass(frozen=True, eq=False)
class Places:
    """Where in a template lesions arise.

    Attributes:
        maps: `(2, depth, height, width)`: how many mm the disease has to spread from the ventricles to get there, and
            the chance of a deep lesion.
        origin: Position `(z, y, x)` of the first voxel in mm.
        spacing: Voxel edges in mm.
        bounds: Lowest and highest position `(2, 3)` of any brain in mm.
    """

    maps: Tensor
    origin: tuple[float, float, float]
    spacing: tuple[float, float, float]
    bounds: Tensor

    @classmethod
    def of(cls, template: Template, tissues: Sequence[str]) -> Places:
        """Find the places in the fractions of a template whose first tissues are the given ones."""
        factor = max(1, round(_STEP / template.spacing[0]))
        fine = template.fractions[: len(tissues)].float().div_(255)
        fractions = F.avg_pool3d(fine[None], factor)[0]
        z, y, x = (at + (factor - 1) / 2 * edge for at, edge in zip(template.origin, template.spacing, strict=True))
        origin, edges = (z, y, x), [factor * edge for edge in template.spacing]
        spacing = (edges[0], edges[1], edges[2])
        points = lattice_points(fractions.shape[1:], spacing, origin, fractions.device)
        white = fractions[tissues.index("white")]
        distance = distance_to(_ventricles(fractions[tissues.index("CSF")], points), spacing)
        depth = gaussian_blur(white[None], [2.5 / edge for edge in spacing])[0]
        maps = torch.stack([_spread(distance, depth, points), _chance(distance, depth, points)])
        there = points[fractions.sum(0) > 0]
        reach = points.new_tensor(spacing)
        return cls(maps, origin, spacing, torch.stack([there.amin(0) - reach, there.amax(0) + reach]))

    def at(self, points: Tensor) -> Tensor:
        """Return both maps `(2, depth, height, width)` at points `(depth, height, width, 3)` of template space."""
        return sample_at(self.maps, self.origin, self.spacing, points, border="border")

    def window(self, points: Tensor) -> Window:
        """Return the part of a grid of points `(depth, height, width, 3)` that holds all of the brain."""
        inside = ((points > self.bounds[0]) & (points < self.bounds[1])).all(-1)
        lines = [inside.any(axes[1]).any(axes[0]) for axes in ((1, 2), (0, 2), (0, 1))]
        there = [line.nonzero()[0] for line in np.split(torch.cat(lines).cpu().numpy(), np.cumsum(inside.shape)[:-1])]
        spans = [slice(int(line[0]), int(line[-1]) + 1) if len(line) else slice(0, 1) for line in there]
        return spans[0], spans[1], spans[2]


def distance_to(mask: Tensor, spacing: Sequence[float]) -> Tensor:
    """Return the euclidean distance in mm of every voxel `(depth, height, width)` to the nearest one of a mask."""
    squared = torch.where(mask, 0.0, 1e6)
    for axis, edge in enumerate(spacing):
        lines = squared.movedim(axis, -1)
        at = edge * torch.arange(lines.shape[-1], device=mask.device)
        nearest = torch.full_like(lines, 1e6)
        for place in range(lines.shape[-1]):
            nearest = torch.minimum(nearest, lines[..., place, None] + (at - at[place]).square())
        squared = nearest.movedim(-1, axis)
    return squared.sqrt()


def _ventricles(fluid: Tensor, points: Tensor) -> Tensor:
    """Mask `(depth, height, width)` of the lateral ventricles, by where they are."""
    z, y, x = points.unbind(-1)
    mask = fluid > 0.5
    for (low, high), axis in zip(_VENTRICLES, (z, y, x.abs()), strict=True):
        mask &= (axis > low) & (axis < high)
    above, before, beside = _CISTERN
    return mask & ((z > above) | (y > before) | (x.abs() > beside))


def _spread(distance: Tensor, depth: Tensor, points: Tensor) -> Tensor:
    """Return the effort of disease to reach a voxel: low at the horns, high in crossing fibres and at the cortex."""
    caps = sum(
        torch.exp((-0.5 * (_mirrored(points) - points.new_tensor(centre)).square().sum(-1) / radius**2).clamp_min(-60))
        for centre, radius in _CAPS
    )
    spread = distance / (1 + 1.8 * caps) / (0.25 + 0.75 * (depth / 0.8).clamp(0, 1))
    spread = spread + 4 * (1 - points[..., 2].abs() / _CALLOSUM).clamp_min(0)
    return torch.where(_spared(points), _NOWHERE, spread)


def _chance(distance: Tensor, depth: Tensor, points: Tensor) -> Tensor:
    """Return the likelihood of deep lesions: high deep in the white matter and near the ventricles."""
    chance = ((depth - 0.3) / 0.5).clamp(0, 1) * torch.exp(-distance / 14)
    crossing = (points[..., 2].abs() < _CALLOSUM) | (points[..., 0] < -22)
    return chance * ~(_spared(points) | crossing | (distance < 4) | (distance > FARTHEST))


def _spared(points: Tensor) -> Tensor:
    """Return a mask of the cerebellum and everything below the cerebrum."""
    centre, radii = (points.new_tensor(part) for part in _CEREBELLUM)
    return (((points - centre) / radii).square().sum(-1) < 1) | (points[..., 0] < -34)


def _mirrored(points: Tensor) -> Tensor:
    """Mirror points of the left side to the right."""
    return torch.cat([points[..., :2], points[..., 2:].abs()], -1)
