"""NCI-ISBI 2013: prostate T2w of Nijmegen (RUNMC) and Boston (BMC), with central gland and peripheral zone.

Label maps are `PERSON.nrrd` of the training archive, also with a closing word such as `_correctedLabels`, where PERSON
is `Prostate3T-01-NNNN` or `ProstateDx-01-NNNN`. Scans are DICOM slices anywhere below a folder PERSON, as the archive's
download tools write them: `Prostate-3T/PERSON/STUDY/SERIES/*.dcm`. Label maps decide who belongs to the challenge,
since both collections hold more people. Where a person has several series, the one that the label map was drawn on is
taken. The leaderboard's and the test cases (-02-, -03-) are left out, as in the paper.

In the files the peripheral zone is 1 and the central gland is 2; here the central gland (TZ) is 1 and the peripheral
zone (PZ) is 2. Label maps are placed by their headers: the one of ProstateDx-01-0055, which has 23 slices where the
scan has 34, leaves the other slices background. Only a label map whose header gives no position (unit axes, origin
0) is placed slice by slice from the scan's first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.file_entry import FileEntry, index_files, not_found_error, relabel, require_folder
from scantune.datasets.label_grid import has_no_position, pad_to_grid, place_on_grid
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap
from scantune.scans.io import read_labels, read_scan

NAME_PREFIXES = {"RUNMC": "Prostate3T-01-", "BMC": "ProstateDx-01-"}
"""Start of the names of each hospital's people, the training hospital first."""

_STARTS = {"RUNMC": (16, 21), "BMC": (45, 59)}  # first numbers of the people who validate and who test
_KNOWN = {"RUNMC": range(1, 31), "BMC": range(0)}  # people who must exist, since Boston's numbers have gaps
_VALUES: dict[str, dict[int, int]] = {"zones": {0: 0, 1: 2, 2: 1}, "whole": {0: 0, 1: 1, 2: 1}}
_NO_DICOM = {".txt", ".csv", ".xml", ".json", ".html", ".pdf", ".nrrd", ".nii", ".gz", ".zip"}


@dataclass(frozen=True)
class NciIsbiOptions:
    """Options of NCI-ISBI 2013."""

    grouping: Literal["zones", "whole"] = "zones"
    """The two zones, or the whole gland, so that a network can be trained further at the hospitals of PROMISE12."""


@dataclass(frozen=True, kw_only=True)
class SeriesEntry(FileEntry):
    """Scan among the DICOM series of a person, with a label map on a part of its grid."""

    def scan(self) -> Case:
        """Read the one series, or of several the one that the label map was drawn on."""
        self.check_headers()
        folders = self.series()
        if len(folders) == 1:
            return read_scan(folders[0])
        labels, fitting = read_labels(self.labels, self.values), []
        for folder in folders:
            try:
                scan = read_scan(folder)
                _on_grid(labels, scan)
            except InputError:
                continue
            fitting.append(scan)
        if len(fitting) != 1:
            raise ScanError(
                f"{self.image} must hold one DICOM series that the label map {self.labels} was drawn on, but of "
                f"{len(folders)} series {len(fitting)} fit. Keep the folder of the axial T2w series alone."
            )
        return fitting[0]

    def check_headers(self) -> None:
        """Check that there is a DICOM series."""
        if not self.series():
            raise ScanError(f"{self.image} must hold the DICOM slices of {self.name}, but holds none. Get them again.")

    def labels_on_grid(self) -> Sequence[Path]:
        """Return nothing, since the label map may cover some slices only."""
        return []

    def reference(self, scan: Case) -> LabelMap:
        """Read the zones on the grid of the whole scan."""
        return relabel(_on_grid(read_labels(self.labels, self.values), scan), self.values)

    def series(self) -> list[Path]:
        """Return the folders with slices: the person's and those below."""
        return sorted({path.parent for path in self._slices()})

    def files(self) -> Sequence[Path]:
        """Return all slices below the person's folder, and the label map."""
        return [*self._slices(), self.labels]

    def _slices(self) -> list[Path]:
        files = (path for path in self.image.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path for path in files if path.suffix.lower() not in _NO_DICOM and path.name != "LICENSE")


class NciIsbi(DataSet):
    """The data set as it is unpacked: scans and label maps below one folder."""

    name = "nci-isbi-2013"
    sites = tuple(NAME_PREFIXES)

    def __init__(self, root: Path, options: NciIsbiOptions) -> None:
        self.root, self.options = root, options
        files = sorted(root.rglob("Prostate*-01-*.nrrd"), key=lambda path: (len(path.name), path))
        self._labels = {person: path for path in files if (person := _person(path.stem))}  # corrected ones are longer
        if not self._labels:
            expected = "label maps Prostate3T-01-NNNN.nrrd or ProstateDx-01-NNNN.nrrd, and DICOM folders of these names"
            raise not_found_error(root, self.name, expected)
        folders = (path for path in root.rglob("Prostate*-01-*") if path.is_dir())
        self._folders = index_files(folders, lambda path: path.name if _person(path.name) == path.name else None)

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> NciIsbi:
        """Find label maps and people's folders in the folder and all below it."""
        settings = settings_from_table(NciIsbiOptions, options, f"the options of {cls.name}")
        return cls(require_folder(root, cls.name), settings)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return central gland (with the transition zone) and peripheral zone, or the whole gland as in PROMISE12."""
        return {"prostate": 1} if self.options.grouping == "whole" else {"TZ": 1, "PZ": 2}

    def entries(self) -> list[ScanEntry]:
        """Return the scans of everyone with a label map, and of everyone known to have one."""
        return [entry for site in self.sites for entry in self._site(site)]

    def _site(self, site: str) -> list[ScanEntry]:
        beginning = NAME_PREFIXES[site]
        labelled = {person for person in self._labels if person.startswith(beginning)}
        known = {f"{beginning}{number:04d}" for number in _KNOWN[site]} if labelled else set()
        return [self._entry(person, site) for person in sorted(labelled | known)]

    def _entry(self, person: str, site: str) -> ScanEntry:
        validation, test = _STARTS[site]
        number = int(person[-4:])
        split = "train" if number < validation else "validation" if number < test else "test"
        image = self._folders.get(person, self.root / person)
        labels = self._labels.get(person, next(iter(self._labels.values())).with_name(f"{person}.nrrd"))
        return SeriesEntry(
            person, person, site, split, image=image, labels=labels, values=_VALUES[self.options.grouping]
        )


def _person(name: str) -> str | None:
    found = re.fullmatch(r"(Prostate(?:3T|Dx)-01-\d{4})(?:_\w+)?", name)
    return found[1] if found else None


def _on_grid(labels: LabelMap, scan: Case) -> LabelMap:
    """Place a label map on the scan's grid, of which it covers a part. No labelled voxel may get lost or be doubled."""
    whole = pad_to_grid(labels, scan) if has_no_position(labels) else place_on_grid(labels, scan)
    before, after = (np.bincount(each.labels.ravel(), minlength=3)[1:] for each in (labels, whole))
    if not np.array_equal(before, after):
        raise ScanError(
            f"The label map {labels.name} must lie on the grid of {scan.name}, or on some of its slices, but does not "
            "by its header. Check that the two belong together."
        )
    return whole
