"""Headers of DICOM files, as far as a grid needs them, read by pydicom: no name, date or number of a person."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import ScanError


@dataclass(frozen=True)
class HeaderNumbers:
    """Element of a header that holds numbers as text."""

    tag: int
    meaning: str
    count: int


POSITION = HeaderNumbers(0x00200032, "its position", 3)
DIRECTION = HeaderNumbers(0x00200037, "the direction of its rows and columns", 6)
SPACING = HeaderNumbers(0x00280030, "the spacing of its pixels", 2)
OFFSET = HeaderNumbers(0x00281052, "the offset of its values", 1)
SLOPE = HeaderNumbers(0x00281053, "the slope of its values", 1)
DISTANCE = HeaderNumbers(0x00180088, "its thickness", 1)
THICKNESS = HeaderNumbers(0x00180050, "its thickness", 1)
_GRID = (POSITION, DIRECTION, SPACING, OFFSET, SLOPE, DISTANCE, THICKNESS)

_ROWS, _COLUMNS, _SAMPLES, _FRAMES, _BITS = 0x00280010, 0x00280011, 0x00280002, 0x00280008, 0x00280100
_PIXELS = 0x7FE00010
_UNDEFINED_LENGTH = 0xFFFFFFFF  # of an element that ends with a delimiter
_DELIMITER = b"\xfe\xff\xdd\xe0"

_COSINE_TOLERANCE = 0.01
_SPACING_TOLERANCE = 0.01  # as a share of the spacing
_STEP_TOLERANCE = 0.1  # as a share of the distance of slices


@dataclass(frozen=True)
class SliceHeader:
    """Header of one DICOM file, as far as the grid needs it: no name, date or number of a person.

    Attributes:
        file: The file.
        texts: Numbers of the grid as text, by tag. Tags that the file lacks are missing.
        complete: Whether the file has all of its pixels.
    """

    file: str
    texts: dict[int, str]
    complete: bool

    def numbers(self, element: HeaderNumbers) -> NDArray[np.float64]:
        """Return the numbers of an element that the header has.

        Raises:
            ScanError: They are damaged. The message leaves out the text, which may be that of another element.
        """
        try:
            found = np.array([float(number.strip("\0 ")) for number in self.texts[element.tag].split("\\")])
        except ValueError:
            found = np.empty(0)
        if len(found) != element.count or not np.isfinite(found).all():
            raise ScanError(
                f"The DICOM file {self.file} must give {element.meaning} by {element.count} finite number"
                f"{'s' * (element.count > 1)}, but it is damaged there ({tag_name(element)}). Export the series again."
            )
        return found


def is_dicom(path: Path) -> bool:
    """Return whether a file starts as DICOM files do."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def read_slice_header(path: Path) -> SliceHeader:
    """Read the header of a DICOM file, and whether all of its pixels follow."""
    import pydicom
    from pydicom.filereader import read_partial

    data = path.read_bytes()
    stream = io.BytesIO(data)
    pixels: list[tuple[int, int]] = []  # where they start, and their length

    def at_pixels(tag: int, _: str | None, length: int) -> bool:
        if tag != _PIXELS:
            return False
        pixels.append((stream.tell(), length))
        return True

    wanted: Any = [*(element.tag for element in _GRID), _ROWS, _COLUMNS, _SAMPLES, _FRAMES, _BITS]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydicom warns of what GDCM accepts, with texts of the header
            dataset = read_partial(stream, at_pixels, specific_tags=wanted)
            needed = _pixel_bytes(dataset)
    except Exception:  # pydicom raises whatever it meets in damaged files
        return SliceHeader(str(path), {}, complete=False)
    complete = bool(pixels) and _is_complete(data, *pixels[0], needed)
    if dataset.file_meta.get("TransferSyntaxUID") == pydicom.uid.DeflatedExplicitVRLittleEndian:
        complete = True  # lengths count within the inflated data, which GDCM had to inflate as a whole
    return SliceHeader(str(path), _texts(dataset), complete)


def _texts(dataset: Any) -> dict[int, str]:
    """Return the texts of the grid, as they are in the file."""
    raw = {element.tag: dataset.get_item(element.tag) for element in _GRID if element.tag in dataset}
    # Values that are no text, such as sequences, count as damaged numbers.
    values = {tag: b"" if item.value is None else item.value for tag, item in raw.items()}
    return {tag: value.decode("latin-1") if isinstance(value, bytes) else "?" for tag, value in values.items()}


def _pixel_bytes(dataset: Any) -> int:
    """Return the bytes of a slice's pixels without compression, or 0 if the header does not say."""
    try:
        bits = _whole_number(dataset, _BITS, 0)
        for tag in (_ROWS, _COLUMNS, _SAMPLES, _FRAMES):
            bits *= _whole_number(dataset, tag, 1)
        return bits // 8
    except Exception:  # numbers of another kind, or of a wrong length
        return 0


def _whole_number(dataset: Any, tag: int, default: int) -> int:
    value = dataset[tag].value if tag in dataset else None
    return default if value in (None, "") else int(value)


def _is_complete(data: bytes, start: int, length: int, needed: int) -> bool:
    """Return whether a file holds all of the pixels that start at a byte."""
    from pydicom.encaps import parse_fragments

    if length != _UNDEFINED_LENGTH:
        return length >= needed and start + length <= len(data)
    stream = io.BytesIO(data)
    stream.seek(start)
    try:
        _, fragments = parse_fragments(stream)
    except ValueError:
        return False
    end = start
    if fragments:
        end = fragments[-1] + 8 + int.from_bytes(data[fragments[-1] + 4 : fragments[-1] + 8], "little")
    return data[end : end + 4] == _DELIMITER and end + 8 <= len(data)


def tag_name(element: HeaderNumbers) -> str:
    """Return the tag of an element as documents write it."""
    return f"{element.tag >> 16:04x},{element.tag & 0xFFFF:04x}"
