"""Images of nibabel and SimpleITK, as a program has them in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from scantune.errors import ScanError
from scantune.scans.case import Case
from scantune.scans.io import case_from_voxels, require_sound
from scantune.scans.itk import ItkImage
from scantune.scans.nifti import FileContent, content_of_nifti, require_plain, shape_3d

NAME = "scan"
"""Name of a scan that comes from no file, for messages and outputs."""


def is_image(value: object) -> bool:
    """Return whether a value is an image of nibabel or SimpleITK."""
    return _is_nibabel(value) or _is_itk(value)


def case_from_image(image: Any) -> Case:
    """Return the scan that an image of nibabel or SimpleITK holds.

    Raises:
        ScanError: It is not one 3D volume of real numbers on a sound grid.
    """
    content = _of_nibabel(image) if _is_nibabel(image) else _of_itk(image)
    require_sound(NAME, content[1])
    return case_from_voxels(NAME, content, "The image")


def _is_nibabel(value: object) -> bool:
    return all(hasattr(value, name) for name in ("dataobj", "affine", "header"))


def _is_itk(value: object) -> bool:
    return all(hasattr(value, name) for name in ("GetSpacing", "GetDirection", "GetOrigin", "GetSize"))


def _of_nibabel(image: Any) -> FileContent:
    if "xyzt_units" in image.header:
        return content_of_nifti(NAME, image)
    array = np.asarray(image.dataobj)
    require_plain(NAME, array.shape, array.dtype)
    if image.affine is None:
        raise ScanError("The image has no affine; give one that says where its voxels lie.")
    return array.reshape(shape_3d(array.shape)), np.array(image.affine, np.float64), None


def _of_itk(image: Any) -> FileContent:
    import SimpleITK

    components, voxels = image.GetNumberOfComponentsPerPixel(), SimpleITK.GetArrayFromImage(image)
    grid = ItkImage(image.GetSize(), image.GetSpacing(), image.GetDirection(), image.GetOrigin(), components)
    shape = shape_3d(tuple(grid.size))
    require_plain(NAME, shape + voxels.shape[len(grid.size) :], voxels.dtype)
    return voxels.T.reshape(shape), grid.affine(), None
