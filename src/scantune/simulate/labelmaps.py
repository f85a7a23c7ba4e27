"""Real label maps, given by the user, as templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans import LabelMap, read_labels
from scantune.simulate.anatomy import Anatomy
from scantune.simulate.brain import FOLDS, TISSUES
from scantune.simulate.template import Template, Variation

STRUCTURES: dict[int, str] = {
    1: "white",  # cerebral white matter
    2: "cortex",  # cerebral grey matter
    3: "white",  # cerebellar white matter
    4: "cortex",  # cerebellar grey matter
    5: "deep grey",  # thalamus
    6: "cortex",  # hippocampus
    7: "cortex",  # amygdala
    8: "CSF",  # ventricles
    9: "deep grey",  # caudate
    10: "deep grey",  # putamen
    11: "deep grey",  # pallidum
    12: "brain stem",  # ventral diencephalon
    13: "CSF",
    14: "brain stem",
}
"""Tissue of each label in the scheme of the paper's 14 brain structures (0 is background)."""

VENTRICLES = 8
"""Label of the ventricles in that scheme."""

_VARIATION = Variation(sharpness=(1.2, 1.8), folding=(0.2, 0.5), folding_length=1.5, fluid=(-1.2, 0.2), softness=0.6)
_MARGIN = 3  # voxels kept around the brain in plane
_SPARE = 8.0  # mm at both ends of the map that deformations may need
_CLOSING = 3  # voxels; in-plane gaps of the map up to twice as wide are filled with CSF


def label_maps(
    source: str | Path | Iterable[LabelMap],
    tissues: Mapping[int, str] = STRUCTURES,
    ventricles: int = VENTRICLES,
) -> Anatomy:
    """Subjects made from real label maps of the brain.

    Args:
        source: A folder with NIfTI label maps, or label maps already read.
        tissues: The tissue of each label value; values that are not named are outside the brain.
        ventricles: The label about which subjects differ by swelling; none do where it does not occur.

    Raises:
        InputError: There is no label map, or a tissue is unknown.
    """
    unknown = sorted(set(tissues.values()) - set(TISSUES))
    if unknown:
        raise InputError(f"Unknown tissue {', '.join(unknown)}. Available: {', '.join(TISSUES)}.")
    if isinstance(source, (str, Path)):
        files = sorted(path for path in Path(source).glob("*") if path.name.endswith((".nii", ".nii.gz")))
        if not files:
            raise InputError(f"{source} must be a folder with NIfTI label maps, but holds none. Check the path.")
        source = [read_labels(path) for path in files]
    templates = tuple(_template(one, tissues, ventricles) for one in source)
    return Anatomy(TISSUES, FOLDS, templates, (1.0,) * len(templates))


def _template(source: LabelMap, tissues: Mapping[int, str], ventricles: int) -> Template:
    labels, spacing = _upright(source)
    table = np.full(int(labels.max()) + 1, -1)
    for value, tissue in tissues.items():
        if value < len(table):
            table[value] = TISSUES.index(tissue)
    index = table[labels]
    if not (index >= 0).any():
        raise InputError(
            f"{source.name} must hold labels of the brain ({', '.join(map(str, tissues))}), but none of them "
            "occurs. Give the tissue of each of its labels."
        )
    where = np.nonzero((index >= 0).any(0))
    rows, columns = (slice(max(int(i.min()) - _MARGIN, 0), int(i.max()) + _MARGIN + 1) for i in where)
    index, labels = index[:, rows, columns], labels[:, rows, columns]
    index = np.where((index < 0) & _closed(index >= 0), TISSUES.index("CSF"), index)
    fractions = np.stack([np.where(index == tissue, 255, 0) for tissue in range(len(TISSUES))]).astype(np.uint8)
    filled = np.nonzero((index >= 0).any((1, 2)))[0]
    half = [edge * (size - 1) / 2 for edge, size in zip(spacing, index.shape, strict=True)]
    low, high = (float(end) * spacing[0] - half[0] for end in (filled.min(), filled.max()))
    spare = min(_SPARE, (high - low) / 4)
    return Template(
        torch.from_numpy(fractions),
        spacing,
        (-half[0], -half[1], -half[2]),
        (low + spare, high - spare),
        _halves(labels == ventricles, spacing, half),
        _VARIATION,
    )


def _upright(source: LabelMap) -> tuple[NDArray[np.integer], tuple[float, float, float]]:
    """The map as `(z, y, x)` pointing up, forward, right, and its voxel edges in mm."""
    from nibabel.orientations import apply_orientation, io_orientation

    turn = io_orientation(source.affine)
    edges = np.empty(3)
    edges[turn[:, 0].astype(int)] = source.spacing
    x, y, z = edges.tolist()
    return np.ascontiguousarray(apply_orientation(source.labels, turn).transpose(2, 1, 0)), (z, y, x)


def _closed(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The mask with gaps filled slice by slice: cisterns and sulci that a map leaves out hold CSF."""
    from scipy import ndimage

    disc = np.hypot(*np.mgrid[-_CLOSING : _CLOSING + 1, -_CLOSING : _CLOSING + 1]) <= _CLOSING
    padded = np.pad(inside, ((0, 0), (_CLOSING, _CLOSING), (_CLOSING, _CLOSING)))
    closed = [ndimage.binary_fill_holes(ndimage.binary_closing(one, disc)) for one in padded]
    return np.stack(closed)[:, _CLOSING:-_CLOSING, _CLOSING:-_CLOSING]


def _halves(mask: NDArray[np.bool_], spacing: tuple[float, ...], half: list[float]) -> torch.Tensor:
    """Centres `(n, 3)` in mm of the left and the right part of a mask, where there is one."""
    at = np.argwhere(mask) * np.array(spacing) - np.array(half)
    sides = [at[at[:, 2] < 0], at[at[:, 2] >= 0]]
    return torch.tensor(np.array([side.mean(0) for side in sides if len(side)]).reshape(-1, 3), dtype=torch.float32)
