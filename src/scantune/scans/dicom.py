"""DICOM folders: SimpleITK reads the voxels, and pydicom the headers that they are checked against.

GDCM, the reader within SimpleITK, leaves out damaged slices and fills up those that are cut short. It replaces a
direction that it cannot read by the default one, and a pixel spacing by 1 mm or by whatever lies in memory. It turns a
series round if the distance of its slices is negative.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scantune.errors import ScanError
from scantune.scans.itk import ItkImage, read_itk_series


@dataclass(frozen=True)
class _Numbers:
    """Element of a header that holds numbers as text."""

    tag: int
    meaning: str
    count: int


_POSITION = _Numbers(0x00200032, "its position", 3)
_DIRECTION = _Numbers(0x00200037, "the direction of its rows and columns", 6)
_SPACING = _Numbers(0x00280030, "the spacing of its pixels", 2)
_OFFSET = _Numbers(0x00281052, "the offset of its values", 1)
_SLOPE = _Numbers(0x00281053, "the slope of its values", 1)
_DISTANCE = _Numbers(0x00180088, "its thickness", 1)
_GRID = (_POSITION, _DIRECTION, _SPACING, _OFFSET, _SLOPE, _DISTANCE)

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

    def numbers(self, element: _Numbers) -> NDArray[np.float64]:
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
                f"{'s' * (element.count > 1)}, but it is damaged there ({_tag_name(element)}). Export the series again."
            )
        return found


def read_dicom(folder: Path) -> ItkImage:
    """Read the one DICOM series of a folder.

    Raises:
        ScanError: The folder holds no series or several, or one that is damaged or on no regular grid.
        ReaderError: SimpleITK cannot read it.
    """
    series = read_itk_series(folder)
    if series.image is None:
        found = "; ".join(f"{len(files)} files from {Path(files[0]).name}" for files in series.files) or "none"
        raise ScanError(
            f"The folder {folder} must hold one DICOM series, but holds {len(series.files)} ({found}). "
            "Give an image file, or a folder with the files of one series alone."
        )
    files = series.files[0]
    _require_all_files(folder, files)
    headers = [read_slice_header(Path(file)) for file in files]
    for header in headers:
        if not header.complete:
            raise ScanError(f"The DICOM file {header.file} is cut short: pixels are missing. Export the series again.")
    if len(series.image.size) == 3:  # other series are refused later, as no volume
        _require_grid(folder, series.image, headers)
    return series.image


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


def _require_all_files(folder: Path, files: Sequence[str]) -> None:
    """Check that every DICOM file of the folder belongs to the series.

    Raises:
        ScanError: A file does not.
    """
    used = {Path(file).name for file in files}
    for path in sorted(folder.iterdir()):
        if path.name not in used and path.name != "DICOMDIR" and is_dicom(path):
            raise ScanError(
                f"The DICOM file {path} must be a slice of the series beside it, but cannot be read as one: it is "
                "damaged. Export the series again, or move the file away if it is none of its slices."
            )


def _require_grid(folder: Path, image: ItkImage, headers: Sequence[SliceHeader]) -> None:
    """Check that SimpleITK's grid is the one that the headers give, as far as they give one.

    Args:
        folder: The folder, for messages.
        image: The series as SimpleITK reads it, with three axes.
        headers: Headers of its files, in the order of slices.

    Raises:
        ScanError: A number of a slice is damaged, or slices do not agree on a grid.
    """
    axes = np.reshape(image.direction, (3, 3))
    along, down, apart = image.spacing
    _require_shared(headers, _SPACING, (down, along), _SPACING_TOLERANCE * min(down, along))
    _require_shared(headers, _DIRECTION, axes[:, :2].T.ravel(), _COSINE_TOLERANCE)
    if len(headers) == 1 and headers[0].texts.get(_DISTANCE.tag):
        headers[0].numbers(_DISTANCE)
    positions = [header.numbers(_POSITION) for header in headers if _POSITION.tag in header.texts]
    if positions:
        _require_even(folder, np.array(positions), axes[:, 2] * apart)
    assert image.voxels is not None
    _require_scaled(folder, image.voxels.dtype, headers)


def _require_shared(headers: Sequence[SliceHeader], element: _Numbers, expected: ArrayLike, tolerance: float) -> None:
    """Check that all slices have the numbers that SimpleITK has."""
    for header in headers:
        if element.tag not in header.texts:
            continue
        if not np.abs(header.numbers(element) - np.asarray(expected, float)).max() <= tolerance:
            raise ScanError(
                f"The DICOM file {header.file} must share {element.meaning} with the other slices, and it must be a "
                f"valid one, but is not ({_tag_name(element)}). Check that all slices are of one acquisition, or "
                "export the series again."
            )


def _require_even(folder: Path, positions: NDArray[np.float64], step: NDArray[np.float64]) -> None:
    """Check that each slice lies straight above the last, at the distance of SimpleITK's grid."""
    steps = np.diff(positions, axis=0)
    uneven = float(np.linalg.norm(steps - steps.mean(0), axis=1).max()) if len(steps) else 0.0
    apart = float(np.linalg.norm(step))
    if not uneven <= _STEP_TOLERANCE * apart:
        raise ScanError(
            f"The DICOM slices in {folder} must be evenly spaced, but are up to {uneven:.3g} mm off. "
            "Check that no slice is missing and that all are of one acquisition."
        )
    if len(steps) and not float(np.linalg.norm(steps.mean(0) - step)) <= _STEP_TOLERANCE * apart:
        raise ScanError(
            f"The DICOM slices in {folder} must follow each other at right angles to their pictures, at the distance "
            "that their headers give, but their positions say otherwise: the scanner was tilted, or the distance of "
            "slices is negative. Convert the series to NIfTI by dcm2niix, and give that."
        )


def _require_scaled(folder: Path, dtype: np.dtype[Any], headers: Sequence[SliceHeader]) -> None:
    """Check that values are scaled by numbers, and that whole numbers can hold the scaled values.

    SimpleITK chooses the type by the first slice, so that the values of others may be cut off.
    """
    scales = {
        tuple(
            float(header.numbers(element)[0]) if header.texts.get(element.tag) else default
            for element, default in ((_SLOPE, 1.0), (_OFFSET, 0.0))
        )
        for header in headers
    }
    if len(scales) > 1 and dtype.kind != "f":
        raise ScanError(
            f"The DICOM slices in {folder} scale their values differently, in a way that is read as whole numbers and "
            "may be cut off. Convert the series to NIfTI by dcm2niix, and give that."
        )


def _tag_name(element: _Numbers) -> str:
    return f"{element.tag >> 16:04x},{element.tag & 0xFFFF:04x}"
