"""Whether the grid that SimpleITK tells of a DICOM series is the one that its files tell.

GDCM takes a direction that it cannot read for the default one, a pixel spacing for 1 mm or for whatever lies in memory,
and turns a series round whose distance of slices is negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scantune.errors import ScanError

_POSITION, _DIRECTION, _SPACING = "0020|0032", "0020|0037", "0028|0030"
_OFFSET, _SLOPE, _DISTANCE = "0028|1052", "0028|1053", "0018|0088"
TAGS = (_POSITION, _DIRECTION, _SPACING, _OFFSET, _SLOPE, _DISTANCE)
"""Of a slice: its position, direction, spacing of pixels, what values are scaled by, distance to the next."""

_NEAR = 0.01  # of direction cosines, and of spacings as a share
_UNEVEN = 0.1  # of slices, as a share of their distance


def require_grid(path: Path, told: Mapping[str, Any]) -> None:
    """Check that what SimpleITK tells of a series is what every slice of it says, as far as it says something.

    Args:
        path: The folder, for messages.
        told: What `itkserver.read_series` tells.

    Raises:
        ScanError: A number of a slice is damaged, or slices do not agree on a grid.
    """
    if len(told["size"]) != 3:  # refused as no volume
        return
    tags, axes = told["tags"], np.reshape(told["direction"], (3, 3))
    down, along = told["spacing"][1], told["spacing"][0]
    _require(told, _SPACING, "the spacing of its pixels", (down, along), _NEAR * min(down, along))
    _require(told, _DIRECTION, "the direction of its rows and columns", axes[:, :2].T.ravel(), _NEAR)
    if len(told["files"]) == 1 and tags[_DISTANCE][0]:
        _numbers(told, _DISTANCE, 0, "its thickness", 1)
    corners = [_numbers(told, _POSITION, number, "its position", 3) for number in _given(tags[_POSITION])]
    if corners:
        _require_even(path, np.array(corners), axes[:, 2] * told["spacing"][2])
    _require_scaled(path, told)


def _given(values: Sequence[str | None]) -> list[int]:
    """Numbers of the slices that say something."""
    return [number for number, value in enumerate(values) if value is not None]


def _numbers(told: Mapping[str, Any], tag: str, slice_number: int, what: str, count: int) -> NDArray[np.float64]:
    """The numbers that a slice tells; its text is never shown, as it may be that of another element."""
    try:
        found = np.array([float(word.strip("\0 ")) for word in told["tags"][tag][slice_number].split("\\")])
    except ValueError:
        found = np.empty(0)
    if len(found) != count or not np.isfinite(found).all():
        raise ScanError(
            f"The DICOM file {told['files'][slice_number]} must tell {what} by {count} finite number"
            f"{'s' * (count > 1)}, but it is damaged there ({tag.replace('|', ',')}). Export the series again."
        )
    return found


def _require(told: Mapping[str, Any], tag: str, what: str, expected: ArrayLike, tolerance: float) -> None:
    """Check that all slices tell of the same numbers as SimpleITK."""
    wanted = np.asarray(expected, float)
    for number in _given(told["tags"][tag]):
        if not np.abs(_numbers(told, tag, number, what, len(wanted)) - wanted).max() <= tolerance:
            raise ScanError(
                f"The DICOM file {told['files'][number]} must share {what} with the other slices, and it must be a "
                f"valid one, but is not ({tag.replace('|', ',')}). Check that all slices are of one acquisition, or "
                "export the series again."
            )


def _require_even(path: Path, corners: NDArray[np.float64], step: NDArray[np.float64]) -> None:
    """Check that slices lie as far apart as told, each straight above the last."""
    steps = np.diff(corners, axis=0)
    uneven = float(np.linalg.norm(steps - steps.mean(0), axis=1).max()) if len(steps) else 0.0
    apart = float(np.linalg.norm(step))
    if not uneven <= _UNEVEN * apart:
        raise ScanError(
            f"The DICOM slices in {path} must be evenly spaced, but are up to {uneven:.3g} mm off. "
            "Check that no slice is missing and that all are of one acquisition."
        )
    if len(steps) and not float(np.linalg.norm(steps.mean(0) - step)) <= _UNEVEN * apart:
        raise ScanError(
            f"The DICOM slices in {path} must follow each other at right angles to their pictures, at the distance "
            "that their headers tell, but their positions say otherwise: the scanner was tilted, or the distance of "
            "slices is negative. Convert the series to NIfTI by dcm2niix, and give that."
        )


def _require_scaled(path: Path, told: Mapping[str, Any]) -> None:
    """Check that values are scaled by numbers, and that whole numbers, which SimpleITK makes of them, can be right."""
    scales = set()
    for number in range(len(told["files"])):
        texts = ((_SLOPE, "the slope of its values", 1.0), (_OFFSET, "the offset of its values", 0.0))
        scales.add(
            tuple(
                float(_numbers(told, tag, number, what, 1)[0]) if told["tags"][tag][number] else default
                for tag, what, default in texts
            )
        )
    if len(scales) > 1 and np.dtype(told["dtype"]).kind != "f":
        raise ScanError(
            f"The DICOM slices in {path} scale their values differently, in a way that is read as whole numbers and "
            "may be cut off. Convert the series to NIfTI by dcm2niix, and give that."
        )
