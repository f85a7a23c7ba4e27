"""DICOM series and files: SimpleITK reads the voxels, and pydicom the headers that they are checked against.

GDCM, the reader within SimpleITK, leaves out damaged slices and fills up those that are cut short. It replaces a
direction that it cannot read by the default one, and a pixel spacing by 1 mm or by whatever lies in memory. It turns a
series round if the distance of its slices is negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scantune.errors import ScanError
from scantune.scans.dicom.headers import (
    DIRECTION,
    DISTANCE,
    OFFSET,
    POSITION,
    SLOPE,
    SPACING,
    THICKNESS,
    HeaderNumbers,
    SliceHeader,
    is_dicom,
    read_slice_header,
    tag_name,
)
from scantune.scans.dicom.multiframe import count_frames, read_frame_grid
from scantune.scans.dicom.series import choose_series, list_series, read_kind
from scantune.scans.itk import ItkImage, read_itk_files, read_itk_series

_COSINE_TOLERANCE = 0.01
_SPACING_TOLERANCE = 0.01  # as a share of the spacing
_STEP_TOLERANCE = 0.1  # as a share of the distance of slices


@dataclass(frozen=True, eq=False)
class DicomVolume:
    """Volume of a DICOM series.

    Attributes:
        image: Voxels and grid.
        files: Its files: one for each slice, in their order, or one with all slices.
    """

    image: ItkImage
    files: tuple[Path, ...]


def read_dicom(path: Path, series: str | None = None) -> DicomVolume:
    """Read a DICOM file, or a series of a folder.

    Args:
        path: The file or folder.
        series: Number, description or UID of the series. None takes the only one of a folder.

    Raises:
        SeriesError: The folder holds no series or several, or none of that name.
        ScanError: The series is damaged or on no regular grid.
        ReaderError: SimpleITK cannot read it.
    """
    if path.is_file():
        return _checked(path, (path,), read_itk_files(path, [str(path)]))
    found = read_itk_series(path)
    if found.image is not None and series is None:
        files, image = tuple(map(Path, found.files[0])), found.image
    else:
        files = choose_series(path, list_series(found.files), series).files
        image = read_itk_files(path, [str(file) for file in files])
    _require_all_files(path, [name for each in found.files for name in each], files[0])
    return _checked(path, files, image)


def _checked(path: Path, files: tuple[Path, ...], image: ItkImage) -> DicomVolume:
    """Return the volume that files hold, with the grid that their headers give."""
    headers = [read_slice_header(file) for file in files]
    for header in headers:
        if not header.complete:
            raise ScanError(f"The DICOM file {header.file} is cut short: pixels are missing. Export the series again.")
    if len(files) == 1 and count_frames(files[0]) > 1:
        return DicomVolume(_of_frames(files[0], image), files)
    if len(image.size) == 3:  # other series are refused later, as no volume
        _require_grid(path, image, headers)
    return DicomVolume(_of_thickness(image, headers[0]) if len(headers) == 1 else image, files)


def _of_thickness(image: ItkImage, header: SliceHeader) -> ItkImage:
    """Return a single slice with its thickness, since GDCM takes 1 mm where there is no distance of slices."""
    if header.texts.get(DISTANCE.tag) or not header.texts.get(THICKNESS.tag):
        return image
    (thickness,) = header.numbers(THICKNESS).tolist()
    return replace(image, spacing=(*image.spacing[:2], thickness)) if thickness > 0 else image


def _of_frames(file: Path, image: ItkImage) -> ItkImage:
    """Return the volume of a file with several frames."""
    grid = read_frame_grid(file)
    assert image.voxels is not None
    if len(image.size) != 3 or len(image.voxels) != len(grid.order):
        raise ScanError(
            f"The DICOM file {file} must hold {len(grid.order)} frames of one number per pixel, but holds voxels of "
            f"shape {image.voxels.shape}. Export the scan again."
        )
    voxels = np.ascontiguousarray(image.voxels[list(grid.order)])
    x, y, z = grid.origin.tolist()
    direction = tuple(grid.direction.ravel().tolist())
    return replace(image, spacing=grid.spacing, direction=direction, origin=(x, y, z), voxels=voxels)


def _require_all_files(folder: Path, used: Sequence[str], member: Path) -> None:
    """Check that no DICOM file of the folder is a damaged slice of the series.

    Args:
        folder: The folder.
        used: Files of all series that can be read.
        member: A file of the series.

    Raises:
        ScanError: A file may be one.
    """
    names = {Path(file).name for file in used}
    for path in sorted(folder.iterdir()):
        if path.name in names or path.name == "DICOMDIR" or not is_dicom(path):
            continue
        if not _is_no_slice(path, member):
            raise ScanError(
                f"The DICOM file {path} must be a slice of the series beside it, but cannot be read as one: it is "
                "damaged. Export the series again, or move the file away if it is none of its slices."
            )


def _is_no_slice(path: Path, member: Path) -> bool:
    """Return whether a file is something else than a slice of a series, such as a report."""
    kind, series = read_kind(path), read_kind(member)
    if kind is None or series is None or kind.is_picture:
        return False
    return bool(kind.series and kind.sop_class) and kind.series != series.series and kind.sop_class != series.sop_class


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
    _require_shared(headers, SPACING, (down, along), _SPACING_TOLERANCE * min(down, along))
    _require_shared(headers, DIRECTION, axes[:, :2].T.ravel(), _COSINE_TOLERANCE)
    if len(headers) == 1 and headers[0].texts.get(DISTANCE.tag):
        headers[0].numbers(DISTANCE)
    positions = [header.numbers(POSITION) for header in headers if POSITION.tag in header.texts]
    if positions:
        _require_even(folder, np.array(positions), axes[:, 2] * apart)
    assert image.voxels is not None
    _require_scaled(folder, image.voxels.dtype, headers)


def _require_shared(
    headers: Sequence[SliceHeader], element: HeaderNumbers, expected: ArrayLike, tolerance: float
) -> None:
    """Check that all slices have the numbers that SimpleITK has."""
    for header in headers:
        if element.tag not in header.texts:
            continue
        if not np.abs(header.numbers(element) - np.asarray(expected, float)).max() <= tolerance:
            raise ScanError(
                f"The DICOM file {header.file} must share {element.meaning} with the other slices, and it must be a "
                f"valid one, but is not ({tag_name(element)}). Check that all slices are of one acquisition, or "
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
            for element, default in ((SLOPE, 1.0), (OFFSET, 0.0))
        )
        for header in headers
    }
    if len(scales) > 1 and dtype.kind != "f":
        raise ScanError(
            f"The DICOM slices in {folder} scale their values differently, in a way that is read as whole numbers and "
            "may be cut off. Convert the series to NIfTI by dcm2niix, and give that."
        )
