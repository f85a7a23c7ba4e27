"""Pictures of a few slices, for print and for browsers that cannot run the viewer."""

import io
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from scantune.pages.base import CaseView
from scantune.pages.volumes import AXES, Cutout, to_base64
from scantune.plots.colours import ERROR_COLOUR, structure_colours

STILLS = 3
"""Number of slices shown as pictures, evenly over the extent of the structures."""

DIFFERENCES = {"repaired": "#009e73", "made worse": ERROR_COLOUR, "still wrong": "#e69f00"}
"""Colours of voxels that are wrong before or after adaptation, if the scan has a reference."""

CHANGED = {"changed": ERROR_COLOUR}
"""Colour of voxels that adaptation changed, for scans without a reference."""

_OPACITY = 0.6
_MAX_EDGE = 320  # pixels


def difference_colours(view: CaseView) -> dict[str, str]:
    """Return the kinds of differences that a page shows, and their colours."""
    return CHANGED if view.reference is None else DIFFERENCES


def colour_tables(view: CaseView, cutout: Cutout) -> dict[str, list[str]]:
    """Return the colour of every code for each way to show the label maps; an empty one is transparent."""
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
    """Return the slice with most labelled voxels in the last map, or the middle slice if the map is empty."""
    axis = AXES[plane]
    found = (cutout.labels(-1) > 0).sum(axis=tuple(other for other in range(3) if other != axis))
    return int(found.argmax()) if found.any() else cutout.image.shape[axis] // 2


def shown_slices(cutout: Cutout, plane: str) -> list[int]:
    """Return the slices to print, evenly over the extent of the structures without its ends."""
    axis = AXES[plane]
    seen = np.flatnonzero((cutout.codes > 0).any(axis=tuple(other for other in range(3) if other != axis)))
    first, last = (int(seen[0]), int(seen[-1])) if seen.size else (0, cutout.image.shape[axis] - 1)
    places = np.linspace(first, last, STILLS + 2)[1:-1]
    return sorted({round(float(place)) for place in places})


def slice_pictures(cutout: Cutout, tables: Mapping[str, list[str]], plane: str, number: int) -> dict[str, str]:
    """Draw one slice as PNG data URLs: the scan alone, then with each table laid over it."""
    grey = _radiological(cutout.image, plane, number)
    codes = _radiological(cutout.codes, plane, number)
    every = max(1, -(-max(grey.shape) // _MAX_EDGE))
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
    """Return width over height of a slice, both in mm."""
    size = [edge * n for edge, n in zip(cutout.spacing, cutout.image.shape, strict=True)]
    width, height = {"axial": (0, 1), "coronal": (0, 2), "sagittal": (1, 2)}[plane]
    return float(size[width] / size[height])


def _radiological(volume: NDArray[np.unsignedinteger], plane: str, number: int) -> NDArray[np.unsignedinteger]:
    """Return a slice `(rows, columns)` in radiological view: superior or anterior up, right on the left."""
    slice_: NDArray[np.unsignedinteger] = np.take(volume, number, AXES[plane]).T[::-1, ::-1]
    return slice_


def _png(picture: NDArray[np.uint8]) -> str:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, picture, format="png")
    return f"data:image/png;base64,{to_base64(buffer.getvalue())}"
