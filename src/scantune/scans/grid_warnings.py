"""Warnings about a scan's grid: voxel sizes that no scanner has, and headers that contradict themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scantune.scans.nifti import FileContent, GridHeader

USUAL_EDGES = (0.1, 20.0)
"""Edges of a voxel in mm that scanners have."""

LARGEST_DISAGREEMENT = 1.0
"""Voxels by which qform and sform may place a corner apart."""

TEMPLATE_CODES = (3, 4)
"""Codes of an sform that leads to the space of a template, where a qform does not lead."""


def grid_warnings(content: FileContent) -> tuple[str, ...]:
    """Return sentences about the grid of a file's content."""
    array, affine, header = content
    found = _size_warnings(affine)
    return tuple(found if header is None else found + _form_warnings(header, array.shape[:3]))


def _size_warnings(affine: NDArray[np.float64]) -> list[str]:
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    low, high = USUAL_EDGES
    if low <= edges.min() and edges.max() <= high:
        return []
    found = " x ".join(f"{edge:.3g}" for edge in edges)
    return [
        f"The voxels are {found} mm, which is unusual: expected {low:g} to {high:g} mm. Check the voxel sizes and "
        "units of the header; volumes and resampling depend on them."
    ]


def _form_warnings(header: GridHeader, shape: tuple[int, ...]) -> list[str]:
    """Return sentences about the qform and the sform of a NIfTI file."""
    image = header.grid()
    codes = int(image["qform_code"]), int(image["sform_code"])
    if not any(codes):
        return [
            "The header has neither a qform nor an sform, so left and right are a guess. Convert the scan again, "
            "from DICOM."
        ]
    if not all(codes) or _agree(_qform(image), image.get_sform(), codes[1], shape):
        return []
    return [
        "The qform and the sform of the header contradict each other; the sform was used. Check orientation and "
        "voxel sizes, and repair the wrong one."
    ]


def _qform(image: Any) -> NDArray[np.float64]:
    """Return the qform of a header of nibabel; NaN if its quaternion is damaged."""
    from nibabel.spatialimages import HeaderDataError

    try:
        return np.asarray(image.get_qform(), np.float64)
    except (HeaderDataError, ValueError):
        return np.full((4, 4), np.nan)


def _agree(qform: NDArray[np.float64], sform: NDArray[np.float64], code: int, shape: tuple[int, ...]) -> bool:
    """Return whether two forms place the voxels alike; in the space of a template, whether volume and sides agree."""
    if not np.isfinite(qform).all():
        return False
    if code in TEMPLATE_CODES:
        return bool(0.5 < np.linalg.det(qform[:3, :3]) / np.linalg.det(sform[:3, :3]) < 2)
    corners = np.array([[i, j, k, 1] for i in (0, shape[0] - 1) for j in (0, shape[1] - 1) for k in (0, shape[2] - 1)])
    apart = np.abs((qform - sform)[:3] @ corners.T) / np.linalg.norm(sform[:3, :3], axis=0).max()
    return bool(apart.max() <= LARGEST_DISAGREEMENT)
