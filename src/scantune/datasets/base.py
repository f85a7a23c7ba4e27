"""Contract of a data set: its scans with their people, sites and splits."""

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
    """One scan of a data set, listed but not yet read.

    Attributes:
        name: Stem of output files, unique within the data set.
        subject: The person. All scans of a person are in the same split.
        site: Site of acquisition.
        split: `train`, `validation` or `test`. Empty if the data set has no splits.
    """

    name: str
    subject: str
    site: str = ""
    split: str = ""

    @abstractmethod
    def read(self) -> Case:
        """Read the scan with its reference.

        Raises:
            ScanError: A file is missing, damaged, or does not fit the others.
        """

    @property
    def labelled(self) -> bool:
        """Return whether the scan has a reference."""
        return True

    @property
    def stripped(self) -> bool:
        """Return whether `read` sets everything outside the brain to 0."""
        return False

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Return every file that `read` opens."""

    def header_shift(self) -> float:
        """Return by how many voxels the reference's header places it off the scan's grid, within the tolerance."""
        return 0.0

    def check(self) -> None:
        """Check quickly, before the work, that `read` can succeed. By default, check that its files exist.

        Raises:
            ScanError: A file is missing or empty, or by its header cannot be read or does not fit the others.
        """
        for path in self.files():
            check_file(path)


class DataSet(ABC):
    """Folder of scans in a known layout.

    Attributes:
        name: Name in `DATASETS`.
        sites: Sites of a public data set, the training site first. Empty if they depend on the folder.
        folds: Number of the paper's folds. If there are several, the option `fold` selects one.
    """

    name: ClassVar[str]
    sites: ClassVar[tuple[str, ...]] = ()
    folds: ClassVar[int] = 1

    @classmethod
    @abstractmethod
    def open(cls, root: str | Path, **options: Any) -> DataSet:
        """Open a folder.

        Raises:
            InputError: The folder does not exist or has another layout. The message names what was expected.
        """

    @property
    @abstractmethod
    def labels(self) -> Mapping[str, int]:
        """Return the label value of each structure. 0 is background."""

    @abstractmethod
    def entries(self) -> list[ScanEntry]:
        """Return all scans, in an order that does not depend on the file system."""

    def hint(self) -> str:
        """Return a sentence on options that the user should give, or nothing if all is clear."""
        return ""
