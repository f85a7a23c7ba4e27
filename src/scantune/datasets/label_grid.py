"""Label maps that were drawn on another grid than the scan's, or on a part of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scantune.errors import ScanError
from scantune.scans.case import Case, LabelMap


def place_on_grid(labels: LabelMap, scan: Case) -> LabelMap:
    """Resample a label map to the grid of a scan, by the nearest label in space and 0 outside the map.

    Nothing is averaged, so that no new label arises. If both grids have the same voxels, in any order of axes and
    slices, every label keeps its own voxel.

    Raises:
        ScanError: Less than half of the labelled volume lies in the scan.
    """
    from scipy import ndimage

    relation = np.linalg.inv(labels.affine) @ scan.affine
    values = ndimage.affine_transform(
        labels.labels,
        relation[:3, :3],
        relation[:3, 3],
        output_shape=scan.shape,
        order=0,
        # The edge voxels reach half a voxel further out. With "constant", rounding errors would lose the first slice.
        mode="grid-constant",
    )
    before = np.count_nonzero(labels.labels) * labels.voxel_volume
    after = np.count_nonzero(values) * scan.voxel_volume
    if after < 0.5 * before:
        raise ScanError(
            f"The label map {labels.name} must lie in the scan {scan.name}, but only {after / 1000:.3g} of its "
            f"{before / 1000:.3g} mL do. Check that the two belong together, and their headers."
        )
    return replace(labels, labels=values, affine=scan.affine)


def pad_to_grid(labels: LabelMap, scan: Case) -> LabelMap:
    """Place a label map without a position slice by slice from a scan's first slice. Other slices become background.

    Raises:
        ScanError: The slices differ in size, or there are more labelled slices than slices.
    """
    if labels.shape[:2] != scan.shape[:2] or labels.shape[2] > scan.shape[2]:
        raise ScanError(
            f"The label map {labels.name} must have the slices of the scan {scan.name}, or fewer, but has shape "
            f"{labels.shape}, not {scan.shape}. Check that the two belong together."
        )
    values = np.zeros(scan.shape, labels.labels.dtype)
    values[..., : labels.shape[2]] = labels.labels
    return replace(labels, labels=values, affine=scan.affine)


def has_no_position(labels: LabelMap) -> bool:
    """Return whether a header gives no position: unit axes along those of the file, and the origin at 0."""
    axes = labels.affine[:3, :3] / labels.spacing
    return bool(np.allclose(np.abs(axes), np.eye(3)) and np.allclose(labels.affine[:3, 3], 0))
