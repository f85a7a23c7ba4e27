"""Held-out scans: the test scans of a source, listed but not read."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from scantune.datasets import ScanEntry
from scantune.scans.case import Case

if TYPE_CHECKING:
    from scantune.training.sources import SimulatedSource

DataKind = Literal["real", "simulated"]

TEST = "test"
"""The split of held-out scans."""


@dataclass(frozen=True)
class HeldOutScan(ABC):
    """A scan to test with, listed but not read.

    Attributes:
        site: The site that acquired it.
        number: The place of its person among those of the site, from 0.
        identity: A hash of everything that decides how the scan looks, independent of its folder.
    """

    site: str
    number: int
    identity: str

    @property
    def title(self) -> str:
        """Return the name of the scan in progress messages."""
        return f"{self.site} {self.number + 1}"

    @property
    @abstractmethod
    def data(self) -> DataKind:
        """Return whether the scan is of a real person."""

    @abstractmethod
    def read(self, device: torch.device) -> Case:
        """Return the scan with its reference."""


@dataclass(frozen=True)
class SimulatedScan(HeldOutScan):
    """A person of a simulated cohort, in one of the anatomy's states."""

    source: "SimulatedSource"
    state: int

    @property
    def data(self) -> DataKind:
        """Return that the scan is simulated."""
        return "simulated"

    @property
    def title(self) -> str:
        """Return the person's number at the site, with the state if it is not the first."""
        return f"{super().title} ({self.state + 1})" if self.state else super().title

    def read(self, device: torch.device) -> Case:
        """Simulate the scan."""
        people = _first_equal(self.source).people(self.site, TEST, device, self.number, self.number + 1)
        return next(case for state, case in enumerate(people) if state == self.state)


@dataclass(frozen=True)
class ListedScan(HeldOutScan):
    """A scan of a data set.

    Attributes:
        entry: The scan in its data set.
        data: Whether it is of a real person.
    """

    entry: ScanEntry
    data: DataKind = "real"

    @property
    def title(self) -> str:
        """Return the site and the name of the scan in the data set."""
        return f"{self.site} {self.entry.name}"

    def read(self, device: torch.device) -> Case:  # noqa: ARG002
        """Read the scan."""
        return self.entry.read()


@functools.lru_cache(maxsize=4)
def _first_equal(source: "SimulatedSource") -> "SimulatedSource":
    """Return the first source that equals this one, with the anatomy that it has made already."""
    return source
