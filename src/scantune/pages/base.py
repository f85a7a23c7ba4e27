"""Content of a page: one scan, its segmentations before and after adaptation, and its entry in the manifest."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.evaluation.metrics import dice
from scantune.scans.grid import Plane


@dataclass(frozen=True, eq=False)
class CaseView:
    """A scan to show on a page.

    Attributes:
        name: Name of the scan, and title of the page.
        image: Intensities `(x, y, z)`.
        affine: Voxel to world, `(4, 4)`, RAS+ in mm.
        before: Labels `(x, y, z)` of the source network.
        after: Labels `(x, y, z)` of the result.
        labels: Structure names and their values.
        entry: The scan's entry in the manifest: decision, reason, method, energies, volumes, seconds, ...
        trace: One row per step, as in `Result.trace`.
        reference: True labels `(x, y, z)`; None if unknown.
        site: The site that acquired the scan.
        subject: The person.
        plane: The plane of the network's slices. The page shows it first.
        volumes: Volumes in mL before and after of structures that overlap, which label maps show in part.
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
    volumes: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def structures(self) -> dict[str, int]:
        """Return the labels without the background, sorted by value."""
        return dict(sorted(((name, value) for name, value in self.labels.items() if value), key=lambda item: item[1]))

    @property
    def maps(self) -> dict[str, NDArray[Any]]:
        """Return the label maps by their names on the page."""
        maps = {"Before": self.before, "After": self.after}
        return maps if self.reference is None else maps | {"Reference": self.reference}

    @cached_property
    def dice(self) -> dict[str, tuple[float, float]]:
        """Return Dice before and after by structure; empty without a reference."""
        if self.reference is None:
            return {}
        return {
            name: (dice(self.before, self.reference, value), dice(self.after, self.reference, value))
            for name, value in self.structures.items()
        }

    def volumes_ml(self, structure: str) -> tuple[float, float]:
        """Return the volume of a structure before and after."""
        if structure in self.volumes:
            return self.volumes[structure]
        return self.volume_ml(self.before, structure), self.volume_ml(self.after, structure)

    def volume_ml(self, labels: NDArray[Any], structure: str) -> float:
        """Return the volume of a structure in one of the label maps."""
        voxel = abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000
        return voxel * int((labels == self.labels[structure]).sum())

    def summary(self, page: str) -> "IndexRow":
        """Return the scan's row of an index."""
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
            self.entry.get("warnings") or (),
        )


@dataclass(frozen=True)
class IndexRow:
    """A scan in the table of an index. Unknown values are None.

    Attributes:
        page: File of its page, relative to the index; empty if it has none.
        name: Name of the scan.
        site: The site that acquired it.
        subject: The person.
        method: The method of adaptation.
        decision: The guard's decision.
        reason: The reason of the decision.
        dice_before: Mean Dice over the structures.
        dice_after: Mean Dice over the structures.
        energy_before: Energy in nats.
        energy_after: Energy in nats.
        seconds: Duration of the adaptation.
        warnings: What looks wrong about the scan or its prediction.
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
    warnings: Sequence[str] = ()

    @property
    def dice_change(self) -> float | None:
        """Return Dice after minus Dice before."""
        if self.dice_before is None or self.dice_after is None:
            return None
        return self.dice_after - self.dice_before


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the values that are not NaN; None if all are."""
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else None
