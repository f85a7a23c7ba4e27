"""Whether the files of a DICOM folder are whole: GDCM leaves damaged slices out, and fills up what is cut short."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scantune.errors import ScanError

_IMPLICIT = b"1.2.840.10008.1.2"
_OTHERS = (b"1.2.840.10008.1.2.2", b"1.2.840.10008.1.2.1.99")  # big end first, and whole files packed: not looked into
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_SYNTAX, _PIXELS = (0x0002, 0x0010), (0x7FE0, 0x0010)
_ITEM, _ITEM_END, _END = (0xFFFE, 0xE000), (0xFFFE, 0xE00D), (0xFFFE, 0xE0DD)
_UNTOLD = 0xFFFFFFFF  # the length of what ends with a mark
_FACTORS = ("0028|0010", "0028|0011", "0028|0002", "0028|0008")


@dataclass(frozen=True)
class _Element:
    """An element of a file: where its value starts, how long it is, and whether those inside tell their kind."""

    tag: tuple[int, int]
    first: int
    length: int
    explicit: bool


def require_whole(folder: Path, files: Sequence[str], tags: Mapping[str, Sequence[str | None]]) -> None:
    """Check that a series has every DICOM file of its folder, and every file all of its pixels.

    Args:
        folder: The folder.
        files: The files of the series.
        tags: Their elements by tag, as `itkserver.read_series` tells them.

    Raises:
        ScanError: It has not.
    """
    used = {Path(file).name for file in files}
    for path in sorted(folder.iterdir()):
        if path.name not in used and path.name != "DICOMDIR" and is_dicom(path):
            raise ScanError(
                f"The DICOM file {path} must be a slice of the series beside it, but cannot be read as one: it is "
                "damaged. Export the series again, or move the file away if it is none of its slices."
            )
    for number, file in enumerate(files):
        entries = {tag: values[number] for tag, values in tags.items()}
        if is_cut_short(Path(file).read_bytes(), _pixel_bytes(entries)):
            raise ScanError(f"The DICOM file {file} is cut short: pixels are missing. Export the series again.")


def is_dicom(path: Path) -> bool:
    """Whether a file starts as DICOM files do."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def is_cut_short(data: bytes, needed: int) -> bool:
    """Whether a file ends before its pixels do, or has fewer than it needs; False where that cannot be seen."""
    try:
        pixels = _pixels(data)
        if pixels is None:
            return False
        if pixels.length == _UNTOLD:
            return _after(data, pixels) > len(data)
    except (struct.error, IndexError):  # it ends before its pixels begin, or in the middle of packed ones
        return True
    return pixels.length < needed or pixels.first + pixels.length > len(data)


def _pixels(data: bytes) -> _Element | None:
    """The element of the pixels; None in files that are not looked into."""
    at, explicit = 132, True
    while True:
        if data[at : at + 2] != b"\x02\x00":
            break
        element = _element(data, at, explicit=True)
        if element.tag == _SYNTAX:
            syntax = data[element.first : element.first + element.length].strip(b"\0 ")
            if syntax in _OTHERS:
                return None
            explicit = syntax != _IMPLICIT
        at = _after(data, element)
    element = _element(data, at, explicit)
    while element.tag < _PIXELS:
        element = _element(data, _after(data, element), explicit)
    return element if element.tag == _PIXELS else None


def _element(data: bytes, at: int, explicit: bool) -> _Element:
    """The element that starts at a byte."""
    group, number, length = struct.unpack_from("<HHI", data, at)
    kind = data[at + 4 : at + 6]
    if not explicit or group == _ITEM[0]:
        return _Element((group, number), at + 8, length, explicit)
    if kind in _LONG:
        return _Element((group, number), at + 12, struct.unpack_from("<I", data, at + 8)[0], kind != b"UN")
    return _Element((group, number), at + 8, length >> 16, explicit)


def _after(data: bytes, element: _Element) -> int:
    """The byte behind an element: as its length tells, or behind the mark of its end."""
    if element.length != _UNTOLD:
        return element.first + element.length
    end = _ITEM_END if element.tag == _ITEM else _END
    inner = _element(data, element.first, element.explicit)
    while inner.tag != end:
        inner = _element(data, _after(data, inner), element.explicit)
    return inner.first


def _pixel_bytes(entries: Mapping[str, Any]) -> int:
    """Bytes of a slice's pixels, unpacked; 0 where the file does not tell."""
    try:
        count = 1
        for tag in _FACTORS:
            count *= int(entries[tag] or 1)
        return count * int(entries["0028|0100"] or 0) // 8
    except ValueError:
        return 0
