"""The one reader and the one writer of images: scans and label maps in, results out on the scan's own grid.

Whatever is wrong with a file comes out as a `ScanError` of a sentence or two.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap
from scantune.scans.image_files import read_voxels
from scantune.scans.names import scan_name
from scantune.scans.nifti import write_nifti, write_vectors

AnyPath: TypeAlias = str | os.PathLike[str]

LARGEST_LABEL = 2**32 - 1
"""Label maps hold no larger value; what does is damaged, or no label map."""


def read_scan(path: AnyPath, frame: int | None = None) -> Case:
    """Read one scan: a NIfTI file, another image that SimpleITK reads, or a folder with one DICOM series.

    Args:
        path: Where it is.
        frame: Which volume of a 4D NIfTI file, counted from 0; None where it holds one alone.

    Raises:
        ScanError: The file is missing, damaged, not one 3D volume, or holds nothing to work with.
    """
    path = Path(path)
    voxels = read_voxels(path, frame)
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and told so below
        image = np.ascontiguousarray(voxels.array, dtype=np.float32)
    broken = image.size - int(np.count_nonzero(np.isfinite(image)))
    if broken:
        share = "all" if broken == image.size else f"{broken} of"
        raise ScanError(
            f"{path} must hold finite numbers, but {share} {image.size} voxels are NaN or infinite. "
            "Replace these voxels (by 0, say), or export the scan again."
        )
    if image.min() == image.max():
        raise ScanError(
            f"{path} must hold a picture, but every voxel is {image.flat[0]:g}. "
            "Check that it is the right file, or export the scan again."
        )
    return Case(scan_name(path), image, voxels.affine, header=voxels.header)


def read_labels(path: AnyPath, allowed: Collection[int] | None = None, frame: int | None = None) -> LabelMap:
    """Read an integer label map.

    Args:
        path: An image in any format that `read_scan` takes.
        allowed: Labels that may occur; None allows every whole number from 0 to `LARGEST_LABEL`.
        frame: As for scans.

    Raises:
        ScanError: As for scans, or there are values that are no labels or not among the allowed.
    """
    path = Path(path)
    voxels = read_voxels(path, frame)
    values = np.unique(voxels.array)
    strange = values[~_are_labels(values)]
    if strange.size:
        raise ScanError(
            f"{path} must be a label map of whole numbers from 0 to {LARGEST_LABEL}, but holds {_listed(strange)}. "
            "Give a label map, not a scan or probabilities."
        )
    unknown = [] if allowed is None else [int(value) for value in values if int(value) not in allowed]
    if unknown:
        raise ScanError(
            f"{path} has unknown labels: expected only {_listed(sorted(allowed or ()))}, but it also holds "
            f"{_listed(unknown)}. Give the label map of this task, or map its labels to these first."
        )
    return LabelMap(scan_name(path), _smallest_unsigned(voxels.array), voxels.affine)


def write_labels(path: AnyPath, labels: NDArray[Any], like: Case) -> None:
    """Write a label map `(x, y, z)` as NIfTI on a scan's own grid, in the smallest unsigned type.

    Raises:
        InputError: The file cannot be written, or the labels are none or do not fit the scan.
    """
    if not _are_labels(labels).all():
        raise InputError(f"Labels to be written to {path} must be whole numbers from 0 to {LARGEST_LABEL}.")
    write_image(path, _smallest_unsigned(labels), like)


def write_image(path: AnyPath, array: NDArray[Any], like: Case) -> None:
    """Write an array `(x, y, z)` as NIfTI on a scan's own grid, in the array's own type.

    The affine, form codes and units are those of the scan's file where that was NIfTI. The file is complete
    or not there at all.

    Raises:
        InputError: The file cannot be written, or the array does not fit the scan.
    """
    if array.shape != like.shape:
        raise InputError(f"{path} must get the shape {like.shape} of the scan {like.name}, not {array.shape}.")
    write_nifti(Path(path), array, like.affine, like.header)


def write_displacement(path: AnyPath, displacement: NDArray[np.float32], like: Case) -> None:
    """Write displacements `(x, y, z, 3)` in mm as NIfTI on a scan's own grid, as ITK and ANTs read them.

    Raises:
        InputError: The file cannot be written, or the array does not fit the scan.
    """
    if displacement.shape != (*like.shape, 3):
        raise InputError(f"{path} must get the shape {(*like.shape, 3)}, not {displacement.shape}.")
    write_vectors(Path(path), displacement, like.affine)


def _are_labels(values: NDArray[Any]) -> NDArray[np.bool_]:
    whole = np.isfinite(values) & (values == np.floor(values))
    return np.asarray(whole & (values >= 0) & (values <= LARGEST_LABEL), np.bool_)


def _smallest_unsigned(labels: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    return labels.astype(np.min_scalar_type(int(labels.max())))


def _listed(values: Iterable[float], most: int = 8) -> str:
    words = [f"{value:g}" for value in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
