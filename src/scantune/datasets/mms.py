"""M&Ms: cardiac cine of three hospitals, at end diastole and end systole.

A person is a folder `CODE` with `CODE_sa.nii.gz` and `CODE_sa_gt.nii.gz`, both 4D, at any depth: in the
releases below `Training/Labeled`, `Validation` and `Testing`, with or without `OpenDataset` above. The table
`...M&Ms_Dataset_information_diagnosis_opendataset.csv`, or an older one with the columns External code, Centre, ED and
ES, gives the hospital and the two frames, counted from 0. Each person gives two scans, `CODE_ED` and `CODE_ES`.

The paper took the 150 labelled people of the training part; the lists below are those of its authors, in their order.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.file_entry import FileEntry, index_files, not_found_error, require_folder
from scantune.datasets.splits import split_by_order
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap

CENTRES = {"HVHD": "1", "CSF": "2", "UHE": "3"}
"""Number of each hospital in the table."""

CODES = {
    "CSF": """
A1D0Q7 A3B7E5 A6M1Q7 A7G0P5 A8C9U8 A9C5P4 A9J8W7 B0N3W8 B2D9O2 B2F4K5 B6D0U7 B9O1Q0 C2L5P7 C3I2K3 C4R8T7 D0H9I4 D1L4Q9
D6H6O2 E3T0Z2 E4W8Z7 E5E6O8 E9H2K7 F0J2R8 F1F3I6 F5I9Q2 G0H4J3 G1N6S7 G2J1M5 G2O2S6 G4L8Z7 G9L0O9 H1J5W8 H1M5Y6 H1W2Y1
H6I0I6 H7N4V9 I0J5U3 I2K2Y8 I6N3P3 J4J9W6 J9L6N9 K2S1U6 L1Q1Z5 L5Q6T7 M4P7Q6 N1P8Q9 O3R8Y5 P6U0Y0 Q7V1Y5 W5Z4Z8""",
    "UHE": """
A1O8Z3 A5E0T8 A8E1F4 A9E3G9 A9J5Q7 B3D0N1 C0S7W0 C1G5Q0 C2M6P8 C4S8W9 E4M2Q7 E5F5V7 E9L1W5 F4K3S1 F8N2S1 G0I6P3 G2M7W4
G8N2U5 H0K3Q4 H3U1Y1 H4I2T8 H7I4J3 M0P8U8 N7V9W9 P9S7W2""",
    "HVHD": """
A0S9V9 A1D9Z7 A1E9Q1 A2C0I1 A2N8V0 A3H1O5 A4B5U4 A4J4S4 A4U9V5 A6B5G9 A6D5F9 A7D9L8 A7M7P8 A7O4T6 B0I2Z0 B2C2Z7 B2D9M2
B2G5R2 B3O1S0 B3P3R1 B4O3V3 B8H5H6 B8J7R4 B9E0Q1 C0K1P0 C1K8P5 C2J0K3 C5M4S2 C6J5P1 C8P3S7 D0R0R9 D1J5P6 D1M1S6 D3D4Y5
D3F3O5 D3F9H9 D3O9U9 D4M3Q2 D4N6W6 D8E4F4 D9L1Z3 E0M3U7 E0O0S0 E9H1U4 E9V4Z8 F2H5S1 F3G5K5 G4S9U3 G5P4U3 G7I5V7 H1I3W0
H5N0P0 I7T3U1 J1T9Y1 J6K6P5 J6P5T8 J8R5W2 K4T7Y0 K5L2U3 K5P0Y1 L1Q9V8 L4Q2U3 M1R4S1 M2P1R1 N5S7Y1 N8N9U0 O0S9V7 P0S5Y0
P5R1Y4 Q0U0V5 Q3R9W7 R4Y1Z9 S1S3Z7 T2T9Z9 T9U9W2""",
}
"""The people of each hospital, the training hospital first."""

_COUNTS = {"CSF": (30, 10), "UHE": (10, 5), "HVHD": (55, 10)}  # for training and validation, then 10 for testing
_COLUMNS = ("external code", "centre", "ed", "es")
_PHASES = ("ED", "ES")


class PhaseEntry(FileEntry):
    """One phase of a heart."""

    def reference(self, scan: Case) -> LabelMap:
        """Read the label map of this phase, which must not be empty: observers labelled only two frames."""
        labels = super().reference(scan)
        if not labels.labels.any():
            raise ScanError(
                f"{self.labels} must hold labels in frame {self.frame}, counted from 0, as the table of the data set "
                "says, but that frame is empty. Check the table's row of this person."
            )
        return labels


class Mms(DataSet):
    """The data set as it is unpacked."""

    name = "mms"
    sites = tuple(CODES)

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scans = index_files(root.rglob("*_sa.nii.gz"), lambda path: path.name.removesuffix("_sa.nii.gz"))
        if not self._scans:
            raise not_found_error(root, self.name, "files CODE/CODE_sa.nii.gz")
        self._rows = _table(root)

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Mms:
        """Find scans and the table in the folder and all below it."""
        if options:
            raise InputError(f"The data set {cls.name} has no options, but got {', '.join(options)}.")
        return cls(require_folder(root, cls.name))

    @property
    def labels(self) -> Mapping[str, int]:
        """Return left ventricle, its muscle, and right ventricle."""
        return {"LV": 1, "MYO": 2, "RV": 3}

    def entries(self) -> list[ScanEntry]:
        """Return both phases of the paper's people, for the hospitals that the folder holds."""
        return [entry for site, codes in CODES.items() for entry in self._site(site, codes.split())]

    def _site(self, site: str, codes: list[str]) -> list[ScanEntry]:
        if not self._scans.keys() & set(codes):
            return []
        train, validation = _COUNTS[site]
        splits = split_by_order(codes, train, validation, range(train + validation, len(codes)))
        return [self._entry(code, site, splits[code], phase) for code in codes for phase in _PHASES]

    def _entry(self, code: str, site: str, split: str, phase: str) -> ScanEntry:
        row = self._rows.get(code)
        if row is None or row["centre"] != CENTRES[site]:
            raise InputError(
                f"The table of {self.name} in {self.root} must have {code} with centre {CENTRES[site]} ({site}), but "
                f"has {'no such row' if row is None else 'centre ' + row['centre']}. Get the table again."
            )
        first = next(iter(self._scans.values()))
        image = self._scans.get(code, first.parents[1] / code / f"{code}_sa.nii.gz")
        return PhaseEntry(
            f"{code}_{phase}",
            code,
            site,
            split,
            image=image,
            labels=image.with_name(f"{code}_sa_gt.nii.gz"),
            values={0: 0, 1: 1, 2: 2, 3: 3},
            frame=_whole(row[phase.lower()], code),
        )


def _table(root: Path) -> dict[str, dict[str, str]]:
    """Return the rows of the newest table with the needed columns, by the person's code and with lower-case columns."""
    for path in sorted(root.rglob("*.csv"), key=lambda path: path.name, reverse=True):
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            rows = [
                {(key or "").strip().lower(): value for key, value in row.items()} for row in csv.DictReader(stream)
            ]
        if rows and all(column in rows[0] for column in _COLUMNS):
            return {row[_COLUMNS[0]].strip(): {column: row[column].strip() for column in _COLUMNS} for row in rows}
    raise InputError(
        f"{root} must hold the table of M&Ms, a CSV file with the columns External code, Centre, ED and ES, but holds "
        "none. Put the table of the download beside the scans."
    )


def _whole(text: str, code: str) -> int:
    if not text.isdecimal():
        raise InputError(f"The table of M&Ms must give frames as whole numbers, but has {text!r} for {code}.")
    return int(text)
