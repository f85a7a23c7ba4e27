"""What a segmentation is worth: scores of every structure of a scan, of their mean, and of all as one."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.backends import Backend, Preprocessing
from scantune.evaluation.metrics import Score, dice, score
from scantune.evaluation.rows import MEAN, WHOLE
from scantune.scans.case import Case

LabelArray = NDArray[np.integer[Any]]
Structures = Mapping[str, tuple[int, int]]
"""Values of each structure in a prediction and in a reference, by name."""


def common_structures(predicted: Mapping[str, int], known: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the structures that predictions and references both have, without background."""
    return {name: (value, known[name]) for name, value in predicted.items() if value and known.get(name)}


def scores(prediction: LabelArray, case: Case, structures: Structures, whole: bool) -> dict[str, Score]:
    """Return scores by structure, with `whole` if asked for, and with `mean` if there are structures.

    Args:
        prediction: Labels `(x, y, z)` on the scan's own grid.
        case: The scan with its reference.
        structures: What is scored.
        whole: Whether all structures are scored as one, too.
    """
    assert case.reference is not None
    pairs = _pairs(prediction, case.reference, structures, whole)
    found = {name: score(one, other, 1, case.spacing) for name, (one, other) in pairs.items()}
    each = [found[name] for name in structures]
    return found | ({MEAN: _mean(each)} if each else {})


def dices(prediction: LabelArray, case: Case, structures: Structures, whole: bool) -> dict[str, float]:
    """Return Dice by structure, as `scores`."""
    assert case.reference is not None
    pairs = _pairs(prediction, case.reference, structures, whole)
    found = {name: dice(one, other, 1) for name, (one, other) in pairs.items()}
    each = [found[name] for name in structures]
    return found | ({MEAN: finite_mean(each)} if each else {})


def restrict_to_slab(case: Case, backend: Backend[Any]) -> Case:
    """Return the scan with its reference restricted to the slab that the network sees, if it sees no more."""
    if not isinstance(backend, Preprocessing) or backend.slab is None:
        return case
    assert case.reference is not None
    prepared = backend.prepare(case)
    everything = torch.zeros(len(prepared.volume), 2, *prepared.grid.size)
    everything[:, 1] = 1
    return replace(case, reference=case.reference * (prepared.to_native(everything) > 0))


def finite_mean(values: Iterable[float]) -> float:
    """Return the mean of the finite numbers; NaN without any."""
    there = [value for value in values if math.isfinite(value)]
    return math.fsum(there) / len(there) if there else math.nan


def _pairs(
    prediction: LabelArray, reference: LabelArray, structures: Structures, whole: bool
) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Return the masks of each structure in prediction and reference."""
    pairs = {
        name: ((prediction == one).astype(np.uint8), (reference == other).astype(np.uint8))
        for name, (one, other) in structures.items()
    }
    if whole:
        pairs[WHOLE] = ((prediction > 0).astype(np.uint8), (reference > 0).astype(np.uint8))
    return pairs


def _mean(each: list[Score]) -> Score:
    columns = zip(*map(astuple, each), strict=True)
    return Score(**dict(zip((entry.name for entry in fields(Score)), map(finite_mean, columns), strict=True)))
