"""DICOM series of a folder: what is there, and the choice of one."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from scantune.errors import ScanError

MOST_LISTED = 20
"""Series that a message lists."""

_UID, _NUMBER, _DESCRIPTION, _FRAMES, _CLASS, _ROWS = (
    *(0x0020000E, 0x00200011, 0x0008103E, 0x00280008, 0x00080016, 0x00280010),
)
_LONGEST_TEXT = 64


class SeriesError(ScanError):
    """Error of a folder without the one series that was asked for, or with several.

    Attributes:
        recorded: The message without descriptions of series, in which people may write names.
    """

    def __init__(self, message: str, recorded: str) -> None:
        super().__init__(message)
        self._recorded = recorded

    @property
    def recorded(self) -> str:
        """Return the sentence that files may keep."""
        return self._recorded


@dataclass(frozen=True)
class DicomSeries:
    """DICOM series of a folder.

    Attributes:
        files: Its files, in the order of slices.
        uid: What names it in the whole world.
        number: Its number in the study, or empty.
        description: What the scanner's operator calls it, or empty.
        slices: Number of its slices.
    """

    files: tuple[Path, ...]
    uid: str
    number: str
    description: str
    slices: int

    def is_named(self, word: str) -> bool:
        """Return whether a word is the UID, the number or the description, which may have `*` for any letters."""
        return word in (self.uid, self.number) or fnmatchcase(self.description.lower(), word.lower())

    def line(self, *, with_uid: bool) -> str:
        """Return number, description and slices in words."""
        count = "1 slice" if self.slices == 1 else f"{self.slices} slices"
        name = f"number {self.number or 'unknown'}, {self.description or 'without description'} ({count})"
        return f"{name}, {self.uid}" if with_uid else name


def list_series(files: Iterable[Sequence[str]]) -> list[DicomSeries]:
    """Return the series with pictures, by number, given the files of each."""
    described = (_described(tuple(map(Path, each))) for each in files if each)
    found = [series for series in described if series is not None]
    return sorted(found, key=lambda one: (not one.number.isdigit(), one.number.zfill(12), one.description, one.uid))


def choose_series(folder: Path, series: Sequence[DicomSeries], word: str | None) -> DicomSeries:
    """Return the series that a word names, or the only one.

    Args:
        folder: The folder, for messages.
        series: What it holds.
        word: A number, description or UID. None takes the only series.

    Raises:
        SeriesError: There is no such series, or more than one.
    """
    fitting = [one for one in series if word is None or one.is_named(word)]
    if len(fitting) == 1:
        return fitting[0]
    if not series:
        words = (
            f"The folder {folder} must hold one DICOM series, but holds none that can be read as pictures. "
            "Check the path, or export the series again."
        )
        raise SeriesError(words, words)
    wanted = "one DICOM series" if word is None else f"one DICOM series named {word!r}"
    many = f"{len(fitting)} of {len(series)} series are" if word is not None else f"it holds {len(series)}"
    advice = "Choose one by --series with its number, description or UID (in Python series=...)."
    start = f"The folder {folder} must hold {wanted}, but {many}"
    raise _refusal(start, series if word is None or not fitting else fitting, advice)


def _refusal(start: str, listed: Sequence[DicomSeries], advice: str) -> SeriesError:
    """Return the error that lists series."""
    names = Counter((one.number, one.description) for one in listed)
    lines = [one.line(with_uid=names[one.number, one.description] > 1) for one in listed[:MOST_LISTED]]
    more = f"; and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    slices = ", ".join(str(one.slices) for one in listed[:MOST_LISTED])
    return SeriesError(f"{start}: {'; '.join(lines)}{more}. {advice}", f"{start} (with {slices} slices). {advice}")


@dataclass(frozen=True)
class FileKind:
    """Kind of a DICOM file: its series and class, and whether it has a picture."""

    series: str
    sop_class: str
    is_picture: bool


def read_kind(path: Path) -> FileKind | None:
    """Return the kind of a DICOM file, or None if its header is damaged."""
    texts = _texts(path)
    return None if texts is None else FileKind(texts[_UID], texts[_CLASS], bool(texts[_ROWS]))


def _described(files: tuple[Path, ...]) -> DicomSeries | None:
    """Return the series of some files, or None if they are no pictures, such as a report."""
    texts = _texts(files[0])
    if texts is None:
        return DicomSeries(files, "", "", "", len(files))
    if not texts[_ROWS]:
        return None
    frames = texts[_FRAMES]
    slices = int(frames) if len(files) == 1 and frames.isdigit() else len(files)
    return DicomSeries(files, texts[_UID], texts[_NUMBER], texts[_DESCRIPTION], slices)


def _texts(path: Path) -> dict[int, str] | None:
    """Return elements of a header as text, empty where they are missing; None if the header is damaged."""
    import pydicom

    tags = (_UID, _NUMBER, _DESCRIPTION, _FRAMES, _CLASS, _ROWS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # with texts of the header
            found: Any = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(tags))
            return {tag: _clean(found[tag].value) if tag in found else "" for tag in tags}
    except Exception:  # pydicom raises whatever it meets in damaged files
        return None


def _clean(value: Any) -> str:
    """Return a value as a short text without signs that a terminal obeys."""
    text = "" if value is None else str(value)
    return "".join(sign for sign in text[:_LONGEST_TEXT] if sign.isprintable()).strip()
