"""Assessment of a prediction without labels: fine, doubtful or failed, with an expected Dice.

Three things are read off every structure of a prediction. Its *size*: of two regions of which one is `exp(d)` times as
large as the other, the Dice is at most `2 / (1 + exp(d))`. Its *steadiness*: its Dice with the network's prediction of
the same scan, moved by a few pixels or mirrored, which should change nothing. Its *contacts*: the share of its outline
that touches each other structure. Sizes and steadiness are put on one scale, the odds `log((2 - Dice) / Dice)`, and
count only as far as they exceed those of held-out source scans. So a perturbation that says nothing at home says
nothing here, and a vanished structure is no evidence of steadiness.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal, Self

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.prior.coefficients import SHIPPED, Coefficients, LocalCoefficients
from scantune.prior.passing import passing_structures
from scantune.tasks import are_masks, structure_counts, structure_mask

Verdict = Literal["fine", "doubtful", "failed"]

SELECTING = ("moved",)
"""Perturbations by which stages of an adaptation are compared."""

SHOWING = ("moved", "mirrored")
"""Perturbations behind the estimate that is shown; the second has not been used to choose a stage."""

PEOPLE_FOR_A_RANGE = 5
"""Smallest number of held-out people for which an estimate has a range."""

SMALLEST = 1e-3
"""Added to a Dice before its odds are taken, so that 0 has some."""

SIZE_FLOOR, ODDS_FLOOR, CONTACT_FLOOR = 0.10, 0.01, 0.02
"""Least deviations between home people: of the logarithm of a size, of the odds of a steadiness, and of how far
contacts are from the usual ones."""

UNKNOWN = 1e6
"""Deviation of a structure that no home person has, so that nothing exceeds it."""

NOTABLE = 0.1
"""Odds from which an excess is worth a sentence: a twentieth of the Dice."""

TELLING = 2
"""Power of the Dice that a perturbation has at home by which it counts."""

DEVIATIONS = {"size": 2.0, "unsteady": 1.0, "contact": 1.5}
"""Deviations from the middle of home people that count as usual."""


def odds(dice: Tensor) -> Tensor:
    """Turn Dice into odds: 0 for a Dice of 1, and the larger the worse."""
    return ((2 - dice + SMALLEST) / (dice + SMALLEST)).log()


def dice_from(value: Tensor) -> Tensor:
    """Turn odds into Dice, the inverse of `odds` but for rounding."""
    return 2 / (1 + value.clamp(0, 50).exp())


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
        apart = _middles(_apart(touching, usual), seen, CONTACT_FLOOR)
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


def _apart(contacts: Tensor, usual: Tensor) -> Tensor:
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


@dataclass(frozen=True)
class Assessment:
    """Estimate of the quality of a prediction.

    Args:
        verdict: `fine`, `doubtful` or `failed`. Also doubtful is what is as good as at home but may well be poor.
        expected: Mean Dice over structures, or agreement where home Dice is not known.
        low: Eight of ten such predictions lie between this ...
        high: ... and this; both None with too few home people.
        structures: What is expected of each structure.
        reasons: Sentences, the weightiest first; none where all is as at home.
        home: What is expected of a prediction that is as good as at home.
        labelled: Whether `expected` is a Dice.
        leave: Whether adapting can hardly help: the prediction is fine, or is as good as at home although that is
            not good enough to be fine.
    """

    verdict: Verdict
    expected: float
    low: float | None
    high: float | None
    structures: tuple[float, ...]
    reasons: tuple[str, ...]
    home: float = 1.0
    labelled: bool = True
    leave: bool = False


@dataclass(frozen=True)
class Excesses:
    """Amounts by which readings exceed those at home, by structure `(structures,)`; 0 if they are as at home.

    Args:
        unsteady: In odds.
        size: In logarithms.
        contact: In shares of the outline; 0 where a structure vanished.
    """

    unsteady: Tensor
    size: Tensor
    contact: Tensor

    @classmethod
    def of(cls, readings: Readings, home: HomeReadings, using: Sequence[str] = SHOWING) -> Self:
        """Compare readings with those at home, by the perturbations that count."""
        sizes = torch.tensor(readings.sizes, dtype=torch.double)
        middle, spread = home.sizes_for(readings.length)
        size = ((sizes.clamp_min(1e-30).log() - middle).abs() - DEVIATIONS["size"] * spread).clamp_min(0)
        touching = torch.tensor(readings.contacts, dtype=torch.double)
        contact = _above(_apart(touching, home.contacts), home.apart, "contact") * (sizes > 0)
        return cls(_unsteady(readings, home, using), size, contact)

    def worse(self, coefficients: Coefficients, gone: Tensor) -> Tensor:
        """Sum up the excesses in odds `(structures,)`; contacts count over all structures that are there."""
        apart = coefficients.contact * self.contact.sum() / (~gone).sum().clamp_min(1)
        return (coefficients.unsteady * self.unsteady + coefficients.size * self.size).clamp_min(float(apart))


def _unsteady(readings: Readings, home: HomeReadings, using: Sequence[str]) -> Tensor:
    """Return the mean excess of unsteadiness of each structure.

    Perturbations count by a power of the Dice that they have at home: the more one changes there, the less it shows.
    """
    known = [name for name in using if name in home.unsteady and name in readings.steadiness]
    if not known:
        return torch.zeros(readings.structures, dtype=torch.double)
    excess = [_above(odds(_row(readings.steadiness[name])), home.unsteady[name], "unsteady") for name in known]
    weights = torch.stack([dice_from(home.unsteady[name][0]) ** TELLING for name in known]).clamp_min(SMALLEST)
    return (weights * torch.stack(excess)).sum(0) / weights.sum(0)


def _row(values: Sequence[float]) -> Tensor:
    """Make a tensor of double precision."""
    return torch.tensor(values, dtype=torch.double)


def _above(values: Tensor, home: Tensor, kind: str) -> Tensor:
    """Compute the amount by which values exceed the usual range of home people."""
    middle, spread = home[0], home[1]
    return (values - middle - DEVIATIONS[kind] * spread).clamp_min(0)


def assess(
    readings: Readings,
    home: HomeReadings,
    names: Sequence[str] = (),
    using: Sequence[str] = SHOWING,
    coefficients: Coefficients | None = None,
) -> Assessment:
    """Assess a prediction by its readings.

    Args:
        readings: Of the prediction.
        home: What readings are at home.
        names: What the structures are called.
        using: The perturbations that count.
        coefficients: What readings count; by default those of `home`.
    """
    coefficients = coefficients or home.coefficients
    gone = torch.tensor([size == 0 for size in readings.sizes])
    worse = Excesses.of(readings, home, using).worse(coefficients, gone)
    each = home.expected * torch.where(gone, home.absent, dice_from(worse))
    moved = zip(coefficients.widest, (coefficients.shifts[0], -coefficients.shifts[1]), strict=True)
    low, high = (torch.where(gone, each, home.expected * dice_from(scale * worse + shift)) for scale, shift in moved)
    full = float(home.expected.mean())
    share = float(each.mean()) / max(full, SMALLEST)
    verdict, leave = _judge(share, low, home, coefficients)
    why = reasons(readings, home, names, using, coefficients)
    ends = [float(end.mean()) if home.people >= PEOPLE_FOR_A_RANGE else None for end in (low, high)]
    found, labelled = tuple(each.tolist()), home.dice is not None
    return Assessment(verdict, float(each.mean()), ends[0], ends[1], found, why, full, labelled, leave)


def _judge(share: float, low: Tensor, home: HomeReadings, coefficients: Coefficients) -> tuple[Verdict, bool]:
    """Return the verdict on a prediction, and whether to leave it alone.

    Args:
        share: What is expected of it, as a share of that at home.
        low: The low end of what is expected of each structure.
        home: What readings are at home.
        coefficients: The limits.
    """
    if share < coefficients.fine:
        return "failed" if share < coefficients.failed else "doubtful", False
    found = home.absent <= 0.5
    if home.dice is None or not found.any() or float(low[found].mean()) >= coefficients.least:
        return "fine", True
    usual = home.expected[found].mean() * dice_from(torch.tensor(coefficients.shifts[0]))
    return "doubtful", float(usual) < coefficients.least


def reasons(
    readings: Readings,
    home: HomeReadings,
    names: Sequence[str] = (),
    using: Sequence[str] = SHOWING,
    coefficients: Coefficients | None = None,
) -> tuple[str, ...]:
    """Describe in sentences what differs notably from home, the weightiest first."""
    coefficients = coefficients or home.coefficients
    found = Excesses.of(readings, home, using)
    found_signs: list[tuple[float, str]] = []
    for number, amount in enumerate(readings.sizes):
        name = names[number] if number < len(names) else f"structure {number + 1}"
        if amount == 0:
            found_signs += [(math.inf, f"No {name} was found.")] if float(home.absent[number]) < 1 else []
            continue
        size, unsteady, contact = (float(each[number]) for each in (found.size, found.unsteady, found.contact))
        kept = fmean([readings.steadiness[key][number] for key in using if key in readings.steadiness] or [1.0])
        usual = math.exp(float(home.sizes_for(readings.length)[0, number]))
        found_signs += [
            (coefficients.size * size, _sized(name, amount, usual)),
            (coefficients.unsteady * unsteady, f"The {name} changes where it should not: {kept:.2f} of it stays."),
            (coefficients.contact * contact, f"The {name} has unusual neighbours along {contact:.0%} of its outline."),
        ]
    return tuple(sentence for weight, sentence in sorted(found_signs, key=lambda pair: -pair[0]) if weight > NOTABLE)


def _sized(name: str, size: float, usual: float) -> str:
    """Describe how a size differs from the usual one."""
    word = "large" if size > usual else "small"
    return f"The {name} is unusually {word}: {size:.3g} mL, at home {usual:.3g} mL."
