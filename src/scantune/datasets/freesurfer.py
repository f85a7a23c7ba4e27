"""Brains with FreeSurfer labels: grouping into structures, tissues or two labels, and skull-stripping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet
from scantune.datasets.central import central_part
from scantune.datasets.file_entry import FileEntry, relabel, require_folder
from scantune.datasets.label_grid import place_on_grid
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap
from scantune.scans.io import read_labels, read_scan

Grouping = Literal["structures", "tissues", "registration"]
Stripping = Literal["none", "mask", "labels"]

_STRUCTURES: dict[str, Iterable[int]] = {
    "cerebellar GM": (8, 47),
    "cerebellar WM": (7, 46),
    "cerebral GM": (3, 42, 26, 58, *range(1000, 3000)),  # the cortex in parcels, and the accumbens
    "cerebral WM": (2, 41, *range(251, 256), 5, 44, 30, 62, 77, 80, 85),  # with what lies in it, and the chiasm
    "thalamus": (10, 49),
    "hippocampus": (17, 53),
    "amygdala": (18, 54),
    "ventricles": (4, 43, 14, 15, 72, 31, 63),
    "caudate": (11, 50),
    "putamen": (12, 51),
    "pallidum": (13, 52),
    "ventral DC": (28, 60),
    "CSF": (24,),
    "brain stem": (16,),
}
"""The paper's 14 structures in the order of its authors' label values, 1 to 14, with FreeSurfer's label values.

The names are those of `scantune.simulate`, whose order is another."""

_TISSUES = {
    "CSF": ("ventricles", "CSF"),
    "GM": ("cerebellar GM", "cerebral GM", "thalamus", "hippocampus", "amygdala", "caudate", "putamen", "pallidum"),
    "WM": ("cerebellar WM", "cerebral WM", "ventral DC", "brain stem"),
}
_NAMES: dict[Grouping, tuple[str, ...]] = {
    "structures": tuple(_STRUCTURES),
    "tissues": ("CSF", "GM", "WM"),
    "registration": ("GM", "WM"),
}


MASK_FILES = ("brainmask.mgz", "brainmask.nii.gz", "brain_mask.nii.gz", "brain_mask.nii", "brain.mgz")
"""Names of brain masks, the best first."""

LABEL_FILES = ("aparc+aseg.mgz", "aparc+aseg.nii.gz", "aparc+aseg.nii")
"""Names of FreeSurfer's label map."""


def label_names(grouping: Grouping) -> dict[str, int]:
    """Return the label value of each structure of a grouping."""
    return {name: value for value, name in enumerate(_NAMES[grouping], start=1)}


def group_labels(grouping: Grouping) -> dict[int, int]:
    """Return our label value of each of FreeSurfer's. All others are background."""
    ours = label_names(grouping)
    parts = {name: (name,) for name in _STRUCTURES} if grouping == "structures" else _TISSUES
    return {theirs: ours[name] for name in ours for part in parts[name] for theirs in _STRUCTURES[part]}


@dataclass(frozen=True, kw_only=True)
class BrainEntry(FileEntry):
    """A T1w scan with FreeSurfer's labels, which may lie on FreeSurfer's own grid.

    Attributes:
        strip: What the scan is multiplied by: nothing, a brain mask, or the labelled voxels, as the paper's authors
            did. The labels let the reference decide what the network sees.
        mask: Brain mask, or a scan that is 0 outside the brain. Needed with `strip="mask"` only.
        drawn: Label map of experts, with values as in `values`, which is the reference in place of FreeSurfer's.
        central: Millimetres that are kept along the body's axis. 0 keeps all.
        offset: By how many mm they lie above the middle of the scan.
    """

    strip: Stripping = "none"
    mask: Path | None = None
    drawn: Path | None = None
    central: float = 0.0
    offset: float = 0.0

    def read(self) -> Case:
        """Read the scan, or its central part, with its reference."""
        case = super().read()
        return central_part(case, self.central, self.offset) if self.central else case

    @property
    def stripped(self) -> bool:
        """Return whether `scan` strips it."""
        return self.strip != "none"

    def scan(self) -> Case:
        """Read the scan, with 0 outside the brain if it is to be stripped."""
        scan = read_scan(self.image)
        if self.strip == "none":
            return scan
        self.check_headers()
        if self.mask is not None and self.strip == "mask":
            inside = read_scan(self.mask)
            brain = LabelMap(inside.name, (inside.image > 0).astype(np.uint8), inside.affine)
        else:
            brain = relabel(read_labels(self.labels), group_labels("structures"))
        return replace(scan, image=scan.image * (_on_grid(brain, scan).labels > 0))

    def check_headers(self) -> None:
        """Check that there is a mask to strip with. Labels may lie on another grid."""
        if self.strip == "mask" and self.mask is None:
            raise ScanError(
                f"{self.name} has no brain mask: expected brainmask.mgz, brain_mask.nii.gz or a similar file beside "
                f"{self.labels}. Make one, or give the option strip=labels or strip=none."
            )

    def labels_on_grid(self) -> Sequence[Path]:
        """Return nothing, since labels may lie on FreeSurfer's grid."""
        return []

    def reference(self, scan: Case) -> LabelMap:
        """Read the grouped labels on the grid of the scan."""
        source = self.labels if self.drawn is None else self.drawn
        return _on_grid(relabel(read_labels(source), self.values), scan)

    def required_files(self) -> Sequence[Path]:
        """Return the scan, the labels, and the brain mask if it is used."""
        mask = [self.mask] if self.mask and self.strip == "mask" else []
        return [self.image, self.labels, *mask, *([self.drawn] if self.drawn else [])]


@dataclass(frozen=True)
class BrainOptions:
    """Options of brains with FreeSurfer labels."""

    grouping: Grouping = "structures"
    """The paper's 14 structures, the tissues CSF, GM and WM, or GM and WM as in its registration experiment."""


@dataclass(frozen=True)
class StrippingOptions(BrainOptions):
    """Options of brains that are not skull-stripped."""

    strip: Stripping = "mask"
    """Where everything outside is set to 0: a brain mask, the reference labels as the authors did, or nowhere."""
    central: float = 0.0
    """Millimetres to keep along the body's axis, about the middle of the scan, as the paper's registration experiment
    keeps 40. 0 keeps all."""
    offset: float | None = None
    """By how many mm the kept part lies above the middle. By default 10 at Stanford, as in that experiment, which does
    not say in which direction, and 0 elsewhere."""

    def __post_init__(self) -> None:
        if self.central < 0:
            raise InputError(f"The option central must be 0 or more millimetres, got {self.central:g}.")


class BrainDataSet(DataSet):
    """A data set of brains with FreeSurfer labels, below one folder."""

    options_type: ClassVar[type[BrainOptions]] = BrainOptions
    options: BrainOptions

    @abstractmethod
    def __init__(self, root: Path, options: Any) -> None:
        """Find people in the folder and all below it."""

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Open a folder, with the options of the class's `options_type`."""
        settings = settings_from_table(cls.options_type, options, f"the options of {cls.name}")
        return cls(require_folder(root, cls.name), settings)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return the labels of the option grouping."""
        return label_names(self.options.grouping)


def find_first(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first of several files that a folder has."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def files_by_folder(root: Path, names: Sequence[str]) -> dict[Path, Path]:
    """Return FreeSurfer's files by the folder of the person or session, which is above `mri` where it exists.

    Args:
        root: Where to look, at any depth.
        names: Names that a file may have. The first one that a folder has is taken.
    """
    found: dict[Path, Path] = {}
    for name in reversed(names):
        for path in root.rglob(name):
            found[path.parents[1] if path.parent.name == "mri" else path.parent] = path
    return dict(sorted(found.items()))


def _on_grid(labels: LabelMap, scan: Case) -> LabelMap:
    same = labels.shape == scan.shape and np.allclose(labels.affine, scan.affine, atol=1e-3)
    return replace(labels, affine=scan.affine) if same else place_on_grid(labels, scan)
