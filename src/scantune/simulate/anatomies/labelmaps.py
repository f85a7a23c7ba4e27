"""Real label maps, given by the user, as templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.scans.case import LabelMap
from scantune.scans.io import read_labels
from scantune.simulate.anatomies.brain import LABELS, TISSUES, folds
from scantune.simulate.atlas import Atlas
from scantune.simulate.subject import Region
from scantune.simulate.template import Template, Variation

_NAMES = {
    1: ("cerebral WM", "white"),
    2: ("cerebral GM", "cortex"),
    3: ("cerebellar WM", "white"),
    4: ("cerebellar GM", "cortex"),
    5: ("thalamus", "deep grey"),
    6: ("hippocampus", "cortex"),
    7: ("amygdala", "cortex"),
    8: ("ventricles", "CSF"),
    9: ("caudate", "deep grey"),
    10: ("putamen", "deep grey"),
    11: ("pallidum", "deep grey"),
    12: ("ventral DC", "brain stem"),
    13: ("CSF", "CSF"),
    14: ("brain stem", "brain stem"),
}

TISSUE_SCHEME: dict[int, Region] = {
    value: next(region for region in TISSUES if region.tissue == tissue) for value, (_, tissue) in _NAMES.items()
}
"""The paper's 14 brain structures, taken together to the tissues CSF, grey and white matter."""

STRUCTURE_SCHEME: dict[int, Region] = {
    value: Region(name, tissue, name, texture=0.0 if tissue == "CSF" else 1.0)
    for value, (name, tissue) in _NAMES.items()
}
"""The paper's 14 brain structures, each a structure of its own."""

VENTRICLES = 8
"""Label of the ventricles in that scheme."""

BRAIN_VARIATION = Variation(
    sharpness=(1.2, 1.8), folding=(0.2, 0.5), folding_length=1.5, fluid=(-1.2, 0.2), softness=0.6
)
"""How brains differ from the label maps they are made from."""

BODY_VARIATION = Variation(softness=0.6, stripping=None)
"""For label maps of anything else: only the shape differs."""

_MARGIN = 3  # voxels kept around the brain in plane
_SPARE = 8.0  # mm at both ends of the map that deformations may need
_CLOSING = 3  # voxels; in-plane gaps of the map up to twice as wide are filled with CSF


def label_maps(
    source: str | Path | Iterable[LabelMap],
    scheme: Mapping[int, Region] = TISSUE_SCHEME,
    ventricles: int = VENTRICLES,
    variation: Variation = BRAIN_VARIATION,
) -> Atlas:
    """Create subjects from real label maps.

    Args:
        source: A folder with NIfTI label maps, or label maps already read.
        scheme: The region that each label value stands for; values that are not named are outside the body.
        ventricles: The label about which subjects differ by swelling; none do where it does not occur.
        variation: How much subjects differ from the maps; by default as brains do.

    Raises:
        InputError: There is no label map, or one holds none of the labels.
    """
    if isinstance(source, (str, Path)):
        files = sorted(path for path in Path(source).glob("*") if path.name.endswith((".nii", ".nii.gz")))
        if not files:
            raise InputError(f"{source} must be a folder with NIfTI label maps, but holds none. Check the path.")
        source = [read_labels(path) for path in files]
    regions = _ordered(scheme)
    templates = tuple(_template(one, scheme, regions, ventricles, variation) for one in source)
    return Atlas(regions, folds(regions), _values(scheme, regions), templates, (1.0,) * len(templates))


def _ordered(scheme: Mapping[int, Region]) -> tuple[Region, ...]:
    """Return the regions of a scheme, each once, in the order of the brain's tissues."""
    order = [region.tissue for region in TISSUES]
    ranks = {region: order.index(region.tissue) if region.tissue in order else len(order) for region in scheme.values()}
    return tuple(sorted(ranks, key=lambda region: ranks[region]))


def _values(scheme: Mapping[int, Region], regions: tuple[Region, ...]) -> dict[str, int]:
    """Label value of each structure: the map's own where it is one of the map's labels, otherwise the tissues'."""
    if set(regions) == set(TISSUES):
        return dict(LABELS)
    return {region.structure: value for value, region in scheme.items() if region.structure}


def _template(
    source: LabelMap, scheme: Mapping[int, Region], regions: tuple[Region, ...], ventricles: int, variation: Variation
) -> Template:
    labels, spacing = _upright(source)
    table = np.full(int(labels.max()) + 1, -1)
    for value, region in scheme.items():
        if value < len(table):
            table[value] = regions.index(region)
    index = table[labels]
    if not (index >= 0).any():
        raise InputError(
            f"{source.name} must hold labels of the scheme ({', '.join(map(str, scheme))}), but none of them "
            "occurs. Give the region of each of its labels."
        )
    where = np.nonzero((index >= 0).any(0))
    rows, columns = (slice(max(int(i.min()) - _MARGIN, 0), int(i.max()) + _MARGIN + 1) for i in where)
    index, labels = index[:, rows, columns], labels[:, rows, columns]
    fluids = [number for number, region in enumerate(regions) if region.tissue == "CSF"]
    if variation.stripping is not None and fluids:
        index = np.where((index < 0) & _closed(index >= 0), fluids[-1], index)
    fractions = np.stack([np.where(index == region, 255, 0) for region in range(len(regions))]).astype(np.uint8)
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
        variation,
    )


def _upright(source: LabelMap) -> tuple[NDArray[np.integer], tuple[float, float, float]]:
    """Return the map as `(z, y, x)` pointing up, forward, right, and its voxel edges in mm."""
    from nibabel.orientations import apply_orientation, io_orientation

    turn = io_orientation(source.affine)
    edges = np.empty(3)
    edges[turn[:, 0].astype(int)] = source.spacing
    x, y, z = edges.tolist()
    return np.ascontiguousarray(apply_orientation(source.labels, turn).transpose(2, 1, 0)), (z, y, x)


def _closed(inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask with gaps filled slice by slice: cisterns and sulci that a map leaves out hold CSF."""
    from scipy import ndimage

    disc = np.hypot(*np.mgrid[-_CLOSING : _CLOSING + 1, -_CLOSING : _CLOSING + 1]) <= _CLOSING
    padded = np.pad(inside, ((0, 0), (_CLOSING, _CLOSING), (_CLOSING, _CLOSING)))
    closed = [ndimage.binary_fill_holes(ndimage.binary_closing(one, disc)) for one in padded]
    return np.stack(closed)[:, _CLOSING:-_CLOSING, _CLOSING:-_CLOSING]


def _halves(mask: NDArray[np.bool_], spacing: tuple[float, ...], half: list[float]) -> torch.Tensor:
    """Return the centres `(n, 3)` in mm of the left and the right part of a mask, as far as they exist."""
    at = np.argwhere(mask) * np.array(spacing) - np.array(half)
    sides = [at[at[:, 2] < 0], at[at[:, 2] >= 0]]
    return torch.tensor(np.array([side.mean(0) for side in sides if len(side)]).reshape(-1, 3), dtype=torch.float32)
