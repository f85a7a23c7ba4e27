"""Image formats: a file or a DICOM folder to voxels and geometry; for `scans` alone.

NIfTI files and FreeSurfer's go through nibabel, everything else (MetaImage, NRRD, a folder with one DICOM series, ...)
through SimpleITK. Nothing but voxels and geometry is taken from a file: no name, date or number of a DICOM header.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.dicomfiles import require_whole
from scantune.errors import InputError, ScanError
from scantune.itkclient import ask

_MM_PER_UNIT = {1: 1000.0, 3: 0.001}  # by NIfTI's code of the spatial unit: metres and micrometres
_VOXEL_EDGES = (1e-5, 1e4)  # mm; from slices under a microscope to damage
_FARTHEST = 1e6
_GRID_FIELDS = (
    *("pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z"),
)


@dataclass(frozen=True, eq=False)
class GridHeader:
    """What a NIfTI file says about its grid, kept word for word so that outputs say the same.

    Attributes:
        version: NIfTI version, 1 or 2.
        shape: Shape in the file, which may be 2D or end in axes of length 1.
        fields: Values of the header fields that place the grid: forms, their codes, voxel sizes and units.
    """

    version: int
    shape: tuple[int, ...]
    fields: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Voxels:
    """What a file holds.

    Attributes:
        array: Values `(x, y, z)` in the file's own axis order, slope and intercept applied.
        affine: Voxel to world, `(4, 4)`, RAS+ in mm.
        header: The grid as a NIfTI file tells it; None for other formats.
    """

    array: NDArray[Any]
    affine: NDArray[np.float64]
    header: GridHeader | None


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
    try:
        if frame is not None:
            voxels = _read_frame(path, frame)
        elif path.is_dir():
            voxels = _read_dicom(path)
        elif is_nifti(path):
            voxels = _read_nifti(path)
        elif path.suffix.lower() in (".mgz", ".mgh"):
            voxels = _read_freesurfer(path)
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


def is_nifti(path: Path) -> bool:
    """Whether a name is that of a NIfTI file."""
    return path.name.lower().endswith((".nii", ".nii.gz"))


def _read_nifti(path: Path) -> Voxels:
    import nibabel
    from nibabel.imageglobals import LoggingOutputSuppressor

    with LoggingOutputSuppressor():
        image: Any = nibabel.load(path, mmap=False)
    require_plain(path, image.shape, image.get_data_dtype())
    array = np.asarray(image.dataobj).reshape(shape_3d(image.shape))
    return Voxels(array, affine_in_mm(image.header), _grid_header(image.header, tuple(image.shape)))


def _read_freesurfer(path: Path) -> Voxels:
    import nibabel

    image: Any = nibabel.load(path, mmap=False)
    require_plain(path, image.shape, image.get_data_dtype())
    return Voxels(np.asarray(image.dataobj).reshape(shape_3d(image.shape)), np.array(image.affine, np.float64), None)


def _read_frame(path: Path, frame: int) -> Voxels:
    import nibabel
    from nibabel.imageglobals import LoggingOutputSuppressor

    if not is_nifti(path):
        raise ScanError(f"{path} must be a NIfTI file, since one of its volumes is asked for. Convert it first.")
    with LoggingOutputSuppressor():
        image: Any = nibabel.load(path, mmap=False)
    shape = shape_3d(image.shape)
    require_frame(path, shape, frame)
    require_plain(path, shape[:3], image.get_data_dtype())
    array = np.asarray(image.dataobj[..., frame] if len(shape) == 4 else image.dataobj).reshape(shape[:3])
    return Voxels(array, affine_in_mm(image.header), _grid_header(image.header, shape[:3]))


def require_frame(path: Path, shape: tuple[int, ...], frame: int) -> None:
    """Check that a file of a shape `(x, y, z, volumes)`, or `(x, y, z)`, holds a volume.

    Raises:
        ScanError: It does not, or has more axes.
    """
    volumes = shape[3] if len(shape) == 4 else 1
    if len(shape) > 4 or not 0 <= frame < volumes:
        raise ScanError(
            f"{path} must be a series of 3D volumes with one of number {frame}, counted from 0, but has shape "
            f"{tuple(shape)}. Check which volume is meant."
        )


def _grid_header(header: Any, shape: tuple[int, ...]) -> GridHeader:
    return GridHeader(
        version=1 if int(header["sizeof_hdr"]) == 348 else 2,
        shape=shape,
        fields={name: np.array(header[name]) for name in _GRID_FIELDS},
    )


def _read_other(path: Path) -> Voxels:
    return _from_itk(path, *ask("file", path))


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
    corners = [np.array(corner.split("\\"), float) for corner in told["tags"]["0020|0032"] if corner is not None]
    with np.errstate(invalid="ignore"):  # of positions that are not finite, told below
        steps = np.diff(corners, axis=0)
        uneven = np.linalg.norm(steps - steps.mean(0), axis=1).max() if len(steps) else 0.0
    if not uneven <= 0.1 * told["spacing"][2]:
        raise ScanError(
            f"The DICOM slices in {path} must be evenly spaced, but are up to {uneven:.3g} mm off. "
            "Check that no slice is missing and that all are of one acquisition."
        )
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


def shape_3d(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as three axes, when the others have length 1."""
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape + (1,) * (3 - len(shape))


def require_plain(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Check that a file holds one 3D volume of real numbers.

    Raises:
        ScanError: It does not.
    """
    if len(shape_3d(shape)) > 3:
        raise ScanError(
            f"{path} must be one 3D volume with one value per voxel, but has shape {tuple(shape)}. "
            "Extract one volume or channel of it first."
        )
    if 0 in shape or not shape:
        raise ScanError(f"{path} must be a 3D volume, but is empty, of shape {tuple(shape)}. Export the scan again.")
    if dtype.fields or dtype.kind not in "biuf":
        raise ScanError(
            f"{path} must have one real number per voxel, but has values of type {dtype}. "
            "Export it as grey values (the magnitude, where values are complex)."
        )


def affine_in_mm(header: Any) -> NDArray[np.float64]:
    """Voxel to world, `(4, 4)`, as a NIfTI header tells it, in mm."""
    affine = np.array(header.get_best_affine(), dtype=np.float64)
    affine[:3] *= _MM_PER_UNIT.get(int(header["xyzt_units"]) & 7, 1.0)
    return affine
