"""Anatomy: a generator of subjects, each the true tissue fractions of one person on a scanner's grid.

Nothing here knows which tissues or organs there are; `icbm152.py` and `labelmaps.py` bring them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.deform import Deformation, random_deformation
from scantune.simulate.fields import gaussian_blur, lattice_points, smooth_noise
from scantune.simulate.template import Template, Variation

_PLANES_APART = 1.5  # mm; thicker slices are averaged over several planes at most this far apart


@dataclass(frozen=True)
class FieldOfView:
    """Where the scanner's voxels lie.

    Attributes:
        slices: Number of axial slices, spread evenly over the anatomy.
        height: Extent from back to front in mm.
        width: Extent from left to right in mm.
        in_plane: Voxel edge in mm.
        thickness: Slice thickness in mm; what is left between slices is a gap.
    """

    slices: int = 16
    height: float = 208.0
    width: float = 176.0
    in_plane: float = 1.0
    thickness: float = 1.5

    def __post_init__(self) -> None:
        if self.slices < 1:
            raise InputError(f"A scan needs at least 1 slice, but {self.slices} were asked for.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slices, rows, columns."""
        return self.slices, round(self.height / self.in_plane), round(self.width / self.in_plane)


@dataclass(frozen=True, eq=False)
class Subject:
    """The true anatomy of one person on a scanner's grid.

    Attributes:
        fractions: Share of each tissue in a voxel `(tissues, slices, height, width)`; they add up to 1 inside
            the stripped brain and to 0 outside.
        tissues: Names of the tissues.
        spacing: Distances `(z, y, x)` of voxel centres in mm.
        origin: Position `(z, y, x)` of the first voxel in mm.
    """

    fractions: Tensor
    tissues: tuple[str, ...]
    spacing: tuple[float, float, float]
    origin: tuple[float, float, float]

    def labels(self, values: Mapping[str, int]) -> Tensor:
        """The label `(slices, height, width)`, uint8, that fills most of each voxel.

        Args:
            values: Label value of each tissue; tissues with the same value are one structure.
        """
        shares = self.fractions.new_zeros((max(values.values()) + 1, *self.fractions.shape[1:]))
        shares[0] = 1 - self.fractions.sum(0)
        for tissue, share in zip(self.tissues, self.fractions, strict=True):
            shares[values[tissue]] += share
        return shares.argmax(0).to(torch.uint8)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A generator of subjects.

    Attributes:
        tissues: Names of the tissues, in the order of the templates' fractions; the first is the fluid.
        folds: For each tissue, the number of the random field that shapes it (see `Variation`); tissues that
            share one keep their common border.
        templates: What subjects are made from.
        weights: How often each template is used.
    """

    tissues: tuple[str, ...]
    folds: tuple[int, ...]
    templates: tuple[Template, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.templates:
            raise InputError("An anatomy needs at least one template, but got none. Give label maps or an atlas.")

    def to(self, device: str | torch.device) -> Anatomy:
        """The same anatomy with its templates on a device."""
        return dataclasses.replace(self, templates=tuple(one.to(device) for one in self.templates))

    def mixed_with(self, other: Anatomy) -> Anatomy:
        """Subjects of this and of another anatomy with the same tissues, half and half.

        Raises:
            InputError: The other has other tissues.
        """
        if (self.tissues, self.folds) != (other.tissues, other.folds):
            raise InputError(
                f"Anatomies can be mixed when their tissues agree, but these have {', '.join(self.tissues)} "
                f"and {', '.join(other.tissues)}. Use them one after the other instead."
            )
        shares = [weight / sum(part.weights) for part in (self, other) for weight in part.weights]
        return dataclasses.replace(self, templates=self.templates + other.templates, weights=tuple(shares))

    def subject(self, rng: np.random.Generator, view: FieldOfView) -> Subject:
        """Draw one person and lay the scanner's grid over them; deterministic by the state of `rng`."""
        chances = np.asarray(self.weights) / sum(self.weights)
        template = self.templates[int(rng.choice(len(self.templates), p=chances))]
        low, high = template.coverage
        spacing = ((high - low) / view.slices, view.in_plane, view.in_plane)
        middle = (low + high) / 2 + float(rng.uniform(-0.5, 0.5)) * spacing[0]
        half = [edge * (size - 1) / 2 for edge, size in zip(spacing, view.shape, strict=True)]
        origin = (middle - half[0], -half[1], -half[2])
        extent = (2 * max(-low, high) + 2 * spacing[0] + view.thickness, view.height, view.width)
        deformation = random_deformation(rng, extent, template.swelling_at, template.fractions.device)
        fractions = _slices(template, deformation, view, spacing, origin)
        fractions = self._individual(rng, template.variation, fractions, spacing)
        return Subject(_stripped(rng, fractions, view.in_plane), self.tissues, spacing, origin)

    def _individual(
        self, rng: np.random.Generator, variation: Variation, fractions: Tensor, spacing: tuple[float, ...]
    ) -> Tensor:
        """Give the slices `(tissues, slices, height, width)` of a deformed template an individual's folds."""
        power, folding, fluid = (
            float(rng.uniform(*bounds)) for bounds in (variation.sharpness, variation.folding, variation.fluid)
        )
        noise = smooth_noise(
            rng, max(self.folds) + 1, fractions.shape[1:], spacing, variation.folding_length, fractions.device
        )
        inside = fractions.sum(0) > 0.5
        logits = fractions.clamp_min(1e-3).log_().mul_(power).add_(noise[list(self.folds)], alpha=folding)
        logits[0] += fluid
        return logits.softmax(0).mul_(inside)

    def save(self, path: str | Path) -> None:
        """Write the templates to an .npz file, for machines on which their source cannot be read.

        Raises:
            InputError: The name does not end in .npz.
        """
        templates = [template.record() for template in self.templates]
        record = {
            "tissues": self.tissues,
            "folds": self.folds,
            "weights": self.weights,
            "templates": templates,
        }
        arrays: dict[str, Any] = {"record": np.array(json.dumps(record))}
        arrays |= {f"template{i}": one.fractions.cpu().numpy() for i, one in enumerate(self.templates)}
        np.savez_compressed(_npz(path), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Anatomy:
        """Read templates that `save` wrote.

        Raises:
            InputError: There is no such file, or something else wrote it.
        """
        path = _npz(path)
        if not path.is_file():
            raise InputError(f"{path} must be an anatomy file, but is not there. Write one with export_atlas.")
        with np.load(path, allow_pickle=False) as arrays:
            if "record" not in arrays:
                raise InputError(f"{path} holds no anatomy. Write an anatomy file with export_atlas.")
            record = json.loads(str(arrays["record"]))
            templates = tuple(
                Template.from_record(arrays[f"template{i}"], entry) for i, entry in enumerate(record["templates"])
            )
        return cls(tuple(record["tissues"]), tuple(record["folds"]), templates, tuple(record["weights"]))


def _slices(
    template: Template,
    deformation: Deformation,
    view: FieldOfView,
    spacing: tuple[float, float, float],
    origin: tuple[float, float, float],
) -> Tensor:
    """Fractions `(tissues, slices, height, width)`, each slice the mean over planes across its thickness."""
    count = math.ceil(view.thickness / _PLANES_APART)
    shifts = [view.thickness * ((plane + 0.5) / count - 0.5) for plane in range(count)]
    device = template.fractions.device
    grid = lattice_points(view.shape, spacing, origin, device)
    points = torch.cat([grid + grid.new_tensor([shift, 0.0, 0.0]) for shift in shifts])
    fractions = template.at(deformation(points))
    return fractions.reshape(-1, count, *view.shape).mean(1)


def _stripped(rng: np.random.Generator, fractions: Tensor, in_plane: float) -> Tensor:
    """Cut the fluid around the organ away, more or less tightly, as skull-stripping tools do.

    What is kept lies near solid tissue, or deep inside (ventricles, fissures).
    """
    reach, least = float(rng.uniform(1.5, 3.0)), float(rng.uniform(0.3, 0.6))
    inside = fractions.sum(0, keepdim=True)
    near = gaussian_blur(inside - fractions[:1], (0.0, reach / in_plane, reach / in_plane)) > least
    deep = gaussian_blur(inside, (0.0, 6.0 / in_plane, 6.0 / in_plane)) > 0.97
    return fractions * ((near | deep) & (inside > 0.5))


def _npz(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path} must be named as an anatomy file, ending in .npz. Choose such a name.")
    return path
