"""Files with a whole volume, as enhanced MR: the grid that the headers of their frames give.

GDCM, the reader within SimpleITK, takes 1 mm for every edge of a voxel where frames are not stored slice after slice,
and the scale of the first frame for all.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import ScanError

_COSINE_TOLERANCE = 0.01
_SHARE_TOLERANCE = 0.01  # of spacings and scales
_STEP_TOLERANCE = 0.1  # as a share of the distance of slices


@dataclass(frozen=True, eq=False)
class FrameGrid:
    """Grid of the frames of one file, in ITK's world (left, posterior, superior).

    Attributes:
        order: Number of the frame of each slice, counted from 0.
        spacing: Distances of columns, rows and slices in mm.
        direction: Direction cosines of the three axes, as columns `(3, 3)`.
        origin: Centre of the first voxel of the first slice in mm.
    """

    order: tuple[int, ...]
    spacing: tuple[float, float, float]
    direction: NDArray[np.float64]
    origin: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Frame:
    """Place and scale of one frame."""

    position: NDArray[np.float64]
    direction: NDArray[np.float64]
    spacing: NDArray[np.float64]
    scale: NDArray[np.float64]


def count_frames(path: Path) -> int:
    """Return the number of frames of a DICOM file, 1 if the header says nothing."""
    import pydicom

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: Any = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=["NumberOfFrames"])
            return int(found.get("NumberOfFrames") or 1)
    except Exception:  # pydicom raises whatever it meets in damaged files
        return 1


def read_frame_grid(path: Path) -> FrameGrid:
    """Read the grid of a file with several frames.

    Raises:
        ScanError: The frames say nothing of their places, are damaged, or are no slices of one volume.
    """
    frames, thickness = _read_frames(path)
    first = frames[0]
    for name, tolerance in (("direction", _COSINE_TOLERANCE), ("spacing", _SHARE_TOLERANCE * first.spacing.min())):
        apart = max(float(np.abs(getattr(frame, name) - getattr(first, name)).max()) for frame in frames)
        if not apart <= tolerance:
            raise ScanError(
                f"All frames of {path} must share their {name}, but they do not. Convert the file to NIfTI by "
                "dcm2niix, and give one of the volumes."
            )
    _require_one_scale(path, frames)
    axes = _axes(path, first)
    positions = np.array([frame.position for frame in frames])
    order = np.argsort(positions @ axes[:, 2], kind="stable")
    step = _step(path, positions[order], axes[:, 2], thickness)
    along, down = float(first.spacing[1]), float(first.spacing[0])
    return FrameGrid(tuple(map(int, order)), (along, down, step), axes, positions[order[0]])


def _axes(path: Path, frame: _Frame) -> NDArray[np.float64]:
    """Return the directions of columns, rows and slices, as columns `(3, 3)`."""
    along, down = frame.direction[:3], frame.direction[3:]
    shape = np.array([along @ along, down @ down, along @ down])
    if not np.abs(shape - (1, 1, 0)).max() <= _COSINE_TOLERANCE or not frame.spacing.min() > 0:
        raise _damaged(path)
    across = np.cross(along, down)
    return np.stack([along, down, across / np.linalg.norm(across)], axis=1)


def _step(
    path: Path, positions: NDArray[np.float64], normal: NDArray[np.float64], thickness: NDArray[np.float64]
) -> float:
    """Return the distance of slices, whose positions must be evenly spaced along the normal."""
    if len(positions) == 1:
        if not thickness[0] > 0:
            raise _damaged(path)
        return float(thickness[0])
    steps = np.diff(positions, axis=0)
    apart = float(np.linalg.norm(steps.mean(0)))
    lengths = np.linalg.norm(steps, axis=1)
    if not lengths.min() > _STEP_TOLERANCE * np.median(lengths):
        raise ScanError(
            f"{path} must hold one volume, but several of its {len(positions)} frames lie at one place: it holds "
            "several contrasts, echoes or times. Convert it to NIfTI by dcm2niix, and give one of the volumes."
        )
    if not float(np.linalg.norm(steps - normal * apart, axis=1).max()) <= _STEP_TOLERANCE * apart:
        raise ScanError(
            f"The frames of {path} must be evenly spaced at right angles to their pictures, but are not. Check that no "
            "slice is missing, or convert the file to NIfTI by dcm2niix."
        )
    return apart


def _require_one_scale(path: Path, frames: list[_Frame]) -> None:
    """Check that one slope and offset hold for all frames, since GDCM takes those of the first."""
    scales = np.array([frame.scale for frame in frames])
    if not np.abs(scales - scales[0]).max() <= 1e-6 * max(1.0, float(np.abs(scales[0]).max())):
        raise ScanError(
            f"The frames of {path} must share the scale of their values, but they do not. Convert the file to NIfTI by "
            "dcm2niix."
        )


def _read_frames(path: Path) -> tuple[list[_Frame], NDArray[np.float64]]:
    """Return place and scale of each frame, and the thickness of the first, which may be 0."""
    import pydicom

    tags: Any = ["NumberOfFrames", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header: Any = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=tags)
            shared, own = (header.get(tag) for tag in tags[1:])
            count = int(header.get("NumberOfFrames") or 1)
            if not shared or not own:
                raise ScanError(
                    f"The frames of {path} must say where they lie, as those of enhanced MR do, but they do not. "
                    "Export the scan as a series of slices, or as NIfTI."
                )
            if len(own) != count:
                raise _damaged(path)
            frames = [_frame(groups, shared[0]) for groups in own]
            measures = _group("PixelMeasuresSequence", own[0], shared[0])
            thickness = measures.get("SpacingBetweenSlices") or measures.get("SliceThickness") or 0
            return frames, _numbers(thickness, 1)
    except ScanError:
        raise
    except Exception as error:  # pydicom raises whatever it meets in damaged files
        raise _damaged(path) from error


def _frame(own: Any, shared: Any) -> _Frame:
    scale = _group("PixelValueTransformationSequence", own, shared, needed=False)
    slope, offset = (1, 0) if scale is None else (scale.RescaleSlope, scale.RescaleIntercept)
    return _Frame(
        _numbers(_group("PlanePositionSequence", own, shared).ImagePositionPatient, 3),
        _numbers(_group("PlaneOrientationSequence", own, shared).ImageOrientationPatient, 6),
        _numbers(_group("PixelMeasuresSequence", own, shared).PixelSpacing, 2),
        _numbers([slope, offset], 2),
    )


def _group(name: str, own: Any, shared: Any, *, needed: bool = True) -> Any:
    """Return a functional group of a frame, which may be that of all frames."""
    found = own.get(name) or shared.get(name)
    return found[0] if found or needed else None


def _numbers(values: Any, count: int) -> NDArray[np.float64]:
    numbers = np.array(values, np.float64).reshape(-1)
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise ValueError("numbers that are missing, too many or not finite")
    return numbers


def _damaged(path: Path) -> ScanError:
    return ScanError(
        f"The DICOM file {path} must give place, direction and spacing of each of its frames by finite numbers, but it "
        "is damaged there. Export the scan again."
    )
