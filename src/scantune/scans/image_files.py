"""Image formats: a file or a DICOM folder to voxels and geometry; for `scans` alone.

NIfTI files and FreeSurfer's go through nibabel, everything else (MetaImage, NRRD, a folder with one DICOM series, ...)
through SimpleITK. Nothing but voxels and geometry is taken from a file: no name, date or number of a DICOM header.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError, ScanError
from scantune.scans.dicom import require_whole
from scantune.scans.dicom_grids import require_grid
from scantune.scans.itk_client import ask
from scantune.scans.metaimage import require_axes, require_unpacked
from scantune.scans.nifti import Voxels, is_nifti, read_frame, read_freesurfer, read_nifti, require_plain, shape_3d

_VOXEL_EDGES = (1e-5, 1e4)  # mm; from slices under a microscope to damage
_FARTHEST = 1e6


def read_voxels(path: Path, frame: int | None = None) -> Voxels:
    """Read one 3D volume.

    Args:
        path: A file, or a folder with one DICOM series.
        frame: Which volume of a 4D NIfTI file; None where it holds one alone.

    Raises:
        ScanError: The file is missing or damaged, or is not one 3D volume of plain numbers on a sound grid.
    """
    if not path.exists():
        raise ScanError(f"{path} does not exist: expected an image or a folder with a DICOM series. Check the path.")
    if not (path.is_file() or path.is_dir()):  # a pipe, from which nothing may ever come
        raise ScanError(f"{path} must be a file or a folder, but is something else. Give an image file.")
    try:
        if frame is not None:
            voxels = read_frame(path, frame)
        elif path.is_dir():
            voxels = _read_dicom(path)
        elif is_nifti(path):
            voxels = read_nifti(path)
        elif path.suffix.lower() in (".mgz", ".mgh"):
            voxels = read_freesurfer(path)
        else:
            voxels = _read_other(path)
    except InputError:
        raise
    except PermissionError as error:
        raise ScanError(f"{path} cannot be read: permission denied. Change its permissions, or copy it.") from error
    except Exception as error:  # on damaged files nibabel and SimpleITK raise whatever they stumble over
        raise ScanError(
            f"{path} cannot be read as an image: expected NIfTI, MetaImage, NRRD or a folder with a DICOM "
            "series, but it is damaged, cut short or of another kind. Check it, or export the scan again."
        ) from error
    require_sound(path, voxels.affine)
    return voxels


def require_sound(path: Path, affine: NDArray[np.float64]) -> None:
    """Check that an affine can be inverted, and is of a size that a scanner could see.

    Raises:
        ScanError: It cannot, or is not.
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
    small, large = _VOXEL_EDGES
    far = float(np.abs(affine[:3, 3]).max())
    if not small <= lengths.min() <= lengths.max() <= large or far > _FARTHEST:
        raise ScanError(
            f"{path} must have voxels of {small:g} to {large:g} mm within {_FARTHEST:g} mm of the scanner's centre, "
            f"but their edges are {', '.join(f'{edge:.4g}' for edge in lengths)} mm and the first one is "
            f"{far:.4g} mm away. Repair the header (voxel sizes, units, sform or qform), or export the scan again."
        )


def _read_other(path: Path) -> Voxels:
    require_axes(path)
    told, array = ask("file", path)
    if array is not None:
        require_unpacked(path, array)
    return _from_itk(path, told, array)


def _read_dicom(path: Path) -> Voxels:
    told, array = ask("series", path)
    if array is None:
        series = told["series"]
        found = "; ".join(f"{len(files)} files from {Path(files[0]).name}" for files in series) or "none"
        raise ScanError(
            f"The folder {path} must hold one DICOM series, but holds {len(series)} ({found}). "
            "Give an image file, or a folder with the files of one series alone."
        )
    require_whole(path, told["files"], told["tags"])
    require_grid(path, told)
    return _from_itk(path, told, array)


def _from_itk(path: Path, told: Mapping[str, Any], array: NDArray[Any] | None) -> Voxels:
    assert array is not None
    axes, shape = len(told["size"]), shape_3d(tuple(told["size"]))
    require_plain(path, shape + array.shape[axes:], array.dtype)
    return Voxels(array.T.reshape(shape), itk_affine(told), None)


def itk_affine(told: Mapping[str, Any]) -> NDArray[np.float64]:
    """Voxel to world, `(4, 4)`, of the direction, spacing and origin that SimpleITK tells."""
    axes = len(told["size"])
    affine = np.eye(max(axes, 3) + 1)
    affine[:axes, :axes] = np.reshape(told["direction"], (axes, axes)) * told["spacing"]
    affine[:axes, -1] = told["origin"]
    affine = affine[np.ix_((0, 1, 2, -1), (0, 1, 2, -1))]
    affine[
        :2
    ] *= -1  # SimpleITK's world runs to the left and to posterior, ours (as NIfTI's) to the right and to anterior
    return affine
