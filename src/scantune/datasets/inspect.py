"""Summary of one scan of a data set, read whole, with the reason if it cannot be used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scantune.datasets import ScanEntry
from scantune.errors import ScanError
from scantune.scans.case import Case

_SQUARE = 0.01  # largest cosine of the angle between two axes that count as at right angles
_SHIFTED = 0.02  # voxels. Less is rounding


@dataclass(frozen=True)
class ScanSummary:
    """Summary of a scan.

    Attributes:
        entry: The scan.
        problem: Reason why it cannot be used. Empty if it can.
        spacing: Voxel edges in mm along its axes.
        shape: Voxels along its axes.
        labels: Number of voxels of each label. Empty without a reference.
        content: Hash of its voxels.
        notes: Names of `SCAN_NOTES` that apply.
    """

    entry: ScanEntry
    problem: str = ""
    spacing: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    labels: Mapping[int, int] = field(default_factory=dict)
    content: str = ""
    notes: tuple[str, ...] = ()


SCAN_NOTES = {
    "no reference": "have no reference",
    "8 bit": "have whole numbers up to 255 as intensities",
    "left-handed": "have left-handed axes",
    "grid": "have voxel sizes that no scanner has, or a header whose forms are missing or contradict each other",
    "oblique": "have axes that are not at right angles to each other",
    "shifted": "have a reference that its header places off the grid of the scan, by less than a quarter of a voxel",
}
"""Notes on scans by name, as the end of a sentence."""


def inspect_scan(entry: ScanEntry) -> ScanSummary:
    """Read a scan and summarise it."""
    try:
        case = entry.read()
    except ScanError as error:
        return ScanSummary(entry, str(error))
    labels: dict[int, int] = {}
    if case.reference is not None:
        values, counts = np.unique(case.reference, return_counts=True)
        labels = {int(value): int(count) for value, count in zip(values, counts, strict=True)}
    spacing = tuple(round(edge, 4) for edge in case.spacing)
    content = hashlib.sha256(repr(case.shape).encode() + case.image.tobytes()).hexdigest()
    problem = "Its reference is empty: no voxel has a label." if set(labels) == {0} else ""
    shifted = ("shifted",) if entry.header_shift() > _SHIFTED else ()
    return ScanSummary(entry, problem, spacing, case.shape, labels, content, _seen(case) + shifted)


def _seen(case: Case) -> tuple[str, ...]:
    axes = case.affine[:3, :3] / np.linalg.norm(case.affine[:3, :3], axis=0)
    angles = axes.T @ axes - np.eye(3)
    image = case.image
    seen = {
        "no reference": case.reference is None,
        "8 bit": image.min() >= 0 and image.max() <= 255 and bool((image == np.floor(image)).all()),
        "left-handed": np.linalg.det(axes) < 0,
        "grid": bool(case.warnings),
        "oblique": bool((np.abs(angles) > _SQUARE).any()),
    }
    return tuple(name for name, there in seen.items() if there)
