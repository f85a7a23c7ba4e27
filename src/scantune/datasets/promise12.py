"""PROMISE12: prostate T2w from three of its four hospitals, with the whole gland outlined.

Files are `CaseNN.mhd`, `CaseNN_segmentation.mhd` and their data files, in one folder or in the three parts that the
training data come in. The hospital of a case is not in its file; the lists are those that the paper's authors used.
Cases 13 to 25 (RUNMC) are left out, since some may be patients of NCI-ISBI 2013 too. Test data have no outlines, and
the same numbers once more: only files beside a segmentation are taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.file_entry import FileEntry, index_files, not_found_error, require_folder
from scantune.datasets.splits import require_fold, split_by_fold

CASE_NUMBERS = {
    "UCL": [1, *range(26, 38)],
    "HK": [*range(38, 50)],
    "BIDMC": [0, *range(2, 13)],
}
"""Numbers of the cases of each hospital."""


@dataclass(frozen=True)
class Promise12Options:
    """Options of PROMISE12."""

    fold: int = 0
    """1 or 2 as in the paper. 0 pools both, with 10 test volumes per hospital."""

    def __post_init__(self) -> None:
        require_fold(self.fold, folds=2)


class Promise12(DataSet):
    """The data set as it is unpacked."""

    name = "promise12"
    sites = tuple(CASE_NUMBERS)
    folds = 2

    def __init__(self, root: Path, options: Promise12Options) -> None:
        self.root, self.options = root, options
        self._segmentations = index_files(root.rglob("*_segmentation.mhd"), _number)
        if not self._segmentations:
            raise not_found_error(root, self.name, "files CaseNN_segmentation.mhd, beside CaseNN.mhd")

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Promise12:
        """Find segmentations in the folder and all below it."""
        settings = settings_from_table(Promise12Options, options, f"the options of {cls.name}")
        return cls(require_folder(root, cls.name), settings)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return the whole gland."""
        return {"prostate": 1}

    def entries(self) -> list[ScanEntry]:
        """Return all cases of the hospitals that the folder holds."""
        return [entry for site, numbers in CASE_NUMBERS.items() for entry in self._site(site, numbers)]

    def _site(self, site: str, numbers: list[int]) -> list[ScanEntry]:
        if not self._segmentations.keys() & set(numbers):
            return []
        names = [f"Case{number:02d}" for number in numbers]
        splits = split_by_fold(names, self.options.fold, validation=2, test=5, folds=2)
        return [self._entry(number, name, site, splits[name]) for number, name in zip(numbers, names, strict=True)]

    def _entry(self, number: int, name: str, site: str, split: str) -> ScanEntry:
        first = next(iter(self._segmentations.values()))
        labels = self._segmentations.get(number, first.with_name(f"{name}_segmentation.mhd"))
        image = labels.with_name(f"{name}.mhd")
        return FileEntry(name, name, site, split, image=image, labels=labels, values={0: 0, 1: 1})


def _number(path: Path) -> int | None:
    found = re.fullmatch(r"Case(\d\d)_segmentation", path.stem)
    return int(found[1]) if found else None
