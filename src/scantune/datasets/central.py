"""The central part of a scan along the body's axis, as the paper's registration experiment cuts it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scantune.errors import ScanError
from scantune.scans.case import Case


def central_part(scan: Case, height: float, offset: float = 0.0) -> Case:
    """Keep a part of a scan and its reference, about the middle of the scan.

    Args:
        scan: The scan.
        height: Millimetres to keep along the axis of voxels that points up or down the body.
        offset: By how many mm the part lies above the middle.

    Raises:
        ScanError: The part does not lie within the scan.
    """
    axis = int(np.abs(scan.affine[2, :3]).argmax())
    size, spacing = scan.shape[axis], float(np.linalg.norm(scan.affine[:3, axis]))
    count = round(height / spacing)
    shift = round(offset / spacing) * (1 if scan.affine[2, axis] > 0 else -1)
    first = (size - count) // 2 + shift
    if count < 1 or first < 0 or first + count > size:
        raise ScanError(
            f"{scan.name} is {size * spacing:.0f} mm high, which must hold {height:g} mm about its middle, shifted by "
            f"{offset:g} mm. Choose a smaller part (options central and offset)."
        )
    kept = tuple(slice(first, first + count) if number == axis else slice(None) for number in range(3))
    affine = scan.affine.copy()
    affine[:3, 3] += first * affine[:3, axis]
    reference = None if scan.reference is None else scan.reference[kept]
    return replace(scan, image=scan.image[kept], affine=affine, reference=reference)
