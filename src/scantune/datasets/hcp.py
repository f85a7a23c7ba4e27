"""HCP: T1w brains of the Human Connectome Project, already stripped and bias-corrected, with FreeSurfer labels.

A person is a folder with `T1w/T1w_acpc_dc_restore_brain.nii.gz` and `T1w/aparc+aseg.nii.gz`, at any depth. People are
split by the order of their names: the first 20 train, the next 5 validate, those in places 51 to 60 test; the others
are left out. The paper's authors had copied only a part, in which the test people came right after the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scantune.datasets.base import ScanEntry
from scantune.datasets.file_entry import index_files, not_found_error
from scantune.datasets.freesurfer import BrainDataSet, BrainEntry, BrainOptions, group_labels
from scantune.datasets.splits import require_people, split_by_order
from scantune.errors import InputError

_TRAIN, _VALIDATION, _TEST = 20, 5, 10
_IMAGE, _LABELS = "T1w_acpc_dc_restore_brain.nii.gz", "aparc+aseg.nii.gz"


@dataclass(frozen=True)
class HcpOptions(BrainOptions):
    """Options of HCP."""

    first_test: int = 50
    """Place of the first test person in the order of names, counted from 0."""

    def __post_init__(self) -> None:
        if self.first_test < _TRAIN + _VALIDATION:
            raise InputError(
                f"The option first_test must be {_TRAIN + _VALIDATION} or more, so that nobody is in two splits, but "
                f"is {self.first_test}."
            )


class Hcp(BrainDataSet):
    """The data set as it is unpacked."""

    options_type = HcpOptions
    options: HcpOptions
    name = "hcp"
    sites = ("HCP",)

    def __init__(self, root: Path, options: HcpOptions) -> None:
        self.root, self.options = root, options
        folders = {path.parent for name in (_IMAGE, _LABELS) for path in root.rglob(f"T1w/{name}")}
        self._folders = index_files(folders, lambda path: path.parent.name)
        if not self._folders:
            raise not_found_error(root, self.name, f"files PERSON/T1w/{_IMAGE} and PERSON/T1w/{_LABELS}")
        require_people(len(self._folders), options.first_test + _TEST, "HCP", root)

    def entries(self) -> list[ScanEntry]:
        """Return the scans of the paper's 35 people."""
        first = self.options.first_test
        splits = split_by_order(sorted(self._folders), _TRAIN, _VALIDATION, range(first, first + _TEST))
        return [self._entry(person, split) for person, split in splits.items()]

    def _entry(self, person: str, split: str) -> ScanEntry:
        folder, values = self._folders[person], group_labels(self.options.grouping)
        return BrainEntry(person, person, "HCP", split, image=folder / _IMAGE, labels=folder / _LABELS, values=values)
