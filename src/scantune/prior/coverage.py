"""Coverage: how much of a body source scans show, so that a scan that shows much less or more is noticed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

CHUNK = 16
"""Slices that are outlined at once, to bound the memory."""

SURROUNDED = 0.8
"""Largest share of a source scan within the outline of what it shows, so that outlines say something: scans of
stripped brains fill half of their pictures, other scans all of them."""

MORE_HOLES = 0.05
"""Amount by which the share of zeros within an outline may exceed that at home; between scalp and brain it is 0.1."""

PEOPLE_FOR_NARROW_MARGINS = 5
"""Number of source scans from which the narrower factors hold."""

FACTORS = {"few": (0.5, 1.7), "many": (0.75, 1.3)}
"""Shares of the smallest and of the largest volume of source scans that a scan may show."""


@dataclass(frozen=True)
class Shown:
    """What a scan shows: the volume within the outline of what is not 0, slice by slice.

    Args:
        ml: This volume in mL.
        holes: Share of it that is 0.
        share: Share of the pictures, without padding, that it is.
    """

    ml: float
    holes: float
    share: float

    @classmethod
    def of(cls, images: Tensor, padding: Tensor | None, voxel_ml: float) -> Self:
        """Measure a prepared scan.

        Args:
            images: `(slices, channels, height, width)`, or `(1, channels, depth, height, width)`. The first channel
                counts.
            padding: True where padding was added, `(slices, 1, *spatial)`. None without padding.
            voxel_ml: Volume of a voxel in mL.
        """
        content = (images[:, 0] != 0).flatten(0, -3)
        inside = found = 0
        for part in torch.split(content, CHUNK):
            inside += int(outlined(part).sum())
            found += int(part.sum())
        pixels = content.numel() if padding is None else int((~padding).sum())
        return cls(inside * voxel_ml, 1 - found / max(inside, 1), inside / max(pixels, 1))


def outlined(content: Tensor) -> Tensor:
    """Return the pixels `(slices, height, width)` that have content on all four sides, or are content."""
    sides = [_reached(content, axis) & _reached(content.flip(axis), axis).flip(axis) for axis in (1, 2)]
    return sides[0] & sides[1]


def _reached(content: Tensor, axis: int) -> Tensor:
    """Return True from the first pixel with content on, along an axis."""
    return content.to(torch.uint8).cummax(axis).values.bool()


@dataclass(frozen=True)
class ShownAtHome:
    """What source scans show.

    Args:
        ml: Smallest and largest volume in mL.
        holes: Largest share of zeros.
        people: Number of scans.
    """

    ml: tuple[float, float]
    holes: float
    people: int

    @classmethod
    def of(cls, scans: Sequence[Shown]) -> Self | None:
        """Summarise source scans; None if there is none, or one fills its pictures."""
        if not scans or max(scan.share for scan in scans) > SURROUNDED:
            return None
        sizes = [scan.ml for scan in scans]
        return cls((min(sizes), max(sizes)), max(scan.holes for scan in scans), len(scans))

    def warnings(self, scan: Shown) -> list[str]:
        """Return sentences about a scan that shows much less or much more than source scans do."""
        less, more = FACTORS["many" if self.people >= PEOPLE_FOR_NARROW_MARGINS else "few"]
        home = f"source scans {self.ml[0]:.0f} to {self.ml[1]:.0f} mL"
        if scan.ml < less * self.ml[0]:
            return [f"The scan shows {scan.ml:.0f} mL, {home}: it covers only a part, or its voxel sizes are wrong."]
        masks = "Give a brain mask (--brain-mask) if it still has the skull."
        if scan.ml > more * self.ml[1]:
            return [f"The scan shows {scan.ml:.0f} mL, {home}: more than in training, or wrong voxel sizes. {masks}"]
        if scan.holes > self.holes + MORE_HOLES:
            return [
                f"Zeros enclosed by the scan are {scan.holes:.0%} of it, in source scans at most {self.holes:.0%}: "
                f"something lies around the organ. {masks}"
            ]
        return []


@dataclass(frozen=True)
class Coverage:
    """How much of a body source scans show; partial coverage or a crop looks like a scanner shift but is none.

    Args:
        slices: Fewest and most slices.
        inside: Smallest and largest share of the network's field that is image, not padding.
        shown: What source scans show; None in older files, and where scans fill their pictures.
    """

    slices: tuple[float, float]
    inside: tuple[float, float]
    shown: ShownAtHome | None = None

    @classmethod
    def of(cls, scans: Sequence[tuple[Tensor, Tensor | None]]) -> Self:
        """Measure the coverage of volumes `(slices, channels, *spatial)` with their padding."""
        slices = [float(len(volume)) for volume, _ in scans]
        shares = [image_share(mask) for _, mask in scans]
        return cls((min(slices), max(slices)), (min(shares), max(shares)))

    def with_shown(self, scans: Sequence[Shown]) -> Self:
        """Return a copy that knows what source scans show."""
        return replace(self, shown=ShownAtHome.of(scans))

    def warnings(self, slices: int | None, padding: Tensor | None, scan: Shown | None = None) -> list[str]:
        """Return sentences about a scan that shows much less than source scans do, or much more.

        The volume that a scan shows says more than its number of slices, which counts if the volume is not known.

        Args:
            slices: Number of slices; None if it says nothing, because structures pass through the scan.
            padding: True where padding was added, `(slices, 1, *spatial)`.
            scan: What it shows, if its voxels have a known size.
        """
        found = []
        if self.shown is not None and scan is not None:
            found += self.shown.warnings(scan)
        elif slices is not None and slices < 0.5 * self.slices[0]:
            few, many = (f"{number:.0f}" for number in self.slices)
            theirs = few if few == many else f"{few} to {many}"
            counted = "1 slice" if slices == 1 else f"{slices} slices"
            found.append(f"The scan has {counted}, source scans have {theirs}: partial coverage looks like a shift.")
        share = image_share(padding)
        if share < 0.5 * self.inside[0]:
            found.append(
                f"The scan fills {share:.0%} of the network's field of view, source scans at least "
                f"{self.inside[0]:.0%}: a crop looks like a shift."
            )
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays that a model file stores."""
        stored = {"coverage": torch.tensor([*self.slices, *self.inside])}
        if self.shown is not None:
            stored["shown"] = torch.tensor([*self.shown.ml, self.shown.holes, float(self.shown.people)])
        return stored

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self | None:
        """Restore what `tensors` stored, or return None for a file of an older version."""
        if "coverage" not in tensors:
            return None
        few, many, small, large = map(float, tensors["coverage"])
        shown = None
        if "shown" in tensors:
            least, most, holes, people = map(float, tensors["shown"])
            shown = ShownAtHome((least, most), holes, int(people))
        return cls((few, many), (small, large), shown)

    @property
    def numbers(self) -> list[float]:
        """Return all numbers, for a check."""
        shown = [] if self.shown is None else [*self.shown.ml, self.shown.holes]
        return [*self.slices, *self.inside, *shown]


def image_share(padding: Tensor | None) -> float:
    """Return the share of the network's field of view that is image, not padding."""
    return 1.0 if padding is None else 1 - float(padding.float().mean())
