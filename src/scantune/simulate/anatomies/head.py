"""A whole head: the ICBM152 brain with the fluid, skull, scalp and face around it, as axial slices show them.

What lies around the brain follows from the distance to the brain's mask, and in the face from simple solids. It is
meant to look like a head to a network; no measured head is behind it.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.simulate.anatomies.brain import LABELS, TISSUES, folds
from scantune.simulate.anatomies.icbm152 import icbm152
from scantune.simulate.atlas import Atlas
from scantune.simulate.fields import smooth_noise
from scantune.simulate.subject import Region
from scantune.simulate.template import Template

SHELL = (  # without grain: its strength follows from the contrast of grainy regions, which should be the brain's
    Region("fluid around the brain", "CSF", texture=0.0),  # the vitreous bodies of the eyes, too
    Region("bone", "bone", texture=0.0),
    Region("marrow", "marrow", texture=0.0),
    Region("fat", "fat", texture=0.0),
    Region("muscle", "muscle", texture=0.0),
    Region("skin", "skin", texture=0.0),
)
HEAD = (*TISSUES, *SHELL)
"""Regions of the head: the brain's, then those around it. Air, outside and in the sinuses, is none."""

_AIR, _FLUID, _BONE, _MARROW, _FAT, _MUSCLE, _SKIN = range(len(SHELL) + 1)
_ROOM = ((4.0, 18.0), (20.0, 36.0), (18.0, 18.0))  # mm around the brain's template, at either end of z, y, x

# Solids by centre and radii (z, y, x) in mm from the middle of the brain's template; mirrored at x = 0.
_Solid = tuple[tuple[float, float, float], tuple[float, float, float]]
_FACE: tuple[_Solid, ...] = (
    ((-62.0, 30.0, 0.0), (76.0, 73.0, 69.0)),  # face and base of the skull
    ((-82.0, -38.0, 0.0), (70.0, 50.0, 58.0)),  # neck
    ((-60.0, 104.0, 0.0), (24.0, 17.0, 13.0)),  # nose
    ((-46.0, -14.0, 78.0), (26.0, 15.0, 8.0)),  # ears
)
_TEMPLES: _Solid = ((-26.0, 40.0, 66.0), (42.0, 40.0, 30.0))
_NAPE: _Solid = ((-80.0, -75.0, 0.0), (48.0, 50.0, 70.0))
_SINUSES: tuple[_Solid, ...] = (
    ((-70.0, 64.0, 27.0), (15.0, 16.0, 12.0)),  # maxillary
    ((-47.0, 33.0, 6.0), (9.0, 10.0, 9.0)),  # sphenoid
    ((-14.0, 99.0, 10.0), (12.0, 4.5, 9.0)),  # frontal
)
_CELLS: tuple[_Solid, ...] = (  # air between thin walls
    ((-45.0, 62.0, 0.0), (14.0, 26.0, 12.0)),  # ethmoid
    ((-68.0, 70.0, 0.0), (20.0, 32.0, 14.0)),  # nose
    ((-46.0, -18.0, 54.0), (15.0, 13.0, 11.0)),  # mastoid
)
_EYE: _Solid = ((-45.0, 79.0, 32.0), (12.0, 12.0, 12.0))
_ORBIT = ((-42.0, 38.0, 14.0), (3.0, 18.0))  # its tip, and its radii in mm at the tip and at the middle of the eye

_FRINGE = 1.2  # mm of fluid between the brain's mask and the skull, at least
_FILLED = 7.0  # mm; clefts of the brain's mask up to twice as wide hold fluid
_TABLE = 1.7  # mm; thickness of the inner and the outer table of the skull
_DIPLOE = 2.6  # mm of marrow between them, on average
_SCALP = 6.5  # mm of fat and skin over the skull, on average
_SKIN_DEPTH = 1.8  # mm
_BASE_DEPTH = 45.0  # mm below the skin, from which on what is no brain is the base of the skull
_UNDER_SKIN = 4.0  # mm; fat between skin and muscle


@functools.lru_cache(maxsize=2)
def head_atlas(resolution: int = 1) -> Atlas:
    """Build heads from the ICBM152 average brain and a simple model of its surroundings.

    Args:
        resolution: Voxel edge of the atlas in mm; coarser ones are for quick trials.
    """
    brain = icbm152(resolution)
    template = brain.templates[0]
    room = [[math.ceil(end / edge) for end in ends] for ends, edge in zip(_ROOM, template.spacing, strict=True)]
    around = np.pad(template.fractions.numpy(), ((0, 0), *room))
    z, y, x = (at - edge * pad[0] for at, edge, pad in zip(template.origin, template.spacing, room, strict=True))
    kinds = _Surroundings(around.max(0) > 0, float(resolution), (z, y, x)).kinds()
    shell = [np.where(kinds == kind, 255, 0).astype(np.uint8) for kind in range(1, len(SHELL) + 1)]
    head = Template(
        torch.from_numpy(np.concatenate([around, np.stack(shell)])),
        template.spacing,
        (z, y, x),
        template.coverage,
        template.swelling_at,
        dataclasses.replace(template.variation, stripping=None),
    )
    return Atlas(HEAD, folds(HEAD), LABELS, (head,), (1.0,))


class _Surroundings:
    """What lies where around a brain."""

    def __init__(self, brain: NDArray[np.bool_], edge: float, origin: tuple[float, float, float]) -> None:
        self._brain, self._edge = brain, edge
        axes = [at + edge * np.arange(size, dtype=np.float32) for at, size in zip(origin, brain.shape, strict=True)]
        self._z, self._y, self._x = (
            axis.reshape([-1 if own == place else 1 for own in range(3)]) for place, axis in enumerate(axes)
        )
        rng = np.random.default_rng(0)  # the same head at every time and on every machine
        fields = smooth_noise(rng, 2, brain.shape, (edge,) * 3, 22.0, torch.device("cpu")).numpy()
        self._thickness, self._fatness = np.exp(0.15 * fields)
        self._grain = smooth_noise(rng, 1, brain.shape, (edge,) * 3, max(2.5, edge), torch.device("cpu"))[0].numpy()
        self._lumps = smooth_noise(rng, 1, brain.shape, (edge,) * 3, 6.0, torch.device("cpu"))[0].numpy()

    def kinds(self) -> NDArray[np.uint8]:
        """Return 0 for air and brain, and from 1 the number in `SHELL`, `(depth, height, width)`."""
        cavity = self._cavity()
        beyond = self._distance(~cavity)
        temples, base = self._depth(_TEMPLES) > 0, self._z < -34 + 4 * self._lumps
        diploe = np.where(temples, 0.4, 1.0) * np.where(base, 1.6, 1.0) * _DIPLOE * self._thickness
        skull = 2 * _TABLE + diploe
        below = self._distance(self._outline(beyond - skull))
        kinds = self._soft_tissue(below, temples & ~base)
        kinds[(beyond <= skull) & (below > _SKIN_DEPTH)] = _BONE
        kinds[(beyond > _TABLE) & (beyond < skull - _TABLE) & ~(base & (self._lumps < 0))] = _MARROW
        self._face(kinds, beyond, below)
        kinds[cavity] = _FLUID
        kinds[self._brain] = _AIR
        return kinds

    def _cavity(self) -> NDArray[np.bool_]:
        """Return the inside of the skull: the brain's mask, its clefts filled, and a fringe."""
        grown = self._distance(~self._brain) <= _FILLED
        filled = self._distance(grown) > _FILLED - _FRINGE
        return np.asarray(filled | self._brain)

    def _outline(self, beyond_skull: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Return the inside of the skin."""
        from scipy import ndimage

        temple = np.clip(self._depth(_TEMPLES) / 8, 0, 1)
        scalp = _SCALP * self._fatness + 6 * temple
        face = np.maximum.reduce([self._depth(solid) for solid in _FACE]) > 0
        solid = (face | (beyond_skull < scalp)).astype(np.float32)
        smooth: NDArray[np.float32] = ndimage.gaussian_filter(solid, 3.5 / self._edge)
        return np.asarray((smooth > 0.5) | (beyond_skull < scalp - 2))

    def _soft_tissue(self, below: NDArray[np.float32], temples: NDArray[np.bool_]) -> NDArray[np.uint8]:
        """Return skin, fat under it, and muscle at the temples and in the nape; the face mixes both."""
        kinds = np.zeros(below.shape, np.uint8)
        kinds[below > 0] = _SKIN
        kinds[below > _SKIN_DEPTH] = _FAT
        deep = below > np.maximum(_UNDER_SKIN + 1.5 * self._lumps, _SKIN_DEPTH + 1)
        nape = (self._depth(_NAPE) > 0) & (self._grain < 1.3)
        kinds[deep & (temples | nape)] = _MUSCLE
        kinds[(below > 8) & (self._lumps > -0.5) & ~nape] = _MUSCLE
        kinds[below > _BASE_DEPTH] = _BONE
        return kinds

    def _face(self, kinds: NDArray[np.uint8], beyond: NDArray[np.float32], below: NDArray[np.float32]) -> None:
        """Paint sinuses, orbits and eyes."""
        free = (beyond > _TABLE) & (below > _SKIN_DEPTH)
        for solid in _SINUSES:
            depth = self._depth(solid)
            kinds[free & (depth > -1.2)] = _BONE
            kinds[free & (depth > 0)] = _AIR
        for solid in _CELLS:
            depth = self._depth(solid)
            kinds[free & (depth > 0)] = _AIR
            kinds[free & (depth > 0) & (self._grain > 0.5)] = _MUSCLE
        along, across, side = self._orbit()
        kinds[free & (across < 2) & (along > 0) & (along < 1)] = _BONE
        kinds[free & (across < 0) & (along > 0)] = _FAT
        strands = (side < 2.2) | ((across > -5) & (across < -2) & (abs(self._z - _EYE[0][0]) < 4))
        kinds[free & (across < 0) & (along > 0.1) & (along < 0.95) & strands] = _MUSCLE
        kinds[free & (self._depth(_EYE) > 0)] = _FLUID

    def _orbit(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return positions along the axis of the orbit (tip 0, eye 1) and distances in mm from its wall and axis."""
        tip, (narrow, wide) = np.asarray(_ORBIT[0], np.float32), _ORBIT[1]
        axis = np.asarray(_EYE[0], np.float32) - tip
        away = (self._z - tip[0], self._y - tip[1], abs(self._x) - tip[2])
        along = sum(part * run for part, run in zip(away, axis, strict=True)) / (axis @ axis)
        squares = sum((part - along * run) ** 2 for part, run in zip(away, axis, strict=True))
        side = np.sqrt(squares)
        return along, side - (narrow + (wide - narrow) * np.clip(along, 0, 1.0)), side

    def _depth(self, solid: _Solid) -> NDArray[np.float32]:
        """Return the approximate depth in mm of points below the surface of a solid."""
        (z, y, x), (rz, ry, rx) = solid
        radius = np.sqrt(
            ((self._z - z) / rz) ** 2 + ((self._y - y) / ry) ** 2 + ((abs(self._x) - x) / rx) ** 2, dtype=np.float32
        )
        return np.asarray(min(rz, ry, rx) * (1 - radius))

    def _distance(self, mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the depth in mm of the points of a mask below its surface; 0 outside."""
        from scipy import ndimage

        return np.asarray(self._edge * np.maximum(ndimage.distance_transform_edt(mask) - 0.5, 0), dtype=np.float32)
