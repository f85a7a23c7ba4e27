"""Pictures of a few slices, for print and for browsers that cannot run the viewer."""

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scantune.pages.base import CaseView
from scantune.pages.volumes import AXES, Cutout, to_base64
from scantune.plots.colours import WRONG, structure_colours

SHOWN = 3
"""So many slices, evenly over the structures' extent."""

DIFFERENCES = {"repaired": "#009e73", "made worse": WRONG, "still wrong": "#e69f00"}
"""Colours of voxels that are wrong before or after, where there is a reference."""

CHANGED = {"changed": WRONG}
"""Of voxels that adaptation changed, where there is none."""

_OPACITY = 0.6
_MOST_PIXELS = 320  # along an edge


def difference_colours(view: CaseView) -> dict[str, str]:
    """What kinds of differences a page tells apart, and their colours."""
    return CHANGED if view.reference is None else DIFFERENCES


def colour_tables(view: CaseView, cutout: Cutout) -> dict[str, list[str]]:
    """For each way to show the label maps, the colour of every code; empty where it is clear."""
    colours = {view.labels[name]: colour for name, colour in structure_colours(view.labels).items()}
    tables = {
        name: [colours.get(int(value), "") for value in cutout.combinations[:, number]]
        for number, name in enumerate(view.maps)
    }
    tables["Differences"] = [_difference([int(value) for value in row]) for row in cutout.combinations]
    return tables


def _difference(row: list[int]) -> str:
    before, after, *known = row
    if not known:
        return CHANGED["changed"] if before != after else ""
    if before == after:
        return DIFFERENCES["still wrong"] if after != known[0] else ""
    if after == known[0]:
        return DIFFERENCES["repaired"]
    return DIFFERENCES["made worse" if before == known[0] else "still wrong"]


def middle_slice(cutout: Cutout, plane: str) -> int:
    """The slice with most of the last map, which is the reference where there is one; the middle one of nothing."""
    axis = AXES[plane]
    found = (cutout.labels(-1) > 0).sum(axis=tuple(other for other in range(3) if other != axis))
    return int(found.argmax()) if found.any() else cutout.image.shape[axis] // 2


def shown_slices(cutout: Cutout, plane: str) -> list[int]:
    """Slices to print, evenly over the structures' extent, their ends left out."""
    axis = AXES[plane]
    seen = np.flatnonzero((cutout.codes > 0).any(axis=tuple(other for other in range(3) if other != axis)))
    first, last = (int(seen[0]), int(seen[-1])) if seen.size else (0, cutout.image.shape[axis] - 1)
    places = np.linspace(first, last, SHOWN + 2)[1:-1]
    return sorted({round(float(place)) for place in places})


def slice_pictures(cutout: Cutout, tables: Mapping[str, list[str]], plane: str, number: int) -> dict[str, str]:
    """One slice as data addresses of PNG: the scan alone, then each table laid over it."""
    grey = _lying(cutout.image, plane, number)
    codes = _lying(cutout.codes, plane, number)
    every = max(1, -(-max(grey.shape) // _MOST_PIXELS))
    grey, codes = grey[::every, ::every], codes[::every, ::every]
    plain = np.repeat(grey[..., None], 3, axis=2)
    pictures = {"Scan": _png(plain)}
    for name, table in tables.items():
        colours = np.array(
            [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] if colour else [0, 0, 0] for colour in table]
        )
        opacity = _OPACITY * np.array([bool(colour) for colour in table])[codes][..., None]
        pictures[name] = _png(np.rint((1 - opacity) * plain + opacity * colours[codes]).astype(np.uint8))
    return pictures


def aspect(cutout: Cutout, plane: str) -> float:
    """Width over height of a slice, in mm."""
    size = [edge * n for edge, n in zip(cutout.spacing, cutout.image.shape, strict=True)]
    width, height = {"axial": (0, 1), "coronal": (0, 2), "sagittal": (1, 2)}[plane]
    return float(size[width] / size[height])


def _lying(volume: NDArray[np.unsignedinteger], plane: str, number: int) -> NDArray[np.unsignedinteger]:
    """A slice `(rows, columns)` as radiologists look at it: superior or anterior up, the patient's right left."""
    lying: NDArray[np.unsignedinteger] = np.take(volume, number, AXES[plane]).T[::-1, ::-1]
    return lying


def _png(picture: NDArray[np.uint8]) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, picture, format="png")
    return f"data:image/png;base64,{to_base64(buffer.getvalue())}"
