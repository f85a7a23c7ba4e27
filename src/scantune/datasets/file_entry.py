"""Scans of public data sets: an image file and a label map, and finding their files."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from scantune.datasets.base import ScanEntry
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap, grid_shift, require_same_grid
from scantune.scans.header import FileGrid, read_grid
from scantune.scans.io import read_labels, read_scan

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class FileEntry(ScanEntry):
    """Scan in one file with its reference in another, on the same grid.

    Attributes:
        image: File of the scan.
        labels: File of its label map.
        values: Our label value of each value that the label map may hold.
        frame: Number of the volume in 4D files. None for 3D files.
    """

    image: Path
    labels: Path
    values: Mapping[int, int]
    frame: int | None = None

    def read(self) -> Case:
        """Read the scan with its reference."""
        self._require_present()
        image = self.scan()
        case = image.with_reference(self.reference(image))
        return replace(case, name=self.name, subject=self.subject, site=self.site, split=self.split)

    def scan(self) -> Case:
        """Read the scan alone."""
        return read_scan(self.image, self.frame)

    def reference(self, scan: Case) -> LabelMap:  # noqa: ARG002
        """Read the reference with our label values, on the grid of the scan."""
        return relabel(read_labels(self.labels, self.values, self.frame), self.values)

    def required_files(self) -> Sequence[Path]:
        """Return the files and folders that must exist."""
        return [self.image, self.labels]

    def check(self) -> None:
        """Check that all files exist, are not empty, and have headers that fit."""
        self._require_present()
        super().check()
        self.check_headers()

    def check_headers(self) -> None:
        """Check by their headers that image and label maps lie on one grid."""
        for labels in self._grids():
            require_same_grid(labels, read_grid(self.image, self.frame))

    def header_shift(self) -> float:
        """Return the largest shift between the headers of image and label maps."""
        return max((grid_shift(labels, read_grid(self.image, self.frame)) for labels in self._grids()), default=0.0)

    def labels_on_grid(self) -> Sequence[Path]:
        """Return the label maps that must lie on the scan's grid. `reference` places those of other grids."""
        return [self.labels]

    def _grids(self) -> Iterator[FileGrid]:
        return (read_grid(path, self.frame) for path in self.labels_on_grid())

    def files(self) -> Sequence[Path]:
        """Return the image and the label map, with the data files of MetaImage headers."""
        return [file for path in self.required_files() for file in (path, *_data_file(path))]

    def _require_present(self) -> None:
        for path in self.required_files():
            if not path.exists():
                raise ScanError(
                    f"{self.name} is incomplete: {path} is missing. Get it again, or use a list of cases without it."
                )


def relabel(labels: LabelMap, values: Mapping[int, int]) -> LabelMap:
    """Return a label map with each value replaced by ours. Values without one become background."""
    present, places = np.unique(labels.labels, return_inverse=True)
    ours = np.array([values.get(int(value), 0) for value in present], np.uint8)
    return replace(labels, labels=ours[places].reshape(labels.shape))


def require_folder(root: str | Path, dataset: str) -> Path:
    """Return the folder of a data set.

    Raises:
        InputError: There is no such folder.
    """
    folder = Path(root).expanduser().absolute()
    if not folder.is_dir():
        raise InputError(f"The data set {dataset} is looked for in {root}, which is not a folder. Check the path.")
    return folder


def not_found_error(root: Path, dataset: str, expected: str) -> InputError:
    """Return the error for a folder that does not hold a data set."""
    return InputError(
        f"{root} does not look like the data set {dataset}: expected {expected}, but found none. Give the folder that "
        "the download was unpacked in."
    )


def index_files(paths: Iterable[Path], key: Callable[[Path], Key | None]) -> dict[Key, Path]:
    """Return files by their keys, in order of their paths. Files with the key None are left out.

    Raises:
        InputError: Two files have the same key.
    """
    found: dict[Key, Path] = {}
    for path in sorted(paths):
        name = key(path)
        if name is None or path.name.startswith("."):
            continue
        if name in found:
            raise InputError(
                f"{found[name]} and {path} are files of the same case. Give a folder that holds every case once."
            )
        found[name] = path
    return found


def _data_file(path: Path) -> list[Path]:
    """Return the file with the voxels of a MetaImage header."""
    if path.suffix.lower() != ".mhd" or not path.is_file():
        return []
    lines = path.read_text(encoding="latin-1").splitlines()
    names = [line.partition("=")[2].strip() for line in lines if line.startswith("ElementDataFile")]
    return [path.with_name(name) for name in names if name and name.upper() not in ("LOCAL", "LIST")]
