"""Scans of data sets: sources that list files, which are checked before the first is read."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from scantune.backends import Backend, Prepared, Preprocessing
from scantune.datasets import DataSet, ScanEntry
from scantune.datasets.inspect import inspect_scan
from scantune.datasets.subjects import subjects_in_two_splits
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case
from scantune.training.cache import OnCase, case_key, ignore_progress, prepared_cases, refuse_scans
from scantune.training.held_out import TEST, DataKind, HeldOutScan, ListedScan
from scantune.training.sources.base import SPLITS, CaseSource, Split, digest


class ListedSource(CaseSource):
    """Scans of a data set: all that training will need are looked at before the first is read."""

    cache: str

    @abstractmethod
    def dataset(self) -> DataSet:
        """Return the data set.

        Raises:
            InputError: It is not there, or not as expected.
        """

    def chosen(self) -> list[ScanEntry]:
        """Return the scans to train on and to select by: those of the chosen sites, in all splits.

        Raises:
            InputError: There are none.
        """
        return self.dataset().entries()

    def entries(self, split: Split) -> list[ScanEntry]:
        """Return the scans of a split, after a quick check of those of all splits that training needs.

        Raises:
            InputError: Some have no reference, cannot be opened or do not fit together, which are all named; or a
                person is in two splits.
        """
        chosen = self.chosen()
        _require_sound([entry for entry in chosen if entry.split in SPLITS])
        _require_apart(chosen)
        return [entry for entry in chosen if entry.split == split]

    def stripped(self) -> bool:
        """Return whether all scans that training needs are stripped."""
        return all(entry.stripped for entry in self._needed())

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:  # noqa: ARG002
        """Read the cases of a split."""
        return (entry.read() for entry in self.entries(split))

    def prepared(
        self,
        split: Split,
        backend: Backend[Any],
        device: torch.device,  # noqa: ARG002
        on_case: OnCase = ignore_progress,
    ) -> Iterator[tuple[str, Prepared]]:
        """Yield names and prepared volumes of a split's cases, from the cache if there is one."""
        entries = self.entries(split)
        # N4 takes long, and what cannot be read should not come out at the end of it.
        if isinstance(backend, Preprocessing) and backend.n4:
            refuse_scans(self.unreadable, len(self._needed()))
        return prepared_cases(entries, backend, self.cache or None, on_case=on_case)

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Return the reasons why scans that training needs cannot be read, by name; each is read for this."""
        looks = (inspect_scan(entry) for entry in self._needed())
        return {look.entry.name: look.problem for look in looks if not look.shape}

    def test_sites(self) -> list[str]:
        """Return every site with labelled held-out scans."""
        return list(dict.fromkeys(entry.site for entry in self._held_out()))

    def test_scans(self, site: str) -> list[HeldOutScan]:
        """Return the labelled held-out scans of a site."""
        entries = [entry for entry in self._held_out() if entry.site == site]
        people = list(dict.fromkeys(entry.subject for entry in entries))
        # The preprocessing of the network is part of the model, so that the hash has the default.
        return [
            ListedScan(site, people.index(entry.subject), case_key(entry, Preprocessing()), entry, self.data)
            for entry in entries
        ]

    @property
    def data(self) -> DataKind:
        """Return whether the scans are of real people."""
        return "real"

    def identity(self, backend: Backend[Any]) -> str:
        """Return a hash of the files of training and validation scans, and of how they are read."""
        keys: dict[str, list[str]] = {
            split: [case_key(entry, backend) for entry in self.entries(split)] for split in SPLITS
        }
        return digest({"names": self.names(), **keys})

    def _needed(self) -> list[ScanEntry]:
        return [entry for entry in self.chosen() if entry.split in SPLITS]

    def _held_out(self) -> list[ScanEntry]:
        """Return labelled scans that are put aside for tests; in data sets without splits, those of other sites."""
        entries, home = self.dataset().entries(), self.training_site()
        held_out = [entry for entry in entries if entry.split == TEST or (not entry.split and entry.site != home)]
        return [entry for entry in held_out if entry.labelled]


def _require_sound(entries: Sequence[ScanEntry]) -> None:
    """Refuse entries that are not there or do not fit, all at once; only headers are read, so that it is quick."""
    bad: dict[str, str] = {}
    for entry in entries:
        try:
            entry.check()
            if not entry.labelled:
                bad[entry.name] = "There is no reference for it."
        except ScanError as error:
            bad[entry.name] = str(error)
    refuse_scans(bad, len(entries))


def _require_apart(entries: Sequence[ScanEntry]) -> None:
    """Refuse people who are in two splits."""
    twice = subjects_in_two_splits(entries)
    if twice:
        named = "; ".join(f"{person} ({', '.join(splits)})" for person, splits in twice.items())
        raise InputError(
            f"{len(twice)} people have scans in more than one split, so that scores would be too good: {named}. Put "
            "all scans of a person into one."
        )
