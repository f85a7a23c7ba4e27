"""OASIS: T1w brains with FreeSurfer results, of one or several sessions per person.

A session is a folder such as `OAS1_0001_MR1` (or `OAS30001_MR_d0129`) with `mri/aparc+aseg.mgz`, `mri/orig.mgz` and
`mri/brainmask.mgz`, or the same as NIfTI with or without `mri`, at any depth. People are split by the order of their
names like those of Caltech, since the paper gives no split: 10 train, 5 validate, 10 test; the others are left out.
All sessions of a person are in the same split.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    label_names,
)
from scantune.datasets.splits import require_people, split_by_order
from scantune.errors import InputError

_SCANS = ("orig.mgz", "orig.nii.gz", "orig.nii")
_TEST = range(15, 25)


@dataclass(frozen=True)
class OasisOptions(StrippingOptions):
    """Options of OASIS."""

    grouping: Grouping = "registration"
    drawn: str = ""
    """Name of a label map by experts in each session's folder, or in its `mri`, such as `experts.nii.gz`, to take in
    place of FreeSurfer's labels."""
    drawn_values: dict[str, list[int]] = field(default_factory=dict)
    """Its values of each structure of the grouping, such as `{ GM = [1], WM = [2] }`. By default 1, 2, ... in order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = label_names(self.grouping)
        if self.drawn_values and (self.drawn_values.keys() != names.keys() or not self.drawn):
            raise InputError(
                f"The option drawn_values must give the values of {', '.join(names)} in the label map that the option "
                f"drawn names, but is {self.drawn_values} and drawn is {self.drawn!r}."
            )

    @property
    def reference_values(self) -> dict[int, int]:
        """Return our label value of each value of the reference."""
        names = label_names(self.grouping)
        if not self.drawn:
            return group_labels(self.grouping)
        theirs = self.drawn_values or {name: [value] for name, value in names.items()}
        return {value: names[name] for name, values in theirs.items() for value in values}


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
            values=self.options.reference_values,
            strip=self.options.strip,
            mask=find_first(labels.parent, MASK_FILES),
            drawn=self._drawn(labels.parent),
            central=self.options.central,
            offset=self.options.offset or 0.0,
        )

    def _drawn(self, folder: Path) -> Path | None:
        """Return the label map by experts of a session, which may lie above `mri`."""
        name = self.options.drawn
        if not name:
            return None
        found = find_first(folder, [name])
        above = folder.parent if folder.name == "mri" else folder
        return found or above / name


def _person(session: str) -> str:
    """Return the person of a session, or nothing for folders of no session."""
    found = re.match(r"(OAS[12]_\d{4}|OAS[34]\d{4})(?!\d)", session)
    return found[1] if found else ""
