"""Anatomies made from templates: atlases, and label maps of real people.

Nothing here knows which tissues or organs there are; `icbm152.py` and `labelmaps.py` bring them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.anatomy import Anatomy
from scantune.simulate.deform import Deformation, random_deformation
from scantune.simulate.fields import gaussian_blur, lattice_points, smooth_noise
from scantune.simulate.subject import FieldOfView, Region, Subject
from scantune.simulate.template import Template, Variation

_FLUID = "CSF"  # the tissue around and within the brain


@dataclass(frozen=True, eq=False)
class Atlas(Anatomy):
    """Subjects that are templates, deformed and folded at random.

    Attributes:
        regions: Of the templates' fractions, in their order.
        folds: For each region, the number of the random field that shapes it (see `Variation`); regions that share
            one keep their common border.
        labels: Label value of each structure.
        templates: What subjects are made from.
        weights: How often each template is used.
    """

    regions: tuple[Region, ...]
    folds: tuple[int, ...]
    labels: Mapping[str, int]
    templates: tuple[Template, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.templates:
            raise InputError("An anatomy needs at least one template, but got none. Give label maps or an atlas.")

    @property
    def _fluid(self) -> list[int]:
        return [index for index, region in enumerate(self.regions) if region.tissue == _FLUID]

    def to(self, device: str | torch.device) -> Atlas:
        """Return the same anatomy with its templates on a device, or itself if they are there already."""
        moved = tuple(one.to(device) for one in self.templates)
        there = all(new is old for new, old in zip(moved, self.templates, strict=True))
        return self if there else dataclasses.replace(self, templates=moved)

    def fingerprint(self) -> str:
        """Return a fingerprint of the templates."""
        digest = hashlib.sha256(repr((self.regions, self.folds, self.weights)).encode())
        for template in self.templates:
            digest.update(json.dumps(template.record()).encode())
            digest.update(template.fractions.cpu().numpy().tobytes())
        return digest.hexdigest()

    def mixed_with(self, other: Atlas) -> Atlas:
        """Mix the subjects of this atlas with those of another that has the same regions, half and half.

        Raises:
            InputError: The other has other regions.
        """
        if (self.regions, self.folds) != (other.regions, other.folds):
            names = [", ".join(region.name for region in one.regions) for one in (self, other)]
            raise InputError(
                f"Anatomies can be mixed when their regions agree, but these have {names[0]} and {names[1]}. "
                "Use them one after the other instead."
            )
        shares = [weight / sum(part.weights) for part in (self, other) for weight in part.weights]
        return dataclasses.replace(self, templates=self.templates + other.templates, weights=tuple(shares))

    def part(self, templates: slice) -> Atlas:
        """Return the anatomy of some of the templates."""
        return dataclasses.replace(self, templates=self.templates[templates], weights=self.weights[templates])

    def subject(self, rng: np.random.Generator, view: FieldOfView, state: str = "") -> Subject:  # noqa: ARG002
        """Draw one person and lay the scanner's grid over them."""
        chances = np.asarray(self.weights) / sum(self.weights)
        template = self.templates[int(rng.choice(len(self.templates), p=chances))]
        low, high = template.coverage
        spacing, origin = view.grid(template.coverage, float(rng.uniform(-0.5, 0.5)))
        ends = (low - spacing[0], high + spacing[0], origin[0], origin[0] + view.slices * spacing[0])
        extent = (2 * max(map(abs, ends)) + view.thickness, view.height, view.width)
        device = template.fractions.device
        deformation = random_deformation(rng, extent, template.swelling_at, device)
        fractions = _slices(template, deformation, view, spacing, origin)
        fractions = individual(rng, template.variation, fractions, self.folds, self._fluid, spacing)
        around = ""
        if template.variation.stripping is not None:
            fractions = _stripped(rng, fractions, self._fluid, view.in_plane, template.variation.stripping)
            around = _FLUID
        return Subject(fractions, self.regions, spacing, origin, around=around)

    def save(self, path: str | Path) -> None:
        """Write the templates to an .npz file, for machines on which their source cannot be read.

        Raises:
            InputError: The name does not end in .npz.
        """
        record = {
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "folds": self.folds,
            "labels": dict(self.labels),
            "weights": self.weights,
            "templates": [template.record() for template in self.templates],
        }
        arrays: dict[str, Any] = {"record": np.array(json.dumps(record))}
        arrays |= {f"template{i}": one.fractions.cpu().numpy() for i, one in enumerate(self.templates)}
        np.savez_compressed(_npz(path), **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Atlas:
        """Read templates that `save` wrote.

        Raises:
            InputError: There is no such file, or something else wrote it.
        """
        path = _npz(path)
        if not path.is_file():
            raise InputError(f"{path} must be an anatomy file, but is not there. Write one with export_atlas.")
        with np.load(path, allow_pickle=False) as arrays:
            record = json.loads(str(arrays["record"])) if "record" in arrays else {}
            if "regions" not in record:
                raise InputError(f"{path} holds no anatomy. Write an anatomy file with export_atlas.")
            templates = tuple(
                Template.from_record(arrays[f"template{i}"], entry) for i, entry in enumerate(record["templates"])
            )
        regions = tuple(Region(**region) for region in record["regions"])
        return cls(regions, tuple(record["folds"]), record["labels"], templates, tuple(record["weights"]))


def individual(
    rng: np.random.Generator,
    variation: Variation,
    fractions: Tensor,
    folds: Sequence[int],
    fluid: Sequence[int],
    spacing: tuple[float, ...],
) -> Tensor:
    """Give the slices of a deformed template an individual's folds.

    Args:
        rng: Where the randomness comes from.
        variation: How individuals differ.
        fractions: Of the template `(regions, slices, height, width)`.
        folds: For each region, the number of the random field that shapes it.
        fluid: The regions that atrophy leaves more of.
        spacing: Distances `(z, y, x)` of voxel centres in mm.

    Returns:
        Fractions that add up to 1 where the template's do to more than a half, and to 0 elsewhere.
    """
    power, folding, more = (
        float(rng.uniform(*bounds)) for bounds in (variation.sharpness, variation.folding, variation.fluid)
    )
    noise = smooth_noise(rng, max(folds) + 1, fractions.shape[1:], spacing, variation.folding_length, fractions.device)
    inside = fractions.sum(0) > 0.5
    logits = fractions.clamp_min(1e-3).log_().mul_(power).add_(noise[list(folds)], alpha=folding)
    logits[list(fluid)] += more
    return logits.softmax(0).mul_(inside)


def _slices(
    template: Template,
    deformation: Deformation,
    view: FieldOfView,
    spacing: tuple[float, float, float],
    origin: tuple[float, float, float],
) -> Tensor:
    """Return fractions `(regions, slices, height, width)`: weighted means over the planes of each slice profile."""
    grid = lattice_points(view.shape, spacing, origin, template.fractions.device)
    planes = view.profile()
    points = torch.cat([grid + grid.new_tensor([shift, 0.0, 0.0]) for shift, _ in planes])
    fractions = template.at(deformation(points)).reshape(-1, len(planes), *view.shape)
    return torch.einsum("p,rpshw->rshw", fractions.new_tensor([weight for _, weight in planes]), fractions)


def _stripped(
    rng: np.random.Generator, fractions: Tensor, fluid: list[int], in_plane: float, stripping: tuple[float, float]
) -> Tensor:
    """Cut the fluid around the organ away, more or less tightly, as skull-stripping tools do.

    What is kept lies near solid tissue, or deep inside (ventricles, fissures).
    """
    reach, least = float(rng.uniform(*stripping)), float(rng.uniform(0.3, 0.6))
    inside = fractions.sum(0, keepdim=True)
    near = (
        gaussian_blur(inside - fractions[fluid].sum(0, keepdim=True), (0.0, reach / in_plane, reach / in_plane)) > least
    )
    deep = gaussian_blur(inside, (0.0, 6.0 / in_plane, 6.0 / in_plane)) > 0.97
    return fractions * ((near | deep) & (inside > 0.5))


def _npz(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path} must be named as an anatomy file, ending in .npz. Choose such a name.")
    return path
