"""The ICBM152 average brain that nilearn's wheel carries, as a template.

The atlas: V. S. Fonov et al., NeuroImage 54 (2011) 313-327; GM and WM are averages over 152 adults.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from scantune.scans.case import Case
from scantune.simulate.anatomies.brain import LABELS, TISSUES, folds
from scantune.simulate.atlas import Atlas
from scantune.simulate.template import Template, Variation

_CENTRE = (8.0, -18.0, 0.0)  # mm (z, y, x), MNI; the middle of the slices and of the brain
_COVERAGE = (-42.0, 70.0)  # mm, MNI z; from the top of the medulla to just below the vertex
_MARGIN = 3  # voxels kept around the brain

# Ellipsoids (centre, radii) in MNI mm (x, y, z); mirrored at x = 0. The atlas's maps mix grey and white
# matter evenly in these structures, so their borders are given by position.
_DEEP_GREY = (
    ((11.5, -18.0, 8.0), (11.5, 14.5, 10.5)),  # thalamus
    ((24.0, 2.0, 1.0), (10.0, 20.0, 12.5)),  # putamen and pallidum
    ((12.5, 13.0, 6.0), (7.5, 13.0, 15.0)),  # head of the caudate, accumbens
    ((16.0, -4.0, 21.0), (5.5, 18.0, 6.0)),  # body of the caudate
)
_BRAIN_STEM = (
    ((0.0, -24.0, -12.0), (17.0, 12.5, 11.0)),  # midbrain
    ((0.0, -27.0, -32.0), (19.0, 16.0, 20.0)),  # pons
    ((0.0, -40.0, -56.0), (13.0, 14.0, 22.0)),  # medulla
)
_VENTRICLES = (
    (16.0, -2.0, 13.0),
    (16.0, -2.0, -13.0),
    (14.0, -38.0, 24.0),
    (14.0, -38.0, -24.0),
)  # (z, y, x)

_VARIATION = Variation(sharpness=(1.3, 2.5), folding=(0.8, 1.5), folding_length=2.0, fluid=(0.5, 2.5))


def icbm152_case(values: Mapping[str, int]) -> Case:
    """Return the average brain as a scan: T1-weighted image without skull, in MNI space, with reference labels.

    Args:
        values: Label value of each structure (CSF, GM, WM); structures that are not named are background.
    """
    from nilearn import datasets

    atlas = icbm152()
    template = atlas.templates[0]
    z, y, x = (at + centre for at, centre in zip(template.origin, _CENTRE, strict=True))
    shares = {
        name: sum(
            part.to(torch.int32)
            for part, region in zip(template.fractions, atlas.regions, strict=True)
            if region.structure == name
        )
        for name in atlas.labels
    }
    outside = 255 - template.fractions.sum(0, dtype=torch.int32)
    likeliest = torch.stack([outside, *map(torch.as_tensor, shares.values())]).argmax(0)
    table = torch.tensor([0, *(values.get(name, 0) for name in shares)])
    image = datasets.load_mni152_template(resolution=1)
    start = [round(value) for value in np.array([x, y, z]) - image.affine[:3, 3]]
    depth, rows, columns = outside.shape
    window = tuple(slice(at, at + size) for at, size in zip(start, (columns, rows, depth), strict=True))
    affine = np.eye(4)
    affine[:3, 3] = x, y, z
    picture = np.asarray(image.dataobj, np.float32)[window] * (outside.numpy().T < 128)
    return Case("icbm152", np.ascontiguousarray(picture), affine, np.ascontiguousarray(table[likeliest].numpy().T))


@functools.lru_cache(maxsize=2)
def icbm152(resolution: int = 1) -> Atlas:
    """Create subjects from the ICBM152 average brain.

    Args:
        resolution: Voxel edge of the atlas in mm; coarser ones are for quick trials.
    """
    from nilearn import datasets

    images = [
        loader(resolution=resolution)
        for loader in (
            datasets.load_mni152_gm_template,
            datasets.load_mni152_wm_template,
            datasets.load_mni152_brain_mask,
        )
    ]
    grey, white, mask = (np.asarray(image.dataobj, dtype=np.float32).transpose(2, 1, 0) for image in images)
    first = np.asarray(images[0].affine, dtype=np.float64)[:3, 3][::-1]
    inside = mask > 0.5
    window = tuple(
        slice(max(int(where.min()) - _MARGIN, 0), int(where.max()) + _MARGIN + 1) for where in np.nonzero(inside)
    )
    start = first + resolution * np.array([part.start for part in window])
    fractions = _tissues(grey[window], white[window], inside[window], start, float(resolution))
    z, y, x = (start - _CENTRE).tolist()
    template = Template(
        torch.from_numpy(np.round(255 * fractions).astype(np.uint8)),
        (float(resolution),) * 3,
        (z, y, x),
        (_COVERAGE[0] - _CENTRE[0], _COVERAGE[1] - _CENTRE[0]),
        torch.tensor(_VENTRICLES) - torch.tensor(_CENTRE),
        _VARIATION,
    )
    return Atlas(TISSUES, folds(TISSUES), LABELS, (template,), (1.0,))


def export_atlas(path: str | Path, resolution: int = 1) -> None:
    """Write the atlas to an .npz file that `Atlas.load` reads where nilearn is not installed.

    Raises:
        InputError: The name does not end in .npz.
    """
    icbm152(resolution).save(path)


def _tissues(
    grey: NDArray[np.float32],
    white: NDArray[np.float32],
    inside: NDArray[np.bool_],
    start: NDArray[np.float64],
    step: float,
) -> NDArray[np.float32]:
    """Return fractions `(tissues, depth, height, width)` from the two maps; CSF is the rest of the brain mask."""
    z, y, x = (
        at + step * np.arange(size).reshape([-1 if axis == own else 1 for own in range(3)])
        for axis, (at, size) in enumerate(zip(start, grey.shape, strict=True))
    )
    solid = np.clip(grey + white, 0, 1)
    stem = solid * _within(_BRAIN_STEM, x, y, z)
    # Fibre tracts between the deep nuclei (the internal capsule) hold almost no grey matter: they stay white.
    nuclei = (solid - stem) * _within(_DEEP_GREY, x, y, z) * np.clip((grey - 0.1) / 0.2, 0, 1)
    left = np.divide(solid - stem - nuclei, grey + white, out=np.zeros_like(solid), where=solid > 0)
    return np.stack([1 - solid, grey * left, nuclei, white * left, stem]) * inside


def _within(
    ellipsoids: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...],
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    z: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Return 1 inside any of the ellipsoids or their mirror images and 0 outside, with a soft border of about 2 mm."""
    depth = [
        min(radii)
        * (1 - np.sqrt(((abs(x) - cx) / radii[0]) ** 2 + ((y - cy) / radii[1]) ** 2 + ((z - cz) / radii[2]) ** 2))
        for (cx, cy, cz), radii in ellipsoids
    ]
    share: NDArray[np.float32] = np.clip(0.5 + np.maximum.reduce(depth) / 2, 0, 1).astype(np.float32)
    return share
