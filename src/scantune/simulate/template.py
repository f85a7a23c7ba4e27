"""Templates: the tissue fractions of one atlas or one real brain, from which subjects are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scantune.simulate.fields import gaussian_blur, sample_at


@dataclass(frozen=True)
class Variation:
    """How a template's fractions become an individual's.

    Fractions are raised to a power and renormalised after smooth random fields were added to their
    logarithms: where an average atlas is undecided, each individual gets folds of its own.

    Attributes:
        sharpness: Range of the power.
        folding: Range of the deviation of the random fields.
        folding_length: Smoothness of the random fields, in mm.
        fluid: Range of the shift of the fluid's logarithm: atrophy (high) or a full brain (low).
        softness: In-plane blur of the template before all this, in mm; for label maps, which have hard edges.
        stripping: Range of the distance in mm from solid tissue up to which fluid is kept when the skull is stripped
            away; None strips nothing.
    """

    sharpness: tuple[float, float] = (1.0, 1.0)
    folding: tuple[float, float] = (0.0, 0.0)
    folding_length: float = 2.5
    fluid: tuple[float, float] = (0.0, 0.0)
    softness: float = 0.0
    stripping: tuple[float, float] | None = (1.5, 3.0)


@dataclass(frozen=True, eq=False)
class Template:
    """Tissue fractions of one brain or atlas, in its own space: mm, `(z, y, x)` pointing up, forward, right.

    Attributes:
        fractions: Fractions times 255 `(tissues, depth, height, width)`, uint8; 0 in all tissues outside.
        spacing: Voxel edges `(z, y, x)` in mm.
        origin: Position of the first voxel; the middle of the organ is near 0 in all axes.
        coverage: Lowest and highest z that slices are put at.
        swelling_at: Centres `(n, 3)` about which subjects differ by swelling: the ventricles.
        variation: How its fractions become an individual's.
    """

    fractions: Tensor
    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]
    coverage: tuple[float, float]
    swelling_at: Tensor
    variation: Variation

    def at(self, points: Tensor) -> Tensor:
        """Return the fractions `(tissues, depth, height, width)` at points `(depth, height, width, 3)` of its space."""
        fractions = self.fractions.to(torch.float32).div_(255)
        blur = self.variation.softness
        if blur:
            fractions = gaussian_blur(fractions, (0.0, blur / self.spacing[1], blur / self.spacing[2]))
        return sample_at(fractions, self.origin, self.spacing, points)

    def to(self, device: str | torch.device) -> Template:
        """Return the same template on a device, or itself if it is there already."""
        moved = self.fractions.to(device)
        return self if moved is self.fractions else dataclasses.replace(self, fractions=moved)

    def record(self) -> dict[str, Any]:
        """Return everything but the fractions, as JSON takes it."""
        return {
            "spacing": self.spacing,
            "origin": self.origin,
            "coverage": self.coverage,
            "swelling_at": self.swelling_at.tolist(),
            "variation": dataclasses.asdict(self.variation),
        }

    @classmethod
    def from_record(cls, fractions: NDArray[np.uint8], record: Mapping[str, Any]) -> Template:
        """Restore the template that `record` described."""
        variation: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in record["variation"].items()
        }
        z, y, x = record["spacing"]
        low, high = record["coverage"]
        first = record["origin"]
        return cls(
            torch.from_numpy(fractions),
            (z, y, x),
            (first[0], first[1], first[2]),
            (low, high),
            torch.tensor(record["swelling_at"], dtype=torch.float32).reshape(-1, 3),
            Variation(**variation),
        )
