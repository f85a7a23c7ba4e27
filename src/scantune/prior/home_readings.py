"""Home readings: which readings of label maps are usual in held-out source scans, and how far people differ.

A model file stores them. The predictions for new scans are compared with them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.prior.coefficients import SHIPPED, Coefficients, LocalCoefficients
from scantune.prior.label_readings import Readings
from scantune.prior.odds import odds

SIZE_FLOOR, ODDS_FLOOR, CONTACT_FLOOR = 0.10, 0.01, 0.02
"""Least deviations between home people: of the logarithm of a size, of the odds of a steadiness, and of how far
contacts are from the usual ones."""

VARIABLE = 0.6
"""Deviation of the logarithm of sizes from which people differ so much that sizes say little, as of lesions."""

UNKNOWN = 1e6
"""Deviation of a structure that no home person has, so that nothing exceeds it."""


@dataclass(frozen=True)
class HomeReadings:
    """Readings of held-out source scans, structure by structure.

    Args:
        people: Number of people.
        size: Middle and deviation of the logarithm of sizes in mL `(2, structures)`.
        unsteady: By perturbation, middle and deviation of the odds of steadiness `(2, structures)`.
        contacts: The usual contacts `(structures, 1 + structures)`.
        apart: Middle and deviation of how far people's contacts are from these `(2, structures)`.
        absent: Share of people in whom a structure was not found `(structures,)`: lesions, not organs.
        dice: Their middle Dice by structure; None without labels, and then estimates are of the agreement with what
            the network says at home.
        local: Coefficients that were fitted to degraded scans of these people; None if there were too few.
        section: Middle and deviation of the logarithm of the volume in mL per mm of length, of structures that pass
            through the scans of most people `(2, structures)`; the deviation of others is `UNKNOWN`. None if lengths
            are unknown.
        in_voxels: Whether sizes are numbers of voxels in thousands, since the volume of a voxel was unknown.
    """

    people: int
    size: Tensor
    unsteady: Mapping[str, Tensor]
    contacts: Tensor
    apart: Tensor
    absent: Tensor
    dice: Tensor | None = None
    local: LocalCoefficients | None = None
    section: Tensor | None = None
    in_voxels: bool = False

    @classmethod
    def fit(cls, readings: Sequence[Readings], dice: Sequence[Sequence[float]] | None = None) -> Self:
        """Summarise readings of held-out home scans, and the Dice of their predictions where labels are known."""
        sizes = torch.tensor([person.sizes for person in readings], dtype=torch.double)
        seen = sizes > 0
        unsteady = {}
        for name in readings[0].steadiness:
            values = odds(torch.tensor([person.steadiness[name] for person in readings], dtype=torch.double))
            unsteady[name] = _middles(values, seen, ODDS_FLOOR)
        size = _middles(sizes.clamp_min(1e-30).log(), seen, SIZE_FLOOR)
        touching = torch.tensor([person.contacts for person in readings], dtype=torch.double)
        usual = _usual_contacts(touching, seen)
        apart = _middles(contacts_apart(touching, usual), seen, CONTACT_FLOOR)
        scores = None if dice is None else torch.quantile(torch.tensor(dice, dtype=torch.double), 0.5, 0)
        absent, section = 1 - seen.double().mean(0), _sections(readings, sizes, seen)
        return cls(len(readings), size, unsteady, usual, apart, absent, scores, section=section)

    @property
    def expected(self) -> Tensor:
        """Return the Dice by structure of a prediction as good as at home; an agreement of 1 without labels."""
        return torch.ones_like(self.absent) if self.dice is None else self.dice

    def for_voxels(self, known: bool) -> Self:
        """Return the readings for a scan; if sizes cannot be compared with those at home, no size counts.

        Args:
            known: Whether the volume of the scan's voxels is known.
        """
        return self if known != self.in_voxels else self.without_sizes()

    def without_sizes(self) -> Self:
        """Return the readings for a scan whose voxels have an unknown size, so that no size counts."""
        return replace(self, size=torch.stack([self.size[0], torch.full_like(self.size[1], UNKNOWN)]), section=None)

    @property
    def varies(self) -> bool:
        """Return True if every structure differs so much between people that its size says little."""
        return bool(((self.size[1] > VARIABLE) & (self.size[1] < UNKNOWN)).all())

    @property
    def all_pass(self) -> bool:
        """Return True if all structures pass through the scans of most people, so that few slices are no cut."""
        return self.section is not None and bool((self.section[1] < UNKNOWN).all())

    def sizes_for(self, length: float | None) -> Tensor:
        """Return the middle and the deviation of the log volumes in mL that are usual `(2, structures)`.

        Of structures that pass through the scan they depend on the length.

        Args:
            length: Length in mm that the slices cover; None if it is unknown.
        """
        if self.section is None or length is None:
            return self.size
        scaled = torch.stack([self.section[0] + math.log(length), self.section[1]])
        return torch.where(self.section[1] < UNKNOWN, scaled, self.size)

    @property
    def coefficients(self) -> Coefficients:
        """Return the coefficients by which predictions are assessed."""
        return SHIPPED if self.local is None else self.local.used

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays that a model file stores."""
        stored = {"people": torch.tensor([self.people]), "size": self.size.float(), "absent": self.absent.float()}
        stored |= {"contacts": self.contacts.float(), "apart": self.apart.float()}
        stored |= {f"unsteady/{name}": values.float() for name, values in self.unsteady.items()}
        stored |= {} if self.dice is None else {"dice": self.dice.float()}
        stored |= {} if self.section is None else {"section": self.section.float()}
        stored |= {"in_voxels": torch.ones(1)} if self.in_voxels else {}
        local = {} if self.local is None else self.local.tensors()
        return stored | {f"local/{name}": values for name, values in local.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """Restore the readings that `tensors` stored, or return None for an older file."""
        if "people" not in tensors:
            return None
        _require_sound(tensors)
        wide = {name: values.double() for name, values in tensors.items()}
        unsteady = {n.removeprefix("unsteady/"): v for n, v in wide.items() if n.startswith("unsteady/")}
        contacts, apart, absent = (wide[name] for name in ("contacts", "apart", "absent"))
        local = LocalCoefficients.from_tensors(
            {n.removeprefix("local/"): v for n, v in wide.items() if n.startswith("local/")}
        )
        people = int(tensors["people"][0])
        kinds = (wide.get("dice"), local, wide.get("section"), "in_voxels" in tensors)
        return cls(people, wide["size"], unsteady, contacts, apart, absent, *kinds)


def _require_sound(tensors: Mapping[str, Tensor]) -> None:
    """Check the stored readings of home scans.

    Raises:
        InputError: An array is missing, or has another shape or no finite value.
    """
    count = tensors["absent"].numel() if "absent" in tensors else 0
    shapes = {"size": (2, count), "contacts": (count, count + 1), "apart": (2, count), "absent": (count,)}
    shapes |= {name: (2, count) for name in tensors if name.startswith("unsteady/")}
    shapes |= {name: shape for name, shape in {"dice": (count,), "section": (2, count)}.items() if name in tensors}
    sound = count > 0 and all(
        name in tensors and tuple(tensors[name].shape) == shape and bool(torch.isfinite(tensors[name]).all())
        for name, shape in shapes.items()
    )
    if not sound or tensors["people"].numel() != 1:
        raise InputError(
            "The calibration is damaged: the readings of home scans must have finite numbers for each structure. Fit "
            "the prior again, or copy the file again."
        )


def _sections(readings: Sequence[Readings], sizes: Tensor, seen: Tensor) -> Tensor | None:
    """Return the middle and deviation of log volumes per length, or None if a length is unknown or nothing passes."""
    lengths = [person.length for person in readings if person.length is not None]
    if len(lengths) < len(readings):
        return None
    passing = torch.tensor([person.passing for person in readings]).double().mean(0) > 0.5
    per_length = sizes.clamp_min(1e-30) / torch.tensor(lengths, dtype=torch.double)[:, None]
    return _middles(per_length.log(), seen & passing, SIZE_FLOOR) if bool(passing.any()) else None


def _usual_contacts(touching: Tensor, seen: Tensor) -> Tensor:
    """Return the median contacts of each structure over the people who have it `(structures, 1 + structures)`."""
    rows = [each[mask] for each, mask in zip(touching.unbind(1), seen.T, strict=True)]
    return torch.stack([torch.quantile(row, 0.5, 0) if len(row) else torch.zeros_like(touching[0, 0]) for row in rows])


def contacts_apart(contacts: Tensor, usual: Tensor) -> Tensor:
    """Return the share of an outline whose contacts differ from the usual ones `(..., structures)`."""
    return 0.5 * (contacts - usual).abs().sum(-1)


def _middles(values: Tensor, seen: Tensor, floor: float) -> Tensor:
    """Find the median and the deviation of each column `(2, columns)` from the rows that are seen."""
    columns = []
    for column, mask in zip(values.T, seen.T, strict=True):
        kept = column[mask]
        if not len(kept):
            columns.append(torch.tensor([0.0, UNKNOWN], dtype=torch.double))
            continue
        middle = torch.quantile(kept, 0.5)
        robust = 1.4826 * float(torch.quantile((kept - middle).abs(), 0.5))
        spread = max(robust, 0.7 * float(kept.std(correction=0)), floor)
        columns.append(torch.stack([middle, middle.new_tensor(spread)]))
    return torch.stack(columns, 1)
