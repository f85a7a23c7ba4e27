"""How well a label map agrees with a reference: Dice, surface distances in mm, volumes in mL.

All functions take two integer label volumes on the same grid and the value of one structure. A structure
that is absent from both volumes cannot be scored and gives NaN. If one volume has it, Dice is 0, and the
surface distances are NaN, since there is no second surface to measure to.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from scantune.errors import InputError

Labels = np.ndarray
"""Integer label volume, `(x, y, z)`."""


@dataclass(frozen=True)
class Score:
    """The agreement of one structure in one scan."""

    dice: float
    hd95: float
    asd: float
    volume_ml: float
    reference_ml: float
    volume_difference_ml: float


def score(prediction: Labels, reference: Labels, structure: int, spacing: Sequence[float]) -> Score:
    """Compute every metric of one structure.

    Args:
        prediction: `(x, y, z)` label volume to judge.
        reference: `(x, y, z)` label volume taken as the truth.
        structure: The label value of the structure.
        spacing: Voxel size along x, y and z in mm.
    """
    hd95, asd = surface_distances(prediction, reference, structure, spacing)
    return Score(
        dice=dice(prediction, reference, structure),
        hd95=hd95,
        asd=asd,
        volume_ml=volume_ml(prediction, structure, spacing),
        reference_ml=volume_ml(reference, structure, spacing),
        volume_difference_ml=volume_difference(prediction, reference, structure, spacing),
    )


def dice(prediction: Labels, reference: Labels, structure: int) -> float:
    """Compute twice the overlap divided by the sum of both sizes; NaN if the structure is in neither."""
    predicted, true = _masks(prediction, reference, structure)
    total = int(predicted.sum()) + int(true.sum())
    if total == 0:
        return math.nan
    return 2.0 * int((predicted & true).sum()) / total


def surface_distances(
    prediction: Labels, reference: Labels, structure: int, spacing: Sequence[float]
) -> tuple[float, float]:
    """Measure how far the two surfaces lie apart, in mm.

    Returns:
        The 95th percentile Hausdorff distance (the larger of the two directions) and the average symmetric
        surface distance; NaN for both when the structure is absent from either volume.
    """
    predicted, true = _masks(prediction, reference, structure)
    if not predicted.any() or not true.any():
        return math.nan, math.nan

    from monai.metrics import compute_average_surface_distance, compute_hausdorff_distance

    step = tuple(float(size) for size in spacing)
    # In a scan of one slice every voxel would be surface: measure such a scan within its slice.
    if predicted.shape.count(1) == 1:
        flat = predicted.shape.index(1)
        predicted, true = predicted.squeeze(flat), true.squeeze(flat)
        step = step[:flat] + step[flat + 1 :]
    box = _bounding_box(predicted | true)
    pair = [torch.from_numpy(mask[box].copy())[None, None] for mask in (predicted, true)]
    with warnings.catch_warnings():
        # MONAI warns about an argument that it passes to itself.
        warnings.simplefilter("ignore", FutureWarning)
        hd95 = compute_hausdorff_distance(*pair, include_background=True, percentile=95, spacing=step)
        asd = compute_average_surface_distance(*pair, include_background=True, symmetric=True, spacing=step)
    return float(hd95), float(asd)


def volume_ml(labels: Labels, structure: int, spacing: Sequence[float]) -> float:
    """Return the volume of a structure in mL; 0 when it is absent."""
    return int((labels == structure).sum()) * math.prod(spacing) / 1000.0


def volume_difference(prediction: Labels, reference: Labels, structure: int, spacing: Sequence[float]) -> float:
    """Return predicted minus reference volume in mL; NaN when the structure is in neither."""
    predicted, true = (volume_ml(labels, structure, spacing) for labels in (prediction, reference))
    return predicted - true if predicted or true else math.nan


def _masks(prediction: Labels, reference: Labels, structure: int) -> tuple[np.ndarray, np.ndarray]:
    if prediction.shape != reference.shape:
        raise InputError(
            f"Prediction and reference must have the same shape to be compared, got {prediction.shape} "
            f"and {reference.shape}. Bring both onto one grid first."
        )
    return prediction == structure, reference == structure


def _bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    """Return the slices of the smallest box that holds every True voxel of a mask that is not empty."""
    box = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        inside = np.flatnonzero(mask.any(axis=others))
        box.append(slice(int(inside[0]), int(inside[-1]) + 1))
    return tuple(box)
