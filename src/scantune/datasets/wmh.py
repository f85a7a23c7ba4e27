"""WMH-2017: FLAIR with white matter hyperintensities, of Utrecht and Singapore.

A person is a folder `SITE/ID` with `pre/FLAIR.nii.gz` (bias-corrected by the challenge) and `wmh.nii.gz`, where SITE is
`Utrecht` or `Singapore` (`UMC` or `NUHS` is understood too), at any depth: `Utrecht/0` as in the first release,
`training/Utrecht/0` as in the later one. Only the people of the training part are listed; label 2, other pathology, is
background. The drawings of other observers are `additional_annotations/observer_oN/.../SITE/ID/result.nii.gz`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.file_entry import FileEntry, index_files, not_found_error, require_folder
from scantune.datasets.splits import require_fold, split_by_fold

PERSON_NUMBERS = {
    "UMC": [0, 2, 4, 6, 8, 11, *range(17, 43, 2), 49],
    "NUHS": [*range(50, 70)],
}
"""Numbers of the people of each hospital, the training hospital first."""

_FOLDERS = {"utrecht": "UMC", "umc": "UMC", "singapore": "NUHS", "nuhs": "NUHS"}
_Person = tuple[str, int]


@dataclass(frozen=True)
class WmhOptions:
    """Options of WMH-2017."""

    fold: int = 0
    """1 or 2 as in the paper. 0 splits Utrecht as in fold 1 and pools both for Singapore: 10 test volumes."""
    observer: Literal["o12", "o3", "o4"] = "o12"
    """The observer: the challenge's own label maps (two observers in agreement), or an additional observer."""

    def __post_init__(self) -> None:
        require_fold(self.fold, folds=2)


class Wmh(DataSet):
    """The data set as it is unpacked."""

    name = "wmh-2017"
    sites = tuple(PERSON_NUMBERS)
    folds = 2

    def __init__(self, root: Path, options: WmhOptions) -> None:
        self.root, self.options = root, options
        self._scans = index_files(root.rglob("FLAIR.nii.gz"), lambda path: self._person(path, "pre"))
        if not self._scans:
            raise not_found_error(root, self.name, "files Utrecht/ID/pre/FLAIR.nii.gz or Singapore/ID/pre/FLAIR.nii.gz")
        self._drawings = {} if options.observer == "o12" else index_files(root.rglob("result.nii.gz"), self._drawn)

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Wmh:
        """Find FLAIR scans in the folder and all below it."""
        settings = settings_from_table(WmhOptions, options, f"the options of {cls.name}")
        return cls(require_folder(root, cls.name), settings)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return white matter hyperintensities, the only structure."""
        return {"WMH": 1}

    def entries(self) -> list[ScanEntry]:
        """Return the scans of all people of the hospitals that the folder holds."""
        return [entry for site in self.sites for entry in self._site(site)]

    def _site(self, site: str) -> list[ScanEntry]:
        if all(place != site for place, _ in self._scans):
            return []
        names = [f"{site}-{number}" for number in PERSON_NUMBERS[site]]
        fold = 1 if site == self.sites[0] and self.options.fold == 0 else self.options.fold
        splits = split_by_fold(names, fold, validation=5, test=5, folds=2)
        return [self._entry((site, number), splits) for number in PERSON_NUMBERS[site]]

    def _entry(self, person: _Person, splits: Mapping[str, str]) -> ScanEntry:
        site, number = person
        name = f"{site}-{number}"
        neighbour = next(path for (place, _), path in self._scans.items() if place == site)
        image = self._scans.get(person, neighbour.parents[2] / str(number) / "pre" / neighbour.name)
        labels = image.parents[1] / "wmh.nii.gz"
        if self.options.observer != "o12":
            missing = self.root / "additional_annotations" / f"observer_{self.options.observer}" / site / str(number)
            labels = self._drawings.get(person, missing / "result.nii.gz")
        return FileEntry(name, name, site, splits[name], image=image, labels=labels, values={0: 0, 1: 1, 2: 0})

    def _drawn(self, path: Path) -> _Person | None:
        return self._person(path, "") if f"observer_{self.options.observer}" in path.parts else None

    @staticmethod
    def _person(path: Path, within: str) -> _Person | None:
        """Return the person of a file, or None for people who are in no split."""
        folder = path.parent
        if within:
            if folder.name != within:
                return None
            folder = folder.parent
        site = _FOLDERS.get(folder.parent.name.lower(), "")
        number = int(folder.name) if folder.name.isdecimal() else -1
        return (site, number) if number in PERSON_NUMBERS.get(site, ()) else None
