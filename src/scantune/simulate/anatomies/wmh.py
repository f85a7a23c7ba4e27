"""Heads with white matter hyperintensities, as ageing and disease of the small vessels leave them.

Caps and bands around the lateral ventricles grow together as the load rises; small lesions are strewn over the deep and
subcortical white matter. The numbers are plausible, not measured: loads of 1 to 60 mL, about 8 mL in the median.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.simulate.anatomies.head import HEAD, SHELL, head_atlas
from scantune.simulate.anatomies.lesions import Load, lesions
from scantune.simulate.anatomies.places import Places
from scantune.simulate.anatomy import Anatomy
from scantune.simulate.atlas import Atlas, individual
from scantune.simulate.deform import random_deformation
from scantune.simulate.fields import lattice_axes, sample_at
from scantune.simulate.subject import FieldOfView, Region, Subject
from scantune.simulate.template import Template

_BRAIN = len(HEAD) - len(SHELL)  # the first regions of a head are the brain's
_WHITE = next(place for place, region in enumerate(HEAD) if region.tissue == "white")
_FLUID = [place for place, region in enumerate(HEAD[:_BRAIN]) if region.tissue == "CSF"]


@dataclass(frozen=True, eq=False)
class WhiteMatterLesions(Anatomy):
    """Older people's heads with white matter hyperintensities.

    Attributes:
        atlas: What heads are made from, as `head_atlas` makes it; None makes it when it is first needed.
    """

    atlas: Atlas | None = None

    regions = (*HEAD, Region("lesion", "lesion", "WMH"))
    labels = MappingProxyType({"WMH": 1})

    def __post_init__(self) -> None:
        if self.atlas is not None and self.atlas.regions != HEAD:
            names = ", ".join(region.name for region in self.atlas.regions)
            raise InputError(
                f"Lesions need an atlas of the whole head, but the regions of this one are {names}. "
                "Make one with head_atlas."
            )

    @property
    def _head(self) -> Atlas:
        return head_atlas() if self.atlas is None else self.atlas

    def to(self, device: str | torch.device) -> Self:
        """Return the same anatomy on another device."""
        atlas = self._head.to(device)
        return self if atlas is self.atlas else dataclasses.replace(self, atlas=atlas)

    def fingerprint(self) -> str:
        """Return a fingerprint of the head's templates."""
        return f"{type(self).__name__} {self._head.fingerprint()}"

    def subject(self, rng: np.random.Generator, view: FieldOfView, state: str = "") -> Subject:  # noqa: ARG002
        """Draw one person and lay the scanner's grid over them."""
        template = self._head.templates[0]
        load = Load.draw(rng)
        spacing, origin = view.grid(template.coverage, float(rng.uniform(-0.5, 0.5)))
        reach = max(abs(origin[0]), abs(origin[0] + view.slices * spacing[0])) + view.thickness
        device = template.fractions.device
        deformation = random_deformation(rng, (2 * reach, view.height, view.width), template.swelling_at, device)
        deformation = deformation.swollen(template.swelling_at.to(device), load.swelling)
        heights, rows, columns = lattice_axes(view.shape, spacing, origin)
        points = torch.stack(deformation.sheets(rows, columns).at(heights), -1)
        slab = _slab(template, tuple(view.profile()))
        fractions = points.new_zeros((len(self.regions), *view.shape))
        fractions[_BRAIN:-1] = _sampled(slab[_BRAIN:], template, points)
        places = _places(template)
        window = places.window(points)
        brain = self._brain(rng, load, _sampled(slab[:_BRAIN], template, points[window]), spacing)
        brain *= (1 - fractions[(slice(_BRAIN, -1), *window)].sum(0)).clamp_(0, 1) * (brain.sum(0) > 0)
        lesion = lesions(rng, load, brain[_WHITE], places.at(points[window]), spacing, view.thickness)
        brain[_WHITE] -= lesion
        fractions[(slice(0, _BRAIN), *window)] = brain
        fractions[(-1, *window)] = lesion
        return Subject(fractions, self.regions, spacing, origin)

    def _brain(
        self, rng: np.random.Generator, load: Load, fractions: Tensor, spacing: tuple[float, float, float]
    ) -> Tensor:
        """Return an individual's brain: fractions that add up to 1 wherever the template has some brain.

        The brain is folded apart from what is around it, so that no fold ends up in the skull.
        """
        variation = self._head.templates[0].variation
        low, high = variation.fluid
        older = dataclasses.replace(variation, fluid=(low + load.atrophy, high + load.atrophy))
        whole = fractions / fractions.sum(0).clamp_min(1e-3)
        return individual(rng, older, whole, self._head.folds[:_BRAIN], _FLUID, spacing)


@functools.lru_cache(maxsize=2)
def _places(template: Template) -> Places:
    return Places.of(template, [region.tissue for region in HEAD[:_BRAIN]])


@functools.lru_cache(maxsize=2)
def _slab(template: Template, profile: tuple[tuple[float, float], ...]) -> Tensor:
    """Return the template's fractions as a slice of this profile shows them.

    People are tilted by a few degrees at most, so what a slice averages over lies along the template's own z axis.
    """
    weights: dict[int, float] = {}
    for shift, weight in profile:
        low = math.floor(shift / template.spacing[0])
        part = shift / template.spacing[0] - low
        for tap, share in ((low, 1 - part), (low + 1, part)):
            weights[tap] = weights.get(tap, 0.0) + weight * share
    margin = max(map(abs, weights))
    depth = template.fractions.shape[1]
    slabs = []
    for region in template.fractions:
        padded = F.pad(region[None].float(), (0, 0, 0, 0, margin, margin))[0]
        total = sum(weight * padded[margin + tap : margin + tap + depth] for tap, weight in weights.items())
        slabs.append(torch.as_tensor(total).round().clamp_(0, 255).to(torch.uint8))
    return torch.stack(slabs)


def _sampled(fractions: Tensor, template: Template, points: Tensor) -> Tensor:
    return sample_at(fractions.float(), template.origin, template.spacing, points).div_(255)
