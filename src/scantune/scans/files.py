"""Writing: NIfTI on a scan's own grid, and any file whole or not at all; for `scans` and what writes its own kinds."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans.nifti import GridHeader, affine_in_mm, is_nifti, shape_3d


def write_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64], header: GridHeader | None) -> None:
    """Write an array `(x, y, z)`, in its own type, on the grid of the scan that affine and header come from.

    Raises:
        InputError: The file cannot be written.
    """
    import nibabel

    if not is_nifti(path):
        raise InputError(f"{path} cannot be written: outputs are NIfTI files, so the name must end in .nii or .nii.gz.")
    image = _on_file_grid(array, affine, header) or _on_grid(array, affine)
    write_whole(path, lambda temporary: nibabel.save(image, temporary))


def write_vectors(path: Path, array: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write a vector at each voxel, `(x, y, z, components)`, as NIfTI with the intent of vectors.

    Raises:
        InputError: The file cannot be written.
    """
    import nibabel

    image = _on_grid(array[:, :, :, None], affine)
    image.header.set_intent("vector")
    write_whole(path, lambda temporary: nibabel.save(image, temporary))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file written under a temporary name beside it and renamed when complete.

    Its permissions are those that `open` gives: the user's umask on a new file, unchanged on one that was there.

    Raises:
        InputError: The file cannot be written; nothing of it is left.
    """
    # The extension stays at the end, since nibabel chooses the format by it.
    temporary = path.with_name(f".{uuid.uuid4().hex[:8]}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.touch()
            mode = (path if path.exists() else temporary).stat().st_mode
            write(temporary)
            if temporary.stat().st_mode != mode:  # safetensors makes a file of its own, for its owner only
                temporary.chmod(mode)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}): expected a folder that takes new "
            "files and has room. Choose another output folder, or change its permissions."
        ) from error


def _on_file_grid(array: NDArray[Any], affine: NDArray[np.float64], header: GridHeader | None) -> Any:
    """A NIfTI image with the header's own grid fields; None where the scan has moved since it was read."""
    import nibabel

    if header is None or shape_3d(header.shape) != array.shape:
        return None
    kind = nibabel.Nifti1Image if header.version == 1 else nibabel.Nifti2Image
    grid = kind.header_class()
    for name, value in header.fields.items():
        grid[name] = value
    grid.set_data_shape(header.shape)
    grid.set_data_dtype(array.dtype)
    if not np.allclose(affine_in_mm(grid), affine, rtol=1e-7, atol=1e-7):
        return None
    return kind(array.reshape(header.shape), None, grid)


def _on_grid(array: NDArray[Any], affine: NDArray[np.float64]) -> Any:
    import nibabel

    # The older version of the format counts voxels in 16 bits.
    kind = nibabel.Nifti1Image if max(array.shape) < 2**15 else nibabel.Nifti2Image
    image = kind(array, affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, "scanner")
    image.set_qform(affine, "scanner")
    if not np.allclose(image.get_qform(), affine, atol=1e-3):  # sheared: the quaternion form cannot say it
        image.set_qform(None, "unknown")
    return image
