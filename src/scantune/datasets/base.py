"""The contract of a data set: which scans it holds, of whom, from where, and what they are for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from scantune.scans.case import Case
from scantune.scans.header import check_file


@dataclass(frozen=True)
class ScanEntry(ABC):
    """One scan of a data set, listed but not read.

    Attributes:
        name: Stem of output files; no other entry of the data set has it.
        subject: The person; all scans of a person are in the same split.
        site: Where it was acquired.
        split: `train`, `validation` or `test`; empty where the data set has no splits.
    """

    name: str
    subject: str
    site: str = ""
    split: str = ""

    @abstractmethod
    def read(self) -> Case:
        """The scan with its reference.

        Raises:
            ScanError: A file is missing, damaged, or does not fit the others.
        """

    @property
    def labelled(self) -> bool:
        """Whether there is a reference."""
        return True

    @property
    def stripped(self) -> bool:
        """Whether `read` sets everything to 0 outside the brain."""
        return False

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that `read` opens."""

    def shift(self) -> float:
        """By how many voxels the reference's header places it off the grid of the scan, within what is tolerated."""
        return 0.0

    def check(self) -> None:
        """A quick look, before the work, at what can go wrong with `read`: by default, whether its files are there.

        Raises:
            ScanError: One is missing or empty, or a header tells that it cannot be read or does not fit the others.
        """
        for path in self.files():
            check_file(path)


class DataSet(ABC):
    """A folder of scans in a known layout.

    Attributes:
        name: As in `DATASETS`.
        sites: Sites of a public data set, the training site first; empty where the folder tells.
        folds: How many folds the paper goes through; where there are several, the option `fold` says which.
    """

    name: ClassVar[str]
    sites: ClassVar[tuple[str, ...]] = ()
    folds: ClassVar[int] = 1

    @classmethod
    @abstractmethod
    def open(cls, root: str | Path, **options: Any) -> DataSet:
        """Look at a folder.

        Raises:
            InputError: It is not there, or not laid out as expected; the sentence says what was looked for.
        """

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, int]:
        """Label value of each structure; 0 is background."""

    @abstractmethod
    def entries(self) -> list[ScanEntry]:
        """All scans, in an order that does not depend on the file system."""

    def hint(self) -> str:
        """What the user should say about the data set beside what was said, as a sentence; empty where all is clear."""
        return ""
