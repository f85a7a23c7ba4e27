"""The one reader and the one writer of images: scans and label maps in, results out on the scan's own grid.

NIfTI files and FreeSurfer's go through nibabel, everything else (MetaImage, NRRD, a folder with one DICOM series, ...)
through SimpleITK. Nothing but voxels and geometry is taken from a file: no name, date or number of a DICOM header.
Whatever is wrong with a file is raised as a `ScanError` of a sentence or two.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError, ScanError
from scantune.scans.case import Case, LabelMap, require_same_grid
from scantune.scans.channels import channel_siblings, name_of_files
from scantune.scans.data_files import data_files
from scantune.scans.dicom.headers import is_dicom
from scantune.scans.dicom.reading import DicomVolume, read_dicom
from scantune.scans.grid_warnings import grid_warnings
from scantune.scans.itk import ItkImage, read_itk, read_itk_header
from scantune.scans.metaimage import require_axes, require_intact
from scantune.scans.names import scan_name
from scantune.scans.nifti import (
    FileContent,
    is_nifti,
    read_freesurfer,
    read_nifti,
    read_nifti_frame,
    read_nifti_volumes,
    require_frame,
    require_plain,
    shape_3d,
    write_nifti,
    write_vectors,
)
from scantune.scans.room import require_room

AnyPath: TypeAlias = str | os.PathLike[str]

Read = TypeVar("Read")

LARGEST_LABEL = 2**32 - 1
"""Largest value of a label map. A file with larger ones is damaged, or no label map."""

SMALLEST_EDGE, LARGEST_EDGE = 1e-5, 1e4
"""Edges of a voxel in mm that are taken for true: from slices under a microscope to damage."""

MOST_BROKEN_SHARE = 1e-3
"""Share of a scan's voxels that may be NaN or infinite, to be replaced."""

FARTHEST_VOXEL = 1e6
"""Distance in mm from the scanner's centre that the first voxel may have."""


def read_scan(path: AnyPath, frame: int | None = None, series: str | None = None) -> Case:
    """Read one scan: a NIfTI file, another image that SimpleITK reads, or a folder with DICOM files.

    Args:
        path: The file or folder.
        frame: Number of the volume in a 4D NIfTI file, counted from 0. None for files with one volume.
        series: Number, description or UID of a DICOM series. None for the only one of a folder.

    Raises:
        ScanError: The file is missing, damaged, not one 3D volume, or every voxel has the same value.
    """
    path = Path(path)
    volume = None if frame is not None else _guarded(path, lambda: _dicom_volume(path, series))
    content = read_voxels(path, frame) if volume is None else _from_itk(path, volume.image)
    require_sound(path, content[1])
    case = case_from_voxels(scan_name(path), content, str(path))
    return dataclasses.replace(
        case, files=(path,) if frame is None else (), dicom=() if volume is None else volume.files
    )


def case_from_voxels(name: str, content: FileContent, where: str) -> Case:
    """Return the scan that voxels, affine and header make.

    Single voxels that are NaN or infinite are replaced by the median of their neighbours, with a remark.

    Args:
        name: Name of the scan.
        content: Voxels, affine and header.
        where: Where the voxels come from, for messages.

    Raises:
        ScanError: More voxels than a few are NaN or infinite, or all have the same value.
    """
    array, affine, header = content
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        image = np.ascontiguousarray(array, dtype=np.float32)
    broken = np.argwhere(~np.isfinite(image))
    remarks: tuple[str, ...] = ()
    if len(broken):
        if len(broken) > MOST_BROKEN_SHARE * image.size:
            share = "all" if len(broken) == image.size else f"{len(broken)} of"
            raise ScanError(
                f"{where} must hold finite numbers, but {share} {image.size} voxels are NaN or infinite. "
                "Replace these voxels (by 0, say), or export the scan again."
            )
        image = _repaired(image, broken)
        voxels = "1 voxel was" if len(broken) == 1 else f"{len(broken)} voxels were"
        remarks = (f"{voxels} NaN or infinite, and replaced by the median of the neighbours.",)
    if image.min() == image.max():
        raise ScanError(
            f"{where} must hold a picture, but every voxel is {image.flat[0]:g}. "
            "Check that it is the right file, or export the scan again."
        )
    return Case(name, image, affine, header=header, remarks=remarks, warnings=grid_warnings(content))


def _repaired(image: NDArray[np.float32], broken: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return a copy in which voxels have the median of their finite neighbours, or 0 if there is none."""
    whole = image.copy()
    for voxel in broken:
        around = image[tuple(slice(max(place - 1, 0), place + 2) for place in voxel)]
        known = around[np.isfinite(around)]
        whole[tuple(voxel)] = np.median(known) if known.size else 0.0
    return whole


def read_channels(paths: Sequence[AnyPath], series: str | None = None) -> Case:
    """Read a scan of several channels, one file each, on one grid. It is named after what the file names share.

    Args:
        paths: A file for each channel.
        series: The DICOM series of each folder, as for `read_scan`.

    Raises:
        ScanError: A file is refused as for `read_scan`, or two lie on different grids.
    """
    if not paths:
        raise ScanError("A scan needs at least one file, got none. Give one file per channel.")
    files = tuple(map(Path, paths))
    first, *others = (read_scan(path, series=series) for path in files)
    for other in others:
        require_same_grid(other, first)
    return dataclasses.replace(joined_channels([first, *others]), name=name_of_files(files), files=files)


def read_volumes(path: AnyPath, chosen: Sequence[int] | None = None) -> Case:
    """Read a scan whose channels are the volumes of one NIfTI file.

    Args:
        path: The file.
        chosen: Numbers of the volumes that are the channels, counted from 0. None for all.

    Raises:
        ScanError: The file is refused as for `read_scan`, or has no volume of a number.
    """
    path = Path(path)
    if not is_nifti(path):
        raise ScanError(f"{path} must be a NIfTI file to hold several channels. Give one file per channel.")
    array, affine, header = _content(path, lambda: read_nifti_volumes(path))
    numbers = range(array.shape[3]) if chosen is None else chosen
    for number in numbers:
        require_frame(path, array.shape, number)
    name = scan_name(path)
    volumes = [
        case_from_voxels(name, (array[..., number], affine, header), f"{path}, volume {number}") for number in numbers
    ]
    return dataclasses.replace(joined_channels(volumes), files=(path,))


def read_files(paths: Sequence[AnyPath], channels: int, series: str | None = None) -> Case:
    """Read a scan of a number of channels from all of its files.

    Args:
        paths: One file per channel. For several channels, also a single one: a NIfTI file with several volumes, or the
            file of any channel in nnU-Net's numbering.
        channels: Number of channels that are wanted. Another number may be found.
        series: The DICOM series of each folder, as for `read_scan`.

    Raises:
        ScanError: A file is missing or refused as for `read_scan`, or two lie on different grids.
    """
    if len(paths) == 1 and channels > 1:
        files = channel_siblings(Path(paths[0]))
        return read_channels(files, series) if len(files) > 1 or not is_nifti(files[0]) else read_volumes(files[0])
    return read_channels(paths, series)


def joined_channels(cases: Sequence[Case]) -> Case:
    """Return the first of several scans on one grid, with the others as further channels."""
    first, *others = cases
    return dataclasses.replace(
        first,
        others=tuple(other.image for other in others),
        remarks=tuple(dict.fromkeys(remark for case in cases for remark in case.remarks)),
        warnings=tuple(dict.fromkeys(warning for case in cases for warning in case.warnings)),
        files=tuple(file for case in cases for file in case.files),
    )


def read_labels(path: AnyPath, allowed: Collection[int] | None = None, frame: int | None = None) -> LabelMap:
    """Read an integer label map.

    Args:
        path: An image in any format that `read_scan` takes.
        allowed: Labels that may occur. None allows every whole number from 0 to `LARGEST_LABEL`.
        frame: Number of the volume in a 4D NIfTI file, as for scans.

    Raises:
        ScanError: The file is refused as for scans, or holds values that are no labels or not allowed.
    """
    path = Path(path)
    array, affine, _ = read_voxels(path, frame)
    values = np.unique(array)
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
    return LabelMap(scan_name(path), _smallest_unsigned(array), affine)


def read_voxels(path: Path, frame: int | None = None) -> FileContent:
    """Read one 3D volume in the file's own type and axis order.

    Args:
        path: A file, or a folder with one DICOM series.
        frame: Number of the volume in a 4D NIfTI file. None for files with one volume.

    Raises:
        ScanError: The file is missing or damaged, or is not one 3D volume of plain numbers on a sound grid.
    """
    return _content(path, lambda: _read_one(path, frame))


def _read_one(path: Path, frame: int | None) -> FileContent:
    if frame is not None:
        return read_nifti_frame(path, frame)
    volume = _dicom_volume(path)
    if volume is not None:
        return _from_itk(path, volume.image)
    if is_nifti(path):
        return read_nifti(path)
    return read_freesurfer(path) if path.suffix.lower() in (".mgz", ".mgh") else _read_other(path)


def _dicom_volume(path: Path, series: str | None = None) -> DicomVolume | None:
    """Return the volume of a DICOM file or folder, or None for other files."""
    return read_dicom(path, series) if path.is_dir() or is_dicom(path) else None


def _content(path: Path, read: Callable[[], FileContent]) -> FileContent:
    """Read a file, turning whatever goes wrong into a sentence.

    Args:
        path: The file or folder.
        read: Reads it.

    Raises:
        ScanError: The file is missing or damaged, or its grid is not sound.
    """
    content = _guarded(path, read)
    require_sound(path, content[1])
    return content


def _guarded(path: Path, read: Callable[[], Read]) -> Read:
    """Return what is read of a file, turning whatever goes wrong into a sentence.

    Raises:
        ScanError: The file is missing or damaged.
    """
    if not path.exists():
        raise ScanError(f"{path} does not exist: expected an image or a folder with a DICOM series. Check the path.")
    if not (path.is_file() or path.is_dir()):  # a pipe may never give anything
        raise ScanError(f"{path} must be a file or a folder, but is something else. Give an image file.")
    try:
        return read()
    except InputError:
        raise
    except PermissionError as error:
        raise ScanError(f"{path} cannot be read: permission denied. Change its permissions, or copy it.") from error
    except Exception as error:  # on damaged files nibabel and SimpleITK raise errors of any kind
        raise ScanError(
            f"{path} cannot be read as an image: expected NIfTI, MetaImage, NRRD or a folder with a DICOM "
            "series, but it is damaged, cut short or of another kind. Check it, or export the scan again."
        ) from error


def require_sound(path: Path | str, affine: NDArray[np.float64]) -> None:
    """Check that an affine can be inverted, with voxels of a size and place that a scanner can see.

    Raises:
        ScanError: It cannot be inverted, or its voxels are too small, too large or too far away.
    """
    linear = affine[:3, :3]
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(linear, axis=0)
        sheared = abs(np.linalg.det(linear / lengths))
    if not np.isfinite(affine).all() or not lengths.all() or not sheared >= 1e-6:
        raise ScanError(
            f"{path} must have an affine that can be inverted, but its axes are "
            f"{[[float(f'{step:.4g}') for step in axis] for axis in linear.T]}. Repair the header (sform or qform), or "
            "export the scan again."
        )
    far = float(np.abs(affine[:3, 3]).max())
    if not SMALLEST_EDGE <= lengths.min() <= lengths.max() <= LARGEST_EDGE or far > FARTHEST_VOXEL:
        raise ScanError(
            f"{path} must have voxels of {SMALLEST_EDGE:g} to {LARGEST_EDGE:g} mm within {FARTHEST_VOXEL:g} mm of "
            f"the scanner's centre, but their edges are {', '.join(f'{edge:.4g}' for edge in lengths)} mm and the "
            f"first one is {far:.4g} mm away. Repair the header (voxel sizes, units, sform or qform), or export the "
            "scan again."
        )


def write_labels(path: AnyPath, labels: NDArray[Any], like: Case) -> None:
    """Write a label map `(x, y, z)` as NIfTI on a scan's own grid, in the smallest unsigned type.

    Raises:
        InputError: The file cannot be written, or the array holds no labels or has another shape than the scan.
    """
    if not _are_labels(labels).all():
        raise InputError(f"Labels to be written to {path} must be whole numbers from 0 to {LARGEST_LABEL}.")
    write_image(path, _smallest_unsigned(labels), like)


def write_image(path: AnyPath, array: NDArray[Any], like: Case) -> None:
    """Write an array `(x, y, z)` as NIfTI on a scan's own grid, in the array's own type.

    If the scan came from a NIfTI file, its affine, form codes and units are kept. The file is written completely or not
    at all.

    Raises:
        InputError: The file cannot be written, or the array has another shape than the scan.
    """
    if array.shape != like.shape:
        raise InputError(f"{path} must get the shape {like.shape} of the scan {like.name}, not {array.shape}.")
    write_nifti(Path(path), array, like.affine, like.header)


def write_displacement(path: AnyPath, displacement: NDArray[np.float32], like: Case) -> None:
    """Write displacements `(x, y, z, 3)` in mm as NIfTI on a scan's own grid, as ITK and ANTs read them.

    Raises:
        InputError: The file cannot be written, or the array has another shape than the scan.
    """
    if displacement.shape != (*like.shape, 3):
        raise InputError(f"{path} must get the shape {(*like.shape, 3)}, not {displacement.shape}.")
    write_vectors(Path(path), displacement, like.affine)


def _read_other(path: Path) -> FileContent:
    data_files(path)  # refuses those that are elsewhere, or a pipe
    require_axes(path)
    header = read_itk_header(path)
    require_room(path, (*header.size, header.components))
    image = read_itk(path)
    assert image.voxels is not None
    require_intact(path, image.voxels)
    return _from_itk(path, image)


def _from_itk(path: Path, image: ItkImage) -> FileContent:
    assert image.voxels is not None
    axes, shape = len(image.size), shape_3d(tuple(image.size))
    require_plain(path, shape + image.voxels.shape[axes:], image.voxels.dtype)
    return image.voxels.T.reshape(shape), image.affine(), None


def _are_labels(values: NDArray[Any]) -> NDArray[np.bool_]:
    whole = np.isfinite(values) & (values == np.floor(values))
    return np.asarray(whole & (values >= 0) & (values <= LARGEST_LABEL), np.bool_)


def _smallest_unsigned(labels: NDArray[Any]) -> NDArray[np.unsignedinteger]:
    return labels.astype(np.min_scalar_type(int(labels.max())))


def _listed(values: Iterable[float], most: int = 8) -> str:
    words = [f"{value:g}" for value in values]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
