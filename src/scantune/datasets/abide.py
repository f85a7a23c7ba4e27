"""ABIDE: T1w brains of Caltech (AC) and Stanford (AS), with FreeSurfer labels.

Scans and label maps are matched by the person's number, wherever they lie below the folder:

* label maps: `Caltech_NNNN/mri/aparc+aseg.mgz` (FreeSurfer's folders; NIfTI too), or, in a folder of the person below
  one of the site, `aparc+aseg` or `orig_labels_aligned_with_true_image.nii.gz`, as the paper's authors had them;
* scans: `MPRAGE.nii` or `mprage.nii.gz` in the person's folder, `Caltech/NNNN/session_1/anat_1/mprage.nii.gz`,
  `Caltech/sub-NNNN/anat/sub-NNNN_T1w.nii.gz`, or else FreeSurfer's `mri/orig.mgz`.

Labels on FreeSurfer's grid are brought to that of the scan. People are split by the order of their names; three that
the authors left out are left out here. With other names than theirs, other people are in the splits.
"""

from __future__ import annotations

import re
from pathlib import Path

from scantune.datasets.base import ScanEntry
from scantune.datasets.file_entry import index_files, not_found_error
from scantune.datasets.freesurfer import (
    LABEL_FILES,
    MASK_FILES,
    BrainDataSet,
    BrainEntry,
    StrippingOptions,
    files_by_folder,
    find_first,
    group_labels,
)
from scantune.datasets.splits import require_people, split_by_order

FOLDER_PREFIXES = {"AC": "caltech", "AS": "stanford"}
"""Start of the names of each site's folders, in lower case."""

OFFSETS = {"AC": 0, "AS": 10}
"""Slices of 1 mm by which the paper shifts a site's scans for registration; it does not give the direction."""

_TESTS = {"AC": range(16, 26), "AS": range(15, 25)}  # places of the test people. The authors skipped Caltech's 15
_LEFT_OUT = {"A00033264", "A00033493", "A00033547"}
_LABELS = (*LABEL_FILES, "orig_labels_aligned_with_true_image.nii.gz")
_SCANS = ("MPRAGE.nii", "MPRAGE.nii.gz", "mprage.nii", "mprage.nii.gz")
_CONFORMED = ("orig.mgz", "orig.nii.gz")
_Person = tuple[str, str]


class Abide(BrainDataSet):
    """The data set with FreeSurfer's results, below one folder."""

    options_type = StrippingOptions
    options: StrippingOptions
    name = "abide"
    sites = tuple(FOLDER_PREFIXES)

    def __init__(self, root: Path, options: StrippingOptions) -> None:
        self.root, self.options = root, options
        folders = files_by_folder(root, _LABELS)
        self._labels = {person: folders[folder] for person, folder in index_files(folders, self._person).items()}
        if not self._labels:
            raise not_found_error(
                root, self.name, "files Caltech_NNNN/mri/aparc+aseg.mgz or Stanford/NNNN/aparc+aseg.*"
            )
        names = [*_SCANS, "*_T1w.nii.gz", *_CONFORMED]
        found = [path for name in names for path in sorted(root.rglob(name)) if not path.name.startswith(".")]
        self._scans = {person: path for path in reversed(found) if (person := self._person(path))}  # the first is kept

    def entries(self) -> list[ScanEntry]:
        """Return the scans of the paper's 25 people per site, for the sites that the folder holds."""
        return [entry for site in self.sites for entry in self._site(site)]

    def _site(self, site: str) -> list[ScanEntry]:
        everyone = self._labels.keys() | self._scans.keys()  # with those whose label map or scan is missing
        people = sorted(person for place, person in everyone if place == site)
        if not people:
            return []
        require_people(len(people), _TESTS[site].stop, f"ABIDE's {site}", self.root)
        splits = split_by_order(people, 10, 5, _TESTS[site])
        return [self._entry((site, person), split) for person, split in splits.items()]

    def _entry(self, person: _Person, split: str) -> ScanEntry:
        name, scan, drawn = "-".join(person), self._scans.get(person), self._labels.get(person)
        labels = drawn or (scan or self.root).with_name(LABEL_FILES[0])
        image = scan or labels.with_name(_CONFORMED[0])
        return BrainEntry(
            name,
            name,
            person[0],
            split,
            image=image,
            labels=labels,
            values=group_labels(self.options.grouping),
            strip=self.options.strip,
            mask=find_first(labels.parent, MASK_FILES),
            central=self.options.central,
            offset=OFFSETS[person[0]] if self.options.offset is None else self.options.offset,
        )

    def _person(self, path: Path) -> _Person | None:
        """Return the site and the name without site and `sub-` of a folder or file, or None if it belongs to nobody."""
        parts = path.relative_to(self.root.parent).parts
        sites = [site for part in parts for site, start in FOLDER_PREFIXES.items() if part.lower().startswith(start)]
        names = [re.sub(rf"(?i)^({'|'.join(FOLDER_PREFIXES.values())})_|^sub-", "", part) for part in parts]
        found = [name for name in names if re.fullmatch(r"A?\d{4,9}", name)]
        return (sites[-1], found[-1]) if sites and found and found[-1] not in _LEFT_OUT else None
