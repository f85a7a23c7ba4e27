"""The files that nibabel reads and writes: NIfTI, and FreeSurfer's.

Nothing but voxels and geometry is taken from a file.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError, ScanError
from scantune.scans.files import write_whole
from scantune.scans.room import require_room

_MM_PER_UNIT = {1: 1000.0, 3: 0.001}  # by NIfTI's code of the spatial unit: metres and micrometres

_GRID_FIELDS = (
    *("pixdim", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"),
    *("qoffset_x", "qoffset_y", "qoffset_z", "srow_x", "srow_y", "srow_z"),
)


@dataclass(frozen=True, eq=False)
class GridHeader:
    """Grid of a NIfTI file, with all header fields as they are so that outputs get the same.

    Attributes:
        version: NIfTI version, 1 or 2.
        shape: Shape in the file, which may be 2D or end in axes of length 1.
        fields: Values of the header fields that place the grid: forms, form codes, voxel sizes and units.
    """

    version: int
    shape: tuple[int, ...]
    fields: Mapping[str, Any]

    def grid(self) -> Any:
        """Return a header of nibabel with these fields."""
        import nibabel

        kind = nibabel.Nifti1Header if self.version == 1 else nibabel.Nifti2Header
        header = kind()
        for name, value in self.fields.items():
            header[name] = value
        return header


FileContent: TypeAlias = tuple[NDArray[Any], NDArray[np.float64], GridHeader | None]
"""Values `(x, y, z)` in the file's own type and axis order, with slope and intercept applied; the affine from voxels to
the world in mm (RAS+), `(4, 4)`; and the grid of a NIfTI file, None for other formats."""


def is_nifti(path: Path) -> bool:
    """Return whether a file name is that of a NIfTI file."""
    return path.name.lower().endswith((".nii", ".nii.gz"))


def read_nifti(path: Path) -> FileContent:
    """Read a NIfTI file.

    Raises:
        ScanError: The file is not one 3D volume of real numbers. On damaged files nibabel raises errors of any kind.
    """
    import nibabel
    from nibabel.imageglobals import LoggingOutputSuppressor

    with LoggingOutputSuppressor():
        return content_of_nifti(path, nibabel.load(path, mmap=False))


def content_of_nifti(path: Path | str, image: Any) -> FileContent:
    """Return the content of a NIfTI image of nibabel.

    Args:
        path: Where it comes from, for messages.
        image: The image.

    Raises:
        ScanError: The image is not one 3D volume of real numbers.
    """
    require_plain(path, image.shape, image.get_data_dtype())
    array = np.asarray(image.dataobj).reshape(shape_3d(image.shape))
    return array, affine_in_mm(image.header), _grid_header(image.header, tuple(image.shape))


def read_freesurfer(path: Path) -> FileContent:
    """Read one of FreeSurfer's files (.mgz, .mgh). Raises the errors of `read_nifti`."""
    import nibabel

    require_room(path, freesurfer_shape(path))
    image: Any = nibabel.load(path, mmap=False)
    require_plain(path, image.shape, image.get_data_dtype())
    return np.asarray(image.dataobj).reshape(shape_3d(image.shape)), np.array(image.affine, np.float64), None


def freesurfer_shape(path: Path) -> tuple[int, ...]:
    """Return the shape in the header of one of FreeSurfer's files; nibabel unpacks a file to read what follows it.

    Raises:
        OSError: The file is cut short, or not packed as its name says.
    """
    with gzip.open(path) if path.suffix.lower() == ".mgz" else path.open("rb") as stream:
        shape: list[int] = np.frombuffer(stream.read(20), ">i4", 4, 4).tolist()
    return tuple(max(length, 1) for length in shape)


def read_nifti_frame(path: Path, frame: int) -> FileContent:
    """Read one volume, counted from 0, of a NIfTI file that may hold several. Raises the errors of `read_nifti`."""
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
    return array, affine_in_mm(image.header), _grid_header(image.header, shape[:3])


def read_nifti_volumes(path: Path) -> FileContent:
    """Read all volumes `(x, y, z, volumes)` of a NIfTI file of one or more. Raises the errors of `read_nifti`."""
    import nibabel
    from nibabel.imageglobals import LoggingOutputSuppressor

    with LoggingOutputSuppressor():
        image: Any = nibabel.load(path, mmap=False)
    shape = shape_3d(image.shape)
    shape = shape if len(shape) > 3 else (*shape, 1)
    require_frame(path, shape, 0)
    require_plain(path, shape[:3], image.get_data_dtype())
    require_room(path, shape, image.get_data_dtype().itemsize)
    return np.asarray(image.dataobj).reshape(shape), affine_in_mm(image.header), _grid_header(image.header, shape[:3])


def require_frame(path: Path, shape: tuple[int, ...], frame: int) -> None:
    """Check that a file of shape `(x, y, z)` or `(x, y, z, volumes)` holds the volume of a number.

    Raises:
        ScanError: The file has no such volume, or more axes.
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


def affine_in_mm(header: Any) -> NDArray[np.float64]:
    """Return the affine of a NIfTI header from voxels to the world in mm, `(4, 4)`."""
    affine = np.array(header.get_best_affine(), dtype=np.float64)
    affine[:3] *= _MM_PER_UNIT.get(int(header["xyzt_units"]) & 7, 1.0)
    return affine


def shape_3d(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape of three axes if all others have length 1, and of more axes otherwise."""
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return shape + (1,) * (3 - len(shape))


def require_plain(path: Path | str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Check that a file holds one 3D volume of real numbers that there is room for.

    Raises:
        ScanError: The file holds anything else, or more than the memory holds.
    """
    if len(shape_3d(shape)) > 3:
        raise ScanError(
            f"{path} must be one 3D volume with one value per voxel, but has shape {tuple(shape)}. "
            "Extract one volume or channel of it first."
        )
    if 0 in shape or not shape:
        raise ScanError(f"{path} must be a 3D volume, but is empty, of shape {tuple(shape)}. Export the scan again.")
    require_room(path, shape, dtype.itemsize)
    if dtype.fields or dtype.kind not in "biuf":
        raise ScanError(
            f"{path} must have one real number per voxel, but has values of type {dtype}. "
            "Export it as grey values (the magnitude of complex values)."
        )


def write_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64], header: GridHeader | None) -> None:
    """Write an array `(x, y, z)` in its own type, on the grid of a scan's affine and header.

    Raises:
        InputError: The file cannot be written.
    """
    import nibabel

    if not is_nifti(path):
        raise InputError(f"{path} cannot be written: outputs are NIfTI files, so the name must end in .nii or .nii.gz.")
    image = _on_file_grid(array, affine, header) or _on_grid(array, affine)
    write_whole(path, lambda temporary: nibabel.save(image, temporary))


def write_vectors(path: Path, array: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write vectors `(x, y, z, components)` as NIfTI with the intent code of vectors.

    Raises:
        InputError: The file cannot be written.
    """
    import nibabel

    image = _on_grid(array[:, :, :, None], affine)
    image.header.set_intent("vector")
    write_whole(path, lambda temporary: nibabel.save(image, temporary))


def _on_file_grid(array: NDArray[Any], affine: NDArray[np.float64], header: GridHeader | None) -> Any:
    """Return a NIfTI image with the header's own grid fields, or None if the scan has moved since it was read."""
    import nibabel

    if header is None or shape_3d(header.shape) != array.shape:
        return None
    kind = nibabel.Nifti1Image if header.version == 1 else nibabel.Nifti2Image
    grid = header.grid()
    grid.set_data_shape(header.shape)
    grid.set_data_dtype(array.dtype)
    if not np.allclose(affine_in_mm(grid), affine, rtol=1e-7, atol=1e-7):
        return None
    return kind(array.reshape(header.shape), None, grid)


def _on_grid(array: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    import nibabel

    # NIfTI-1 counts voxels in 16 bits.
    kind = nibabel.Nifti1Image if max(array.shape) < 2**15 else nibabel.Nifti2Image
    image = kind(array, affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, "scanner")
    image.set_qform(affine, "scanner")
    if not np.allclose(image.get_qform(), affine, atol=1e-3):  # a sheared grid has no quaternion form
        image.set_qform(None, "unknown")
    return image
