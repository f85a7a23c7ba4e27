"""Degradations: families of changes of a scan, from gentle to what no network recognises.

They act on intensities as they were scanned, before these are scaled for a network.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from scantune.scans.case import Case
from scantune.scans.grid import Orientation, Plane
from scantune.simulate.acquisition import rician
from scantune.simulate.fields import gaussian_blur, smooth_noise

Change = Callable[[Tensor, float, np.random.Generator], Tensor]
"""Changes intensities `(slices, rows, columns)` from 0 to 1 by a severity up to 1."""

SEVERITIES = (0.25, 0.5, 1.0)
"""Severities of a family, raised until the prediction has failed."""

FEW = 1e-3
"""Least intensity in a scan that is 0 outside, so that nothing inside becomes outside."""


def _gamma(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:
    """Bend intensities upwards or downwards, in their order."""
    return images ** float(np.exp(1.8 * severity * rng.choice([-1, 1])))


def _curve(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:
    """Map intensities by a curve of six knots, in any order when severe."""
    straight = torch.linspace(0, 1, 6)
    knots = (1 - severity) * straight + severity * torch.from_numpy(rng.random(6)).float()
    place = images * 5
    low = place.long().clamp(0, 4)
    return knots[low] + (place - low) * (knots[low + 1] - knots[low])


def _inverted(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:  # noqa: ARG001
    """Turn intensities round above a threshold, all of them when severe."""
    threshold = 1 - severity
    return torch.where(images < threshold, images, 2 * threshold - images)


def _gain(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:
    """Multiply by a smooth field."""
    length = max(images.shape[-2:]) / 5
    field = smooth_noise(rng, 1, images.shape, (1.0, 1.0, 1.0), max(length, 1.0), images.device)[0]
    return images * (1.5 * severity * field).exp()


def _noise(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:
    """Add noise in both channels of a receiver."""
    noise = torch.from_numpy(rng.standard_normal((2, *images.shape), dtype=np.float32))
    return rician(images, 0.5 * severity * noise)


def _blurred(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:  # noqa: ARG001
    """Blur slices."""
    sigma = severity * max(images.shape[-2:]) / 16
    return gaussian_blur(images[None], (0.0, sigma, sigma))[0]


def _coarse(images: Tensor, severity: float, rng: np.random.Generator) -> Tensor:  # noqa: ARG001
    """Lower the resolution of slices."""
    size = [max(2, round(side / (1 + severity * max(images.shape[-2:]) / 12))) for side in images.shape[-2:]]
    small = F.interpolate(images[:, None], size, mode="area")
    return F.interpolate(small, images.shape[-2:], mode="nearest")[:, 0]


CHANGES: dict[str, Change] = {
    "gamma": _gamma,
    "curve": _curve,
    "inverted": _inverted,
    "gain": _gain,
    "noise": _noise,
    "blurred": _blurred,
    "coarse": _coarse,
}

COVERAGE = "coverage"
"""The family that leaves out slices, with their truth, and changes no intensity."""

FAMILIES = (*CHANGES, COVERAGE)


@dataclass(frozen=True)
class Degradation:
    """A change of a scan.

    Args:
        family: A name of `FAMILIES`.
        severity: Above 0, at most 1.
        person: Number of the person, which with the family fixes every random choice.
    """

    family: str
    severity: float
    person: int = 0

    def apply(self, case: Case, plane: Plane, content: NDArray[np.bool_] | None = None) -> Case:
        """Return the degraded scan.

        Args:
            case: The scan.
            plane: The plane of its slices.
            content: Voxels `(x, y, z)` outside which the scan stays 0. None for all.
        """
        rng = np.random.default_rng((self.person, crc32(self.family.encode())))
        orientation = Orientation.closest(case.affine, plane)
        if self.family == COVERAGE:
            return self._cut(case, orientation.axes[0], rng)
        inside = np.ones(case.shape, bool) if content is None else content
        low, high = np.percentile(case.image[inside], (1, 99))
        unit = np.clip((case.image - low) / max(float(high - low), 1e-12), 0, 1).astype(np.float32)
        slices = torch.from_numpy(np.ascontiguousarray(orientation.to_slices(unit)))
        changed = CHANGES[self.family](slices, self.severity, rng)
        changed = (changed - changed.min()) / (changed.max() - changed.min()).clamp_min(1e-12)
        image = orientation.to_native(changed.numpy())
        if content is not None:
            image = np.where(content, np.maximum(image, FEW), 0)
        return replace(case, image=np.ascontiguousarray(image, np.float32))

    def _cut(self, case: Case, axis: int, rng: np.random.Generator) -> Case:
        """Return the scan without slices at both ends."""
        slices = case.shape[axis]
        kept = max(1, round(slices * (1 - 0.75 * self.severity)))
        first = int(rng.integers(slices - kept + 1))
        return part_of(case, axis, slice(first, first + kept))


def part_of(case: Case, axis: int, chosen: slice) -> Case:
    """Return the slices of a scan that a range with a start chooses along an axis, in their place in space."""
    affine = case.affine.copy()
    step = chosen.step or 1
    affine[:, 3] += chosen.start * case.affine[:, axis]
    affine[:, axis] *= step
    where = tuple(chosen if number == axis else slice(None) for number in range(3))
    reference = None if case.reference is None else case.reference[where]
    return replace(case, image=case.image[where], affine=affine, reference=reference, header=None)
