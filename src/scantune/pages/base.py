"""What a page shows: one scan, its segmentations before and after adaptation, and what the manifest tells of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.evaluation.metrics import dice
from scantune.scans.grid import Plane


@dataclass(frozen=True, eq=False)
class CaseView:
    """A scan to be shown.

    Attributes:
        name: Of the scan; the page's title.
        image: Intensities `(x, y, z)`.
        affine: Voxel to world, `(4, 4)`, RAS+ in mm.
        before: Labels `(x, y, z)` of the source network.
        after: Labels `(x, y, z)` of the result.
        labels: Structure names and their values.
        entry: What the manifest tells: decision, reason, method, energies, volumes, seconds, ...
        trace: A row per step, as `Result.trace`.
        reference: Labels `(x, y, z)`, where they are known.
        site: Where the scan was acquired.
        subject: The person.
        plane: The plane of the network's slices, which the page shows first.
    """

    name: str
    image: NDArray[Any]
    affine: NDArray[np.float64]
    before: NDArray[Any]
    after: NDArray[Any]
    labels: Mapping[str, int]
    entry: Mapping[str, Any]
    trace: Sequence[Mapping[str, Any]] = ()
    reference: NDArray[Any] | None = None
    site: str = ""
    subject: str = ""
    plane: Plane = "axial"

    @property
    def structures(self) -> dict[str, int]:
        """The labels without the background, in their order."""
        return dict(sorted(((name, value) for name, value in self.labels.items() if value), key=lambda item: item[1]))

    @property
    def maps(self) -> dict[str, NDArray[Any]]:
        """The label maps there are, by what they are called on the page."""
        maps = {"Before": self.before, "After": self.after}
        return maps if self.reference is None else maps | {"Reference": self.reference}

    @cached_property
    def dice(self) -> dict[str, tuple[float, float]]:
        """Dice before and after by structure; nothing without a reference."""
        if self.reference is None:
            return {}
        return {
            name: (dice(self.before, self.reference, value), dice(self.after, self.reference, value))
            for name, value in self.structures.items()
        }

    def volume_ml(self, labels: NDArray[Any], structure: str) -> float:
        """What a structure fills in one of the label maps."""
        voxel = abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000
        return voxel * int((labels == self.labels[structure]).sum())

    def summary(self, page: str) -> "IndexRow":
        """The scan's row of an index."""
        before, after = (mean(part) for part in zip(*self.dice.values(), strict=True)) if self.dice else (None, None)
        return IndexRow(
            page,
            self.name,
            self.site,
            self.subject or self.name,
            str(self.entry.get("method", "")),
            str(self.entry.get("decision", "")),
            str(self.entry.get("reason", "")),
            before,
            after,
            self.entry.get("energy_before"),
            self.entry.get("energy_after"),
            self.entry.get("seconds"),
        )


@dataclass(frozen=True)
class IndexRow:
    """A scan in the table of an index; what is not known is None.

    Attributes:
        page: File of its page, beside the index; empty where there is none.
        name: Of the scan.
        site: Where it was acquired.
        subject: The person.
        method: How it was adapted.
        decision: The guard's.
        reason: Of the decision.
        dice_before: Mean over the structures.
        dice_after: Mean over the structures.
        energy_before: In nats.
        energy_after: In nats.
        seconds: That the adaptation took.
    """

    page: str
    name: str
    site: str = ""
    subject: str = ""
    method: str = ""
    decision: str = ""
    reason: str = ""
    dice_before: float | None = None
    dice_after: float | None = None
    energy_before: float | None = None
    energy_after: float | None = None
    seconds: float | None = None

    @property
    def dice_change(self) -> float | None:
        """After minus before."""
        if self.dice_before is None or self.dice_after is None:
            return None
        return self.dice_after - self.dice_before


def mean(values: Sequence[float]) -> float | None:
    """Of the numbers among the values; None where there is none."""
    there = [value for value in values if not math.isnan(value)]
    return fmean(there) if there else None
