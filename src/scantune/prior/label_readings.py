"""Readings of label maps: what is read off every structure of a prediction without labels.

Three things are read. The *size* of a structure is its volume. Its *steadiness* is its Dice with the network's
prediction of the same scan, moved by a few pixels or mirrored, which should change nothing. Its *contacts* are the
shares of its outline that touch the background and each other structure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

import torch
from torch import Tensor

from scantune.prior.passing import passing_structures
from scantune.tasks import are_masks, structure_counts, structure_mask


@dataclass(frozen=True)
class Readings:
    """What is read off one prediction without labels.

    Args:
        sizes: Volume of each structure in mL.
        steadiness: By perturbation, the Dice of each structure with the prediction of the perturbed scan; 0 where both
            have none.
        contacts: By structure, the share of its outline at the background and at each structure, 0 at itself; zeros
            where there is none.
        length: Length in mm that the slices cover; None if it is unknown.
        passing: Whether each structure goes on beyond both ends of the scan; none if the length is unknown.
    """

    sizes: tuple[float, ...]
    steadiness: Mapping[str, tuple[float, ...]]
    contacts: tuple[tuple[float, ...], ...]
    length: float | None = field(default=None, kw_only=True)
    passing: tuple[bool, ...] = field(default=(), kw_only=True)

    @classmethod
    def of(
        cls,
        labels: Tensor,
        perturbed: Mapping[str, Tensor],
        structures: int,
        voxel_ml: float = 1e-3,
        length: float | None = None,
    ) -> Self:
        """Read a label map, and those of the perturbed scan, put back in place.

        Args:
            labels: `(slices, *spatial)`, 0 for the background; or masks `(slices, structures, *spatial)`.
            perturbed: The same of perturbed scans, by the perturbation's name.
            structures: How many there are.
            voxel_ml: Volume of a voxel in mL.
            length: Length in mm that the slices cover; None if it is unknown.
        """
        pixels = structure_counts(labels, structures).tolist()
        steady = {name: overlaps(labels, other, structures) for name, other in perturbed.items()}
        touching = contact_shares(labels, structures)
        sizes, contacts = tuple(voxel_ml * count for count in pixels), tuple(map(tuple, touching.tolist()))
        passing = () if length is None else passing_structures(labels, structures)
        return cls(sizes, steady, contacts, length=length, passing=passing)

    @property
    def structures(self) -> int:
        """Count the structures."""
        return len(self.sizes)

    @property
    def vanished(self) -> tuple[int, ...]:
        """Number the structures, from 0, of which there is nothing."""
        return tuple(number for number, size in enumerate(self.sizes) if size == 0)


@dataclass(frozen=True)
class GradedReadings(Readings):
    """Readings of a prediction whose truth is known.

    Args:
        dice: Dice of each structure; 0 where neither prediction nor truth has it.
    """

    dice: tuple[float, ...] = ()

    @property
    def mean_dice(self) -> float:
        """Return the mean Dice over the structures."""
        return fmean(self.dice)


def overlaps(one: Tensor, other: Tensor, structures: int) -> tuple[float, ...]:
    """Compute the Dice of each structure in two label maps; 0 where neither has it, for nothing shows nothing."""
    found = []
    for value in range(1, structures + 1):
        here, there = structure_mask(one, value), structure_mask(other, value)
        total = float(here.sum() + there.sum())
        found.append(2 * float((here & there).sum()) / total if total else 0.0)
    return tuple(found)


def contact_shares(labels: Tensor, structures: int) -> Tensor:
    """Count faces between neighbours of different labels, as shares of each structure's `(structures, 1 + structures)`.

    Faces between slices, along the first axis, are not looked at: slices may be far apart. Of masks, a face is at what
    there is beyond it, in equal shares if that is several structures.
    """
    if are_masks(labels):
        return _mask_contact_shares(labels)
    classes = structures + 1
    faces = torch.zeros(classes * classes, dtype=torch.double)
    for axis in range(1, labels.ndim):
        one, other = labels.narrow(axis, 1, labels.shape[axis] - 1), labels.narrow(axis, 0, labels.shape[axis] - 1)
        differ = one != other
        faces += torch.bincount((one * classes + other)[differ].flatten().cpu(), minlength=classes * classes)
    square = faces.view(classes, classes)
    rows = (square + square.T)[1:]
    return rows / rows.sum(1, keepdim=True).clamp_min(1)


def _mask_contact_shares(masks: Tensor) -> Tensor:
    """Count faces of masks `(slices, structures, *spatial)` as `contact_shares` does."""
    inside = masks.movedim(1, 0)
    present = torch.cat([~inside.any(0, keepdim=True), inside]).double()
    beyond = present / present.sum(0)
    faces = torch.zeros(len(inside), len(present), dtype=torch.double, device=masks.device)
    for axis in range(2, inside.ndim):
        length = inside.shape[axis] - 1
        one, other = inside.narrow(axis, 0, length), inside.narrow(axis, 1, length)
        for mask, rest, start in ((one, other, 1), (other, one, 0)):
            edge = (mask & ~rest).double().flatten(1)
            faces += edge @ beyond.narrow(axis, start, length).flatten(1).T
    return (faces / faces.sum(1, keepdim=True).clamp_min(1)).cpu()
