"""Tables of scans in a CSV file, with one line for each scan."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from scantune.datasets.generic import GenericDataSet, GenericOptions
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.subjects import SPLITS, find_subject
from scantune.errors import InputError
from scantune.scans.names import scan_name

LIST_COLUMNS = ("image", "labels", "brain_mask", "subject", "site", "split", "name")
_SPLIT_WORDS = {"training": "train", "val": "validation", "valid": "validation", "testing": "test"}


@dataclass(frozen=True)
class CsvManifest(GenericDataSet):
    """CSV file with a column `image`, and others of `LIST_COLUMNS` if known.

    Paths start at the folder of the CSV file. Columns are separated by comma, semicolon or tab, as in the first line.
    Other columns are ignored. Without a subject, the person follows from the name. Without a name, the file name of
    the image is taken.
    """

    name: ClassVar[str] = "csv"
    kind: ClassVar[str] = "file"

    options: GenericOptions = field(default_factory=GenericOptions)

    def require_layout(self) -> None:
        """Check that there is a column of images."""
        self._rows()

    def find_entries(self) -> list[LayeredEntry]:
        """Return one scan for each line."""
        return [self._entry(number, row) for number, row in enumerate(self._rows(), start=2)]

    def _rows(self) -> list[dict[str, str]]:
        try:
            text = self.root.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.root} cannot be read as a CSV file in UTF-8 ({error}).") from error
        first = text.partition("\n")[0]
        reader = csv.DictReader(io.StringIO(text), delimiter=max(",;\t", key=first.count), restval="")
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        if "image" not in reader.fieldnames:
            raise InputError(
                f"{self.root} must have a column image in its first line, and may have others of "
                f"{', '.join(LIST_COLUMNS)}, but has {', '.join(reader.fieldnames) or 'nothing'}."
            )
        return [{name: (row[name] or "").strip() for name in LIST_COLUMNS if name in row} for row in reader]

    def _entry(self, number: int, row: Mapping[str, str]) -> LayeredEntry:
        image = row["image"]
        if not image:
            raise InputError(f"Line {number} of {self.root} names no image.")
        word = row.get("split", "").lower()
        split = _SPLIT_WORDS.get(word, word)
        if split and split not in SPLITS:
            raise InputError(
                f"Line {number} of {self.root} has the split {word!r}, but it must be one of {', '.join(SPLITS)}, or "
                "empty."
            )
        path = self._path(image)
        name = row.get("name") or scan_name(path)
        return LayeredEntry(
            name,
            row.get("subject") or find_subject(name, self.options.person),
            row.get("site", ""),
            split,
            image=path,
            layers=(LabelLayer(self._path(row["labels"])),) if row.get("labels") else (),
            brain_mask=self._path(row["brain_mask"]) if row.get("brain_mask") else None,
            allowed=self.options.allowed,
        )

    def _path(self, text: str) -> Path:
        return self.root.parent / Path(text).expanduser()
