"""SCGM: the spinal cord grey matter challenge of 2016, four sites with ten labelled people each.

Files are `siteK-scNN-image.nii.gz` and `siteK-scNN-mask-rR.nii.gz` of raters 1 to 4, with grey matter 1 and white
matter 2, as the training archive unpacks them. The test archive (people 11 to 20) has no masks and is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.file_entry import FileEntry, index_files, not_found_error, relabel, require_folder
from scantune.datasets.splits import require_fold, split_by_fold
from scantune.scans.case import Case, LabelMap, require_same_grid
from scantune.scans.io import read_labels

SITE_NUMBERS = {"PM": 2, "USZ": 3, "VU": 4, "UCL": 1}
"""Number of each site in file names. Montreal, the training site, comes first."""

PEOPLE_PER_SITE = 10
"""Labelled people per site."""

RATERS = (1, 2, 3, 4)
_VALUES = {0: 0, 1: 1, 2: 2}


@dataclass(frozen=True)
class ScgmOptions:
    """Options of SCGM."""

    fold: int = 0
    """1 to 3 as in the paper. 0 splits the training site as in fold 1 and pools all for the others: 9 test volumes."""
    rater: Literal[1, 2, 3, 4, "majority"] = 1
    """The rater whose mask is taken (the paper's authors took the first), or the majority of raters in each voxel. Of
    two labels with as many votes, that of rater 1 is taken."""

    def __post_init__(self) -> None:
        require_fold(self.fold, folds=3)


@dataclass(frozen=True, kw_only=True)
class VotedEntry(FileEntry):
    """Scan with the masks of all raters.

    Attributes:
        others: Masks of raters 2 and higher.
    """

    others: Sequence[Path]

    def reference(self, scan: Case) -> LabelMap:
        """Return the majority vote of all raters."""
        masks = [relabel(read_labels(path, self.values), self.values) for path in (self.labels, *self.others)]
        for mask in masks:
            require_same_grid(mask, scan)
        ballots = np.stack([mask.labels for mask in masks])
        votes = np.stack([(ballots == value).sum(0) + 0.5 * (ballots[0] == value) for value in self.values])
        return replace(masks[0], labels=votes.argmax(0).astype(np.uint8))

    def labels_on_grid(self) -> Sequence[Path]:
        """Return all masks."""
        return [self.labels, *self.others]

    def required_files(self) -> Sequence[Path]:
        """Return the scan and all masks."""
        return [*super().required_files(), *self.others]


class Scgm(DataSet):
    """The data set as it is unpacked."""

    name = "scgm"
    sites = tuple(SITE_NUMBERS)
    folds = 3

    def __init__(self, root: Path, options: ScgmOptions) -> None:
        self.root, self.options = root, options
        self._found = index_files(root.rglob("site?-sc??-*.nii.gz"), lambda path: path.name)
        if not any("-mask-" in name for name in self._found):
            raise not_found_error(root, self.name, "files siteK-scNN-mask-rR.nii.gz, beside siteK-scNN-image.nii.gz")

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Scgm:
        """Find masks in the folder and all below it."""
        settings = settings_from_table(ScgmOptions, options, f"the options of {cls.name}")
        return cls(require_folder(root, cls.name), settings)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return grey and white matter."""
        return {"GM": 1, "WM": 2}

    def entries(self) -> list[ScanEntry]:
        """Return the scans of all labelled people of the sites that the folder holds."""
        return [entry for site in self.sites for entry in self._site(site)]

    def _site(self, site: str) -> list[ScanEntry]:
        number = SITE_NUMBERS[site]
        if not any(re.match(rf"site{number}-sc\d\d-mask-", name) for name in self._found):
            return []
        names = [f"site{number}-sc{person:02d}" for person in range(1, PEOPLE_PER_SITE + 1)]
        fold = 1 if site == self.sites[0] and self.options.fold == 0 else self.options.fold
        splits = split_by_fold(names, fold, validation=2, test=3, folds=3)
        return [self._entry(name, site, splits[name]) for name in names]

    def _entry(self, name: str, site: str, split: str) -> ScanEntry:
        image = self._path(f"{name}-image.nii.gz")
        masks = {rater: self._path(f"{name}-mask-r{rater}.nii.gz") for rater in RATERS}
        rater = self.options.rater
        if rater == "majority":
            first, *others = masks.values()
            return VotedEntry(name, name, site, split, image=image, labels=first, values=_VALUES, others=tuple(others))
        return FileEntry(name, name, site, split, image=image, labels=masks[rater], values=_VALUES)

    def _path(self, name: str) -> Path:
        return self._found.get(name, next(iter(self._found.values())).with_name(name))
