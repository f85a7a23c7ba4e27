"""Labelled cases to train on, and those of them that come from a data set."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.datasets import DATASETS, DataSet, Entry
from scantune.datasets.folder import Folder, FolderOptions
from scantune.datasets.inspect import inspect_scan
from scantune.datasets.subjects import subjects_in_two_splits
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case
from scantune.scans.preprocess import Prepared, Preprocessing
from scantune.training.cache import OnCase, prepared_cases, quiet, refuse

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class CaseSource(ABC):
    """Labelled cases of the training site."""

    @abstractmethod
    def names(self) -> dict[str, int]:
        """Label value of each structure, by name; 0 is background."""

    @abstractmethod
    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """The cases of a split, one after the other; each has a reference."""

    def stripped(self) -> bool:
        """Whether everything outside the brain is set to 0 in all of them as they are read."""
        return False

    def prepared(
        self, split: Split, preprocessing: Preprocessing, device: torch.device, on_case: OnCase = quiet
    ) -> Iterator[tuple[str, Prepared]]:
        """Names and prepared volumes of a split's cases; `on_case` is told how far it is, where that is known."""
        del on_case
        for case in self.cases(split, device):
            yield case.name, preprocessing.apply(case)


class ListedSource(CaseSource):
    """Scans of a data set: all that training will need are looked at before the first is read."""

    cache: str

    @abstractmethod
    def dataset(self) -> DataSet:
        """The data set.

        Raises:
            InputError: It is not there, or not as expected.
        """

    def chosen(self) -> list[Entry]:
        """The scans to train on and to select by: of the sites that are asked for, in all splits.

        Raises:
            InputError: There are none.
        """
        return self.dataset().entries()

    def entries(self, split: Split) -> list[Entry]:
        """The scans of a split, after a quick look at those of all splits that training needs.

        Raises:
            InputError: Some have no reference, cannot be opened or do not fit together, which are all named; or a
                person is in two splits.
        """
        chosen = self.chosen()
        _require_sound([entry for entry in chosen if entry.split in SPLITS])
        _require_apart(chosen)
        return [entry for entry in chosen if entry.split == split]

    def stripped(self) -> bool:
        """Whether all that training needs are."""
        return all(entry.stripped for entry in self._needed())

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:  # noqa: ARG002
        """Reads the cases of a split."""
        return (entry.read() for entry in self.entries(split))

    def prepared(
        self,
        split: Split,
        preprocessing: Preprocessing,
        device: torch.device,  # noqa: ARG002
        on_case: OnCase = quiet,
    ) -> Iterator[tuple[str, Prepared]]:
        """Names and prepared volumes of a split's cases, from the cache where there is one."""
        entries = self.entries(split)
        if preprocessing.n4:  # takes long, and what cannot be read should not come out at the end of it
            refuse(self.unreadable, len(self._needed()))
        return prepared_cases(entries, preprocessing, self.cache or None, on_case=on_case)

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Why scans of all splits that training needs cannot be read, by name; each is read for this."""
        looks = (inspect_scan(entry) for entry in self._needed())
        return {look.entry.name: look.problem for look in looks if not look.shape}

    def _needed(self) -> list[Entry]:
        return [entry for entry in self.chosen() if entry.split in SPLITS]


@dataclass(frozen=True)
class FileSource(ListedSource):
    """Image files and their label maps, paired by name; the data set `folder`, from where the command runs."""

    images: str
    """Pattern of the images, such as data/*_T1w.nii.gz, or data/{split}/*_T1w.nii.gz."""
    labels: str
    """Pattern of the label maps, such as data/*_tissue.nii.gz, or data/{split}/*_tissue.nii.gz."""
    structures: dict[str, int]
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    validation: float = 0.2
    """Share of the people put aside for validation, at most a half; not used where the patterns have {split}."""
    person: str = ""
    """A regular expression that finds the person in the name of a scan, so that the scans of a person stay together;
    without one, sub-12_ses-1 and sub-12_ses-2, 12_run-1 and 12_run-2, and 12Ses1 and 12Ses2 are of one person each."""
    cache: str = ""
    """A folder in which prepared scans are kept; by default they are prepared each time."""

    def __post_init__(self) -> None:
        if not self.structures:
            raise InputError(
                "The structures in [data] must be named with their label values: structures = { GM = 2, WM = 3 }, say; "
                f"got {self.structures}."
            )
        if not 0 < self.validation <= 0.5:
            raise InputError(f"The share validation in [data] must be above 0 and at most 0.5, got {self.validation}.")
        self._options()

    def names(self) -> dict[str, int]:
        """As the recipe names them."""
        return self.structures

    def dataset(self) -> DataSet:
        """The files."""
        return Folder(Path(), self._options())

    def _options(self) -> FolderOptions:
        return FolderOptions(
            self.structures, validation=self.validation, person=self.person, images=self.images, labels=self.labels
        )


@dataclass(frozen=True)
class DataSetSource(ListedSource):
    """Scans of a data set in a layout that is known by name."""

    name: str
    """A name of scantune.datasets.DATASETS."""
    root: str
    """Its folder, or its CSV file."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the data set takes beside: docs/data.md tells."""
    site: tuple[str, ...] = ()
    """The site or sites to train at; by default a public data set's training site, and all of any other."""
    cache: str = ""
    """A folder in which prepared scans are kept; by default they are prepared each time."""

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> "DataSetSource":
        """Makes a source from a table [data] with `dataset`."""
        own = {"dataset", "root", "site", "cache"}
        for key in own - {"site"}:
            if not isinstance(table.get(key, ""), str):
                raise InputError(f"The setting {key} in {where} must be text, got {table[key]!r}.")
        name, site = table["dataset"], table.get("site", ())
        sites = [site] if isinstance(site, str) else site
        if not isinstance(sites, list | tuple) or not all(isinstance(one, str) for one in sites):
            raise InputError(f"The setting site in {where} must be the name of a site or a list of them, got {site!r}.")
        if name not in DATASETS:
            raise InputError(f"Unknown data set {name!r} in {where}. Available: {', '.join(DATASETS)}.")
        if not table.get("root"):
            raise InputError(f"{where} must have the setting root: the folder (or CSV file) of the data set {name}.")
        options = {key: value for key, value in table.items() if key not in own}
        return cls(name, table["root"], options, tuple(sites), table.get("cache", ""))

    def names(self) -> dict[str, int]:
        """As the data set or its options name them."""
        names = {name: value for name, value in self.dataset().labels.items() if value}
        if not names:
            raise InputError(
                f"The data set {self.name} in {self.root} does not tell what its labels are; name the structures in "
                "[data]: structures = { GM = 2, WM = 3 }, say."
            )
        return names

    def dataset(self) -> DataSet:
        """The data set, opened."""
        return DATASETS[self.name].open(self.root, **self.options)

    def chosen(self) -> list[Entry]:
        """The scans of the sites to train at."""
        dataset = self.dataset()
        entries = dataset.entries()
        sites = sorted({entry.site for entry in entries})
        wanted = self.site or dataset.sites[:1]
        for site in wanted:
            if site not in sites:
                raise InputError(
                    f"The data set {self.name} in {self.root} has no site {site!r}. Available: {', '.join(sites)}."
                )
        chosen = [entry for entry in entries if not wanted or entry.site in wanted]
        for split in SPLITS:
            if not any(entry.split == split for entry in chosen):
                at = f" at {', '.join(wanted)}" if wanted else ""
                raise InputError(
                    f"The data set {self.name} in {self.root} has no scan for {split}{at}; choose another site, or the "
                    "shares validation and test otherwise."
                )
        return chosen


def _require_sound(entries: Sequence[Entry]) -> None:
    """Refuse entries that are not there or do not fit, all at once; headers tell, so that it takes no time."""
    bad: dict[str, str] = {}
    for entry in entries:
        try:
            entry.check()
            if not entry.labelled:
                bad[entry.name] = "There is no reference for it."
        except ScanError as error:
            bad[entry.name] = str(error)
    refuse(bad, len(entries))


def _require_apart(entries: Sequence[Entry]) -> None:
    """Refuse people who are in two splits."""
    twice = subjects_in_two_splits(entries)
    if twice:
        told = "; ".join(f"{person} ({', '.join(splits)})" for person, splits in twice.items())
        raise InputError(
            f"{len(twice)} people have scans in more than one split, so that scores would be too good: {told}. Put all "
            "scans of a person into one."
        )
