"""A random generator of male pelves around the prostate."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.anatomies.gland import Gland, Nodule, Rectum
from scantune.simulate.anatomies.pelvis import NOISE_BOX, NOISE_STEP, REGIONS, Bladder, Pelvis, Skin
from scantune.simulate.deform import Wobble
from scantune.simulate.fields import smooth_noise
from scantune.simulate.shaped import Shaped
from scantune.simulate.solids import Place
from scantune.simulate.subject import FieldOfView

_USUAL: Place = (21.5, 17.0, 25.5)  # mm; half of length, depth and width of a gland of 45 mL
_SMALLEST, _MEDIAN, _LARGEST = 34.0, 50.0, 92.0  # mL; of the gland, before people are bent at random
_NOISE_LENGTHS = (7.0, 3.5, 2.0)  # mm


class Prostate(Shaped):
    """The male pelvis in axial slices; 0 is the middle of the prostate."""

    wobble: ClassVar[Wobble] = Wobble(scales=((28.0, 2.5), (11.0, 0.9)), size=(1.0, 0.02), proportions=0.015, tilt=2.5)
    regions = REGIONS
    labels = MappingProxyType({"TZ": 1, "PZ": 2})

    def draw(self, rng: np.random.Generator, view: FieldOfView, state: str) -> Pelvis:  # noqa: ARG002
        """Draw the shapes of one man; a coil in the rectum changes only the rectum and presses on the gland."""
        gland = _gland(rng, view.endorectal)
        rectum = _rectum(rng, gland, view.endorectal)
        length, deep, _ = gland.half
        half = (_between(rng, 18, 34), _between(rng, 26, 36), _between(rng, 32, 48))
        middle = (length + 0.75 * half[0], 12 + 0.4 * deep, float(rng.normal(0, 2)))
        skin = Skin(_between(rng, 82, 112), _between(rng, -125, -98), _between(rng, 15, 30))
        return Pelvis(
            coverage=(-length - _between(rng, 5, 9), length + _between(rng, 6, 12)),
            gland=gland,
            rectum=rectum,
            bladder=Bladder(middle, half, _between(rng, 3, 6)),
            skin=skin,
            forward=0.7 * (deep - 18),
            noise=_noise(rng, self.device),
            landmarks={
                "rectum": (0.0, rectum.middle, 0.0),
                "skin front": (0.0, skin.front, 0.0),
                "skin back": (0.0, skin.back + skin.cleft, 0.0),
            },
        )


def _gland(rng: np.random.Generator, pressed: bool) -> Gland:
    """Draw a gland; larger glands have a larger transition zone and a thinner peripheral zone."""
    volume = float(np.clip(_MEDIAN * np.exp(rng.normal(0, 0.38)), _SMALLEST, _LARGEST))
    growth = (volume - 45) / 40
    shape = rng.normal(1, 0.05, 3)
    length, deep, wide = (np.array(_USUAL) * shape / np.prod(shape) ** (1 / 3) * (volume / 45) ** (1 / 3)).tolist()
    apex = _between(rng, 8, 12)
    back = float(np.clip(rng.normal(8.5 - 2.2 * growth, 1.2), 4.5, 12))
    side = float(np.clip(rng.normal(6.0 - 1.5 * growth, 1.0), 3.0, 9))
    press, bend = _between(rng, 0.72, 0.82), _between(rng, 0.016, 0.024)
    half, rim = (length, deep, wide), (apex, back, side)
    return Gland(
        half=half,
        rim=rim,
        lean=_between(rng, 0.05, 0.2),
        notch=_between(rng, 0.5, 3),
        uneven=float(rng.normal(0, 1.5)),
        press=press if pressed else 1.0,
        bend=bend if pressed else 0.25 * bend,
        nodules=_nodules(rng, half, rim),
        lesion=_lesion(rng, half),
    )


def _nodules(rng: np.random.Generator, half: Place, rim: Place) -> tuple[Nodule, ...]:
    """Draw nodules of the transition zone; larger glands have larger and more nodules."""
    room = (half[0] - rim[0] / 2, half[1] - rim[1] / 2, half[2] - rim[2])
    nodules = []
    for _ in range(int(rng.integers(2, 5)) + int(room[2] / 6)):
        up, forward, right = (rng.uniform(-0.65, 0.65, 3) * room).tolist()
        radius = _between(rng, 0.12, 0.36) * room[2]
        nodules.append(Nodule((up + rim[0] / 2, forward + rim[1] / 2, right), radius, bool(rng.random() < 0.6)))
    return tuple(nodules)


def _lesion(rng: np.random.Generator, half: Place) -> tuple[Place, Place] | None:
    """Draw a dark lesion in the peripheral zone of some people, on one side of the back."""
    angle = float(_between(rng, 0.25, 1.15) * rng.choice([-1, 1]))
    up, size = _between(rng, -0.6, 0.4), _between(rng, 3, 6.5)
    middle = (half[0] * up, -0.78 * half[1] * float(np.cos(angle)), 0.82 * half[2] * float(np.sin(angle)))
    return (middle, (1.1 * size, 0.8 * size, 1.2 * size)) if rng.random() < 0.4 else None


def _rectum(rng: np.random.Generator, gland: Gland, balloon: bool) -> Rectum:
    """Draw a rectum that touches the back of the gland."""
    full = rng.beta(1.2, 2.0)
    lumen = (float(3.5 + 11 * full + rng.uniform(0, 2)), float(8 + 11 * full + rng.uniform(0, 3)))
    inflated = (_between(rng, 14.5, 17.5), _between(rng, 17.5, 22.5))
    wall, gap, level = _between(rng, 2.8, 4.2), _between(rng, 0.5, 2.5), _between(rng, -1.3, 1.3)
    if balloon:
        lumen, wall = inflated, 0.6 * wall
    return Rectum(gland.back - gap - wall - lumen[0], lumen, wall, level, balloon)


def _noise(rng: np.random.Generator, device: torch.device) -> Tensor:
    """Draw random fields, coarse to fine, around gland and rectum."""
    shape = [int((high - low) / step) + 1 for low, high, step in zip(*NOISE_BOX, NOISE_STEP, strict=True)]
    return torch.cat([smooth_noise(rng, 1, shape, NOISE_STEP, length, device) for length in _NOISE_LENGTHS])


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(rng.uniform(low, high))
