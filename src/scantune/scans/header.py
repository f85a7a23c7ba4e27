"""Grids of image files without their voxels: quick to read, to check a whole data set before the work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError, ScanError
from scantune.scans.case import ImageGrid
from scantune.scans.data_files import data_files
from scantune.scans.io import read_voxels, require_sound
from scantune.scans.itk import read_itk_header
from scantune.scans.metaimage import require_axes
from scantune.scans.names import scan_name
from scantune.scans.nifti import affine_in_mm, is_nifti, require_frame, require_plain, shape_3d
from scantune.scans.room import require_room

_SINGLE_FILE = (".mha", ".nrrd")  # formats whose header and voxels share a file


@dataclass(frozen=True, eq=False)
class FileGrid(ImageGrid):
    """Grid of a file's voxels.

    Attributes:
        name: File name without the image extensions.
        voxels: Number of voxels along the array's axes.
        affine: Voxel to world, `(4, 4)`, RAS+ in mm.
    """

    name: str
    voxels: tuple[int, ...]
    affine: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of voxels along the array's axes."""
        return self.voxels


def read_grid(path: Path, frame: int | None = None) -> FileGrid:
    """Read the grid of a file that `read_scan` takes.

    The voxels stay unread, so that some damage is not found. NIfTI files that are cut short are found. Formats
    without a separate header are read whole.

    Args:
        path: A file, or a folder with one DICOM series.
        frame: Number of the volume in a 4D file. None for files with one volume.

    Raises:
        ScanError: The file is missing or damaged, or is not one 3D volume on a sound grid.
    """
    reader = _nifti if is_nifti(path) else _other if path.suffix.lower() in _SINGLE_FILE and frame is None else _whole
    try:
        grid = reader(path, frame)
    except InputError:
        raise
    except Exception:  # the reader of voxels says what is wrong with a damaged header
        grid = _whole(path, frame)
    require_sound(path, grid.affine)
    return grid


def _nifti(path: Path, frame: int | None) -> FileGrid:
    import nibabel
    from nibabel.imageglobals import LoggingOutputSuppressor

    with LoggingOutputSuppressor():
        image: Any = nibabel.load(path)
    shape = shape_3d(image.shape)
    if frame is not None:
        require_frame(path, shape, frame)
        shape = shape[:3]
    require_plain(path, shape, image.get_data_dtype())
    if not _has_room(path, image.dataobj.offset + math.prod(image.shape) * image.get_data_dtype().itemsize):
        return _whole(path, frame)
    return FileGrid(scan_name(path), shape, affine_in_mm(image.header))


def _has_room(path: Path, needed: int) -> bool:
    """Return whether a NIfTI file seems to hold a number of bytes. A compressed file gives its size at its end."""
    if not path.name.lower().endswith(".gz"):
        return path.stat().st_size >= needed
    with path.open("rb") as stream:
        stream.seek(-4, 2)
        return int.from_bytes(stream.read(4), "little") == needed % 2**32


def _other(path: Path, _: int | None) -> FileGrid:
    data_files(path)
    require_axes(path)
    image = read_itk_header(path)
    require_room(path, (*image.size, image.components))
    if len(image.size) != 3 or image.components != 1:
        return _whole(path, None)
    return FileGrid(scan_name(path), tuple(image.size), image.affine())


def _whole(path: Path, frame: int | None) -> FileGrid:
    array, affine, _ = read_voxels(path, frame)
    return FileGrid(scan_name(path), array.shape, affine)


def check_file(path: Path) -> None:
    """Check that a file, or a folder with something in it, is there.

    Raises:
        ScanError: It is missing or empty.
    """
    if not path.exists():
        raise ScanError(f"{path} does not exist. Check the path, or that the data set is complete.")
    if not (any(path.iterdir()) if path.is_dir() else path.stat().st_size):
        raise ScanError(f"{path} is empty. Copy it again.")
