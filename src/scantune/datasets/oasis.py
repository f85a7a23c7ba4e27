"""OASIS: T1w brains with FreeSurfer results, of one or several sessions per person.

A session is a folder such as `OAS1_0001_MR1` (or `OAS30001_MR_d0129`) with `mri/aparc+aseg.mgz`, `mri/orig.mgz` and
`mri/brainmask.mgz`, or the same as NIfTI with or without `mri`, at any depth. People are split by the order of their
names like those of Caltech, since the paper gives no split: 10 train, 5 validate, 10 test; the others are left out.
All sessions of a person are in the same split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scantune.datasets.base import ScanEntry
from scantune.datasets.file_entry import index_files, not_found_error
from scantune.datasets.freesurfer import (
    LABEL_FILES,
    MASK_FILES,
    BrainDataSet,
    BrainEntry,
    Grouping,
    StrippingOptions,
    files_by_folder,
    find_first,
    group_labels,
)
from scantune.datasets.splits import require_people, split_by_order

_SCANS = ("orig.mgz", "orig.nii.gz", "orig.nii")
_TEST = range(15, 25)


@dataclass(frozen=True)
class OasisOptions(StrippingOptions):
    """Options of OASIS."""

    grouping: Grouping = "registration"


class Oasis(BrainDataSet):
    """FreeSurfer's results of the data set, below one folder."""

    options_type = OasisOptions
    options: OasisOptions
    name = "oasis"
    sites = ("OASIS",)

    def __init__(self, root: Path, options: OasisOptions) -> None:
        self.root, self.options = root, options
        scans = {folder: path.with_name(LABEL_FILES[0]) for folder, path in files_by_folder(root, _SCANS).items()}
        folders = scans | files_by_folder(root, LABEL_FILES)  # with sessions whose label map is missing
        sessions = index_files(folders, lambda path: path.name if _person(path.name) else None)
        self._labels = {session: folders[folder] for session, folder in sessions.items()}
        if not self._labels:
            raise not_found_error(root, self.name, "files OAS1_NNNN_MR1/mri/aparc+aseg.mgz")
        require_people(len({_person(session) for session in self._labels}), _TEST.stop, "OASIS", root)

    def entries(self) -> list[ScanEntry]:
        """Return all sessions of 25 people."""
        people = sorted({_person(session) for session in self._labels})
        splits = split_by_order(people, 10, 5, _TEST)
        return [self._entry(session, splits) for session in sorted(self._labels) if _person(session) in splits]

    def _entry(self, session: str, splits: Mapping[str, str]) -> ScanEntry:
        labels, person = self._labels[session], _person(session)
        return BrainEntry(
            session,
            person,
            "OASIS",
            splits[person],
            image=find_first(labels.parent, _SCANS) or labels.with_name(_SCANS[0]),
            labels=labels,
            values=group_labels(self.options.grouping),
            strip=self.options.strip,
            mask=find_first(labels.parent, MASK_FILES),
        )


def _person(session: str) -> str:
    """Return the person of a session, or nothing for folders of no session."""
    found = re.match(r"(OAS[12]_\d{4}|OAS[34]\d{4})(?!\d)", session)
    return found[1] if found else ""
