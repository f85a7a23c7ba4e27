"""Deformations for other tools: displacements in mm from the scan to the atlas, on the scan's own grid."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from scantune.backends.slices import PreparedSlices
from scantune.scans.case import Case

LPS = np.array([-1.0, -1.0, 1.0])
"""From the directions of affines (right, anterior, superior) to those of ITK (left, posterior, superior)."""


def native_displacement(
    displacement: Tensor, prepared: PreparedSlices, case: Case, world: Sequence[Sequence[float]]
) -> NDArray[np.float32]:
    """Return the displacement from every voxel of a scan to its place in the atlas's own space.

    Beyond the slab that the network sees, only the placement of the atlas counts, without its deformation.

    Args:
        displacement: Displacement in pixels of the pictures along rows and columns, `(slices, 2, height, width)`.
        prepared: The scan as the network sees it.
        case: The scan.
        world: Map from height in mm, row and column of pictures to the atlas's space in mm (RAS+), `(4, 4)`.

    Returns:
        Displacements in mm `(x, y, z, 3)`, as ITK and ANTs have them: along left, posterior and superior.
    """
    assert prepared.slab is not None and prepared.distance is not None
    slab, native = prepared.slab, prepared.grid.native
    along = [slab.restore(prepared.grid.restore(part, outside=0.0).double().numpy()) for part in displacement.unbind(1)]
    numbers = np.stack(np.meshgrid(*map(np.arange, (slab.native, *native)), indexing="ij")).astype(np.float64)
    pictures = _mapped(np.linalg.inv(prepared.grid.matrix()), numbers)
    heights = prepared.distance * (numbers[0] - slab.middle)
    there = _mapped(np.asarray(world), np.stack([heights, pictures[1] + along[0], pictures[2] + along[1]]))
    here = _mapped(case.affine @ prepared.orientation.matrix(case.shape), numbers)
    moved = (there - here) * LPS.reshape(3, 1, 1, 1)
    return np.stack([prepared.orientation.to_native(part) for part in moved], axis=-1).astype(np.float32)


def _mapped(matrix: NDArray[Any], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points `(3, ...)` mapped by an affine `(4, 4)`."""
    mapped: NDArray[np.float64] = np.tensordot(matrix[:3, :3], points, axes=1) + matrix[:3, 3].reshape(3, 1, 1, 1)
    return mapped
