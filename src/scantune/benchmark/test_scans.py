"""Test scans of an experiment: which there are, and what tells each from every other."""

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scantune.datasets import ScanEntry
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.preprocess import Preprocessing
from scantune.simulate import VERSION
from scantune.training.cache import case_key
from scantune.training.sources import SPLITS, CaseSource, DataSetSource, ListedSource, SimulatedSource

TEST = "test"


@dataclass(frozen=True)
class HeldOutScan(ABC):
    """A scan to test with, listed but not read.

    Attributes:
        site: Where it was acquired.
        number: Its person's place among those of the site, from 0.
        identity: A hash of what decides how the scan looks, wherever it lies.
    """

    site: str
    number: int
    identity: str

    @property
    def title(self) -> str:
        """What it is called while it is worked on."""
        return f"{self.site} {self.number + 1}"

    @abstractmethod
    def read(self, device: torch.device) -> Case:
        """The scan with its reference."""


@dataclass(frozen=True)
class SimulatedScan(HeldOutScan):
    """A person of a simulated cohort, in one of the anatomy's states."""

    source: SimulatedSource
    state: int

    @property
    def title(self) -> str:
        """With the state, where it is not the first."""
        return f"{super().title} ({self.state + 1})" if self.state else super().title

    def read(self, device: torch.device) -> Case:
        """Simulates the scan."""
        people = _same(self.source).people(self.site, TEST, device, self.number, self.number + 1)
        return next(case for state, case in enumerate(people) if state == self.state)


@dataclass(frozen=True)
class ListedScan(HeldOutScan):
    """A scan of a data set."""

    entry: ScanEntry

    @property
    def title(self) -> str:
        """As the data set names it."""
        return f"{self.site} {self.entry.name}"

    def read(self, device: torch.device) -> Case:  # noqa: ARG002
        """Reads the scan."""
        return self.entry.read()


@functools.lru_cache(maxsize=4)
def _same(source: SimulatedSource) -> SimulatedSource:
    """The first source that equals this one, with the anatomy that it has made already."""
    return source


def sites(source: CaseSource) -> list[str]:
    """Every site with scans to test with, the training site first where it is known."""
    if isinstance(source, SimulatedSource):
        return [name for name, centre in source.known.centres.items() if TEST in centre.splits]
    return list(dict.fromkeys(entry.site for entry in _tested(source)))


def training_site(source: CaseSource) -> str:
    """The site that networks are trained at; empty where there is no one site."""
    if isinstance(source, SimulatedSource):
        return source.centre or source.known.source
    if isinstance(source, DataSetSource):
        known = source.site or source.dataset().sites[:1]
        return known[0] if len(known) == 1 else ""
    return ""


def held_out_scans(source: CaseSource, site: str) -> list[HeldOutScan]:
    """The scans to test with of a site, in an order that does not depend on the file system."""
    if isinstance(source, SimulatedSource):
        return [*_simulated(source, site)]
    entries = [entry for entry in _tested(source) if entry.site == site]
    people = list(dict.fromkeys(entry.subject for entry in entries))
    return [ListedScan(site, people.index(entry.subject), _key(entry), entry) for entry in entries]


def at_site(source: CaseSource, site: str) -> CaseSource:
    """The source with its training and validation scans of another site.

    Raises:
        InputError: There are none.
    """
    if isinstance(source, SimulatedSource):
        missing = [split for split in SPLITS if split not in source.known.centres[site].splits]
        if missing:
            raise InputError(f"The centre {site} of cohort {source.cohort} has no people for {missing[0]}.")
        return replace(source, centre=site, train=None, validation=None)
    if isinstance(source, DataSetSource):
        return replace(source, site=(site,))
    raise InputError(f"The scans of {site} cannot be told from others to train on; describe them as a data set.")


def identity(source: CaseSource, preprocessing: Preprocessing) -> str:
    """A hash of what decides how the training and validation scans of a source look, wherever they lie.

    Raises:
        InputError: Scans are missing or cannot be used.
    """
    if isinstance(source, SimulatedSource):
        centre = source.known.centres[source.centre or source.known.source]
        counts: dict[str, int | None] = {
            split: centre.splits.get(split) if getattr(source, split) is None else getattr(source, split)
            for split in SPLITS
        }
        return _digest({**_origin(source), "centre": repr(centre.protocol), **counts})
    if not isinstance(source, ListedSource):
        raise InputError(f"An experiment needs scans that can be listed, got {type(source).__name__}.")
    listed: dict[str, list[str]] = {
        split: [case_key(entry, preprocessing) for entry in source.entries(split)] for split in SPLITS
    }
    return _digest({"names": source.names(), **listed})


def _simulated(source: SimulatedSource, site: str) -> Sequence[HeldOutScan]:
    cohort = source.known
    centre = cohort.centres[site]
    own = not (source.atlas or source.label_maps)
    # Not of the anatomy itself, which may take seconds to be made.
    states = len(getattr(cohort.anatomy, "states", ("",))) if own else 1
    origin = {**_origin(source), "centre": repr(centre.protocol)}
    return [
        SimulatedScan(site, number, _digest({**origin, "person": number, "state": state}), source, state)
        for number in range(centre.splits[TEST])
        for state in range(states)
    ]


def _origin(source: SimulatedSource) -> dict[str, Any]:
    """What all people of a source share: their kind, the simulator's version, and the files they are made from."""
    record = {name: value for name, value in asdict(source).items() if name not in ("centre", "cache", *SPLITS)}
    files = {name: _contents(Path(record[name])) for name in ("atlas", "label_maps") if record[name]}
    return record | files | {"simulation": VERSION}


def _contents(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _tested(source: CaseSource) -> list[ScanEntry]:
    """Labelled scans that are put aside for tests; of a data set without splits, those of other sites."""
    if not isinstance(source, ListedSource):
        raise InputError(f"An experiment needs scans that can be listed, got {type(source).__name__}.")
    entries = source.dataset().entries()
    home = training_site(source)
    chosen = [e for e in entries if e.split == TEST or (not e.split and e.site != home)]
    return [entry for entry in chosen if entry.labelled]


def _key(entry: ScanEntry) -> str:
    """Of a scan's files and how they are read; the network's preprocessing is part of the model."""
    return case_key(entry, Preprocessing())


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()[:32]
