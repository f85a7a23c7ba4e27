"""Receive coils: how much brighter a scan is near them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError

_MISPLACED = 15.0  # mm; deviation, along each axis, of where a coil comes to lie
_BLEND = 16.0  # order of the mean over a coil's elements; the higher, the more it is the nearest alone
_SIDES: dict[str, tuple[tuple[float, float], ...]] = {
    "front": ((1.0, 0.0),),
    "back": ((-1.0, 0.0),),
    "both": ((1.0, 0.0), (-1.0, 0.0)),
    "around": ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)),
}


class Coil(ABC):
    """A receive coil."""

    @abstractmethod
    def gain(
        self, points: Tensor, landmarks: Mapping[str, tuple[float, float, float]], rng: np.random.Generator
    ) -> Tensor:
        """Return the gain `(depth, height, width)`, about 1 in the middle of the anatomy or far from the coil.

        Args:
            points: Positions `(depth, height, width, 3)`, each `(z, y, x)` in mm.
            landmarks: Where things are in this subject.
            rng: Where the coil's own position comes from.
        """


@dataclass(frozen=True)
class CoilBody(Coil):
    """The coil built into the scanner's bore: even everywhere."""

    def __repr__(self) -> str:
        """Return the name in version 0.1: simulated scans and jobs of benchmarks are found by it."""
        return "Body()"

    def gain(
        self,
        points: Tensor,
        landmarks: Mapping[str, tuple[float, float, float]],  # noqa: ARG002
        rng: np.random.Generator,
    ) -> Tensor:
        """Return a gain of 1."""
        _position(rng, points)
        return torch.ones_like(points[..., 0])


@dataclass(frozen=True)
class Surface(Coil):
    """Coil elements on the skin."""

    side: Literal["front", "back", "both", "around"] = "both"
    """Where they lie."""
    strength: float = 0.5
    """Loss of log gain per 100 mm away from the nearest element."""
    reach: float = 100.0
    """Distance in mm of the elements from the middle."""

    def __post_init__(self) -> None:
        if self.side not in _SIDES:
            raise InputError(f"The side of a surface coil must be one of {', '.join(_SIDES)}, got {self.side!r}.")
        if self.strength < 0 or not self.reach > 0:
            raise InputError(
                "A surface coil needs a strength of 0 or more and a reach above 0, got "
                f"{self.strength} and {self.reach}."
            )

    def gain(
        self,
        points: Tensor,
        landmarks: Mapping[str, tuple[float, float, float]],  # noqa: ARG002
        rng: np.random.Generator,
    ) -> Tensor:
        """Return an exponential loss with the distance from the nearest element, blended where several are as near.

        The plain mean over elements would be no brighter near them than in the middle.
        """
        off = _position(rng, points)
        elements = [points.new_tensor([0.0, y * self.reach, x * self.reach]) + off for y, x in _SIDES[self.side]]
        distance = torch.stack([(points - element).norm(dim=-1) for element in elements])
        gain = -self.strength * (distance - self.reach) / 100.0
        shared = math.log(len(elements)) / _BLEND  # so that the middle, as far from all, has 1
        return torch.exp(torch.logsumexp(_BLEND * gain, 0) / _BLEND - shared)


@dataclass(frozen=True)
class Endorectal(Coil):
    """A loop in a balloon in the rectum: very bright beside it, dark a few centimetres away."""

    strength: float = 6.0
    """Gain beside the coil, relative to far away."""
    reach: float = 25.0
    """Distance in mm at which most of the extra gain is lost."""
    length: float = 70.0
    """Extent along the body in mm."""

    def __post_init__(self) -> None:
        if not self.strength >= 1 or not self.reach > 0 or not self.length > 0:
            raise InputError(
                "An endorectal coil needs a strength of at least 1 and a reach and a length above 0, got "
                f"{self.strength}, {self.reach} and {self.length}."
            )

    def gain(
        self, points: Tensor, landmarks: Mapping[str, tuple[float, float, float]], rng: np.random.Generator
    ) -> Tensor:
        """Return a gain that falls with the cube of the distance, as the field of a loop does along its axis."""
        if "rectum" not in landmarks:
            raise InputError("An endorectal coil needs an anatomy with a rectum; choose another coil for this one.")
        away = points - points.new_tensor(landmarks["rectum"]) - _position(rng, points) / 4
        beyond = (away[..., 0].abs() - self.length / 2).clamp_min(0)
        distance = torch.sqrt(away[..., 1].square() + away[..., 2].square() + beyond.square())
        return 1 + (self.strength - 1) * (1 + (distance / self.reach).square()).pow(-1.5)


COILS: dict[str, type[Coil]] = {"body": CoilBody, "surface": Surface, "endorectal": Endorectal}


def _position(rng: np.random.Generator, like: Tensor) -> Tensor:
    """Draw the offset `(3,)` in mm of a coil from its place; drawn for every coil, so that all use the same numbers."""
    return torch.from_numpy(rng.normal(0.0, _MISPLACED, 3).astype(np.float32)).to(like)
