"""Input of an adaptation: a scan as a file, a case or a tensor, and its brain mask."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scantune.errors import InputError
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.scans.io import read_scan
from scantune.scans.volume import Volume

BrainMask = str | Path | Case | NDArray[Any]
"""A file, a `Case`, or an array `(x, y, z)` on the scan's grid; above 0 where the scan is kept."""

LEAST_ZERO = 0.2
"""Share of zeros below which a scan shows more than the brain. Half of the smallest box around a brain is empty."""


def volume_of(images: Tensor, mask: Tensor | None = None, brain_mask: BrainMask | None = None) -> Volume:
    """Return the volume of a scan that is given as a tensor.

    Raises:
        InputError: The tensor is not as a network takes it.
    """
    if images.ndim not in (4, 5) or not images.numel():
        raise InputError(
            f"The volume has shape {tuple(images.shape)}, expected (slices, channels, height, width), or "
            "(1, channels, depth, height, width) for a 3D network."
        )
    if not torch.isfinite(images).all():
        raise InputError("The volume holds NaN or infinite values; repair it before adapting to it.")
    if brain_mask is not None:
        raise InputError(
            "A brain mask is for a scan given as a file or Case, before it is prepared; a tensor is taken as prepared: "
            "set it to 0 outside the brain before that."
        )
    return Volume(images.float(), mask)


def case_of(scan: Case | str | Path, brain_mask: BrainMask | None = None) -> tuple[Case, str | None]:
    """Return a scan, set to 0 outside its brain mask, and the name of the mask."""
    case = scan if isinstance(scan, Case) else read_scan(scan)
    return (case, None) if brain_mask is None else _stripped(case, brain_mask)


def skull_remarks(model: Model, case: Case) -> list[str]:
    """Return a remark on a scan with a skull, if the model was trained on scans without one."""
    zero = float((case.image == 0).mean())
    if not model.provenance.get("stripped") or zero >= LEAST_ZERO:
        return []
    return [
        f"The model was trained on scans that are 0 outside the brain, but {zero:.0%} of this one is. "
        "Give a brain mask."
    ]


def _stripped(case: Case, brain_mask: BrainMask) -> tuple[Case, str]:
    """Return a scan that is 0 outside a mask, and the name of the mask."""
    if isinstance(brain_mask, str | Path):
        return case.stripped(read_scan(brain_mask)), Path(brain_mask).name
    if isinstance(brain_mask, Case):
        return case.stripped(brain_mask), brain_mask.name
    array = np.asarray(brain_mask)
    return case.stripped(replace(case, name="The brain mask", image=array.astype(np.float32))), "an array"
