"""The scan on its page: the viewer, pictures of a few slices that stand in for it, and the volumes of both.

Volumes are cropped, in 8 bits, reoriented to RAS+, as gzipped NIfTI in base64. The label maps of a scan are stored as
one volume of codes. Each code is a combination of labels that occurs, so that a viewer shows any of the maps, and their
differences, by another table of colours.
"""

import base64
import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.pages.base import CaseView
from scantune.plots.colours import ERROR_COLOUR, structure_colours
from scantune.scans.grid import Orientation

MARGIN = 25.0
"""Millimetres shown around the structures."""

CLOSE_MARGIN = 6.0
"""Millimetres around the structures in the pictures of a gallery."""

MAX_VOXELS = 4_000_000
"""Larger volumes are downsampled, because browsers without a GPU draw them in software."""

MAX_BYTES = 2_000_000
"""Size of both gzipped volumes. With the viewer and in base64 they stay within the 5 MB of a page."""

MAX_TABLE_KEYS = 2**20
"""Largest number of possible combinations that are found by a table. Sorting takes ten times as long."""

AXES = {"axial": 2, "coronal": 1, "sagittal": 0}
"""Array axis of the slices of a plane, in a volume in RAS+."""

STILLS = 3
"""Number of slices shown as pictures, evenly over the extent of the structures."""

DIFFERENCES = {"repaired": "#009e73", "made worse": ERROR_COLOUR, "still wrong": "#e69f00"}
"""Colours of voxels that are wrong before or after adaptation, if the scan has a reference."""

CHANGED = {"changed": ERROR_COLOUR}
"""Colour of voxels that adaptation changed, for scans without a reference."""

_OPACITY = 0.6
_MAX_EDGE = 320  # pixels


@dataclass(frozen=True, eq=False)
class Cutout:
    """The part of a scan that a page shows, in RAS+.

    Attributes:
        image: Intensities `(x, y, z)`, 0 to 255.
        codes: Rows of `combinations`, `(x, y, z)`.
        combinations: Labels `(codes, maps)` in the order of `CaseView.maps`.
        spacing: Voxel edges in mm.
        whole: True if it is the whole scan.
        downsampling: Number of the scan's voxels in one of these, along x, y and z.
    """

    image: NDArray[np.uint8]
    codes: NDArray[np.unsignedinteger]
    combinations: NDArray[np.integer]
    spacing: tuple[float, ...]
    whole: bool
    downsampling: tuple[int, ...] = (1, 1, 1)

    def labels(self, number: int) -> NDArray[Any]:
        """Return one of the label maps `(x, y, z)`."""
        labels: NDArray[Any] = self.combinations[:, number][self.codes]
        return labels

    def packed(self) -> tuple[bytes, bytes]:
        """Return image and codes as gzipped NIfTI, without any text of the scan's header."""
        return self._nifti(self.image), self._nifti(self.codes)

    def _nifti(self, array: NDArray[Any]) -> bytes:
        import nibabel

        # Without a time in the gzip header, the same scan gives the same bytes.
        return gzip.compress(nibabel.Nifti1Image(array, np.diag([*self.spacing, 1.0])).to_bytes(), 6, mtime=0)


@dataclass(frozen=True)
class Packed:
    """The two volumes of a page as base64 of gzipped NIfTI, and the arrays that they hold."""

    image: str
    codes: str
    cutout: Cutout


def pack(view: CaseView) -> Packed:
    """Crop a scan to its structures, and pack it; halve its resolution until it is small enough."""
    region = _region(view)
    while region.image.size > MAX_VOXELS:
        region = region.halved()
    cutout = region.cutout()
    image, codes = cutout.packed()
    while len(image) + len(codes) > MAX_BYTES:
        region = region.halved()
        cutout = region.cutout()
        image, codes = cutout.packed()
    return Packed(to_base64(image), to_base64(codes), cutout)


@dataclass(frozen=True, eq=False)
class _Region:
    """A part of a scan in RAS+: intensities and label maps `(x, y, z)`, and voxel edges in mm."""

    image: NDArray[Any]
    maps: list[NDArray[Any]]
    spacing: tuple[float, ...]
    whole: bool
    downsampling: tuple[int, ...] = (1, 1, 1)

    def halved(self) -> "_Region":
        """Merge pairs of voxels along the axis of highest resolution: mean intensity, and the labels of the first."""
        edges = [edge if n > 1 else np.inf for edge, n in zip(self.spacing, self.image.shape, strict=True)]
        axis = int(np.argmin(edges))
        even = self.image.shape[axis] // 2 * 2

        def part(array: NDArray[Any], start: int) -> NDArray[Any]:
            every = [slice(None)] * 3
            every[axis] = slice(start, even, 2)
            return array[tuple(every)]

        doubled = np.array([2 if other == axis else 1 for other in range(3)])
        return _Region(
            (part(self.image, 0).astype(np.float32) + part(self.image, 1)) / 2,
            [part(labels, 0) for labels in self.maps],
            tuple((doubled * self.spacing).tolist()),
            self.whole,
            tuple((doubled * self.downsampling).tolist()),
        )

    def cutout(self) -> Cutout:
        """Convert intensities to grey levels, and label maps to codes."""
        flat = np.stack([labels.ravel().astype(np.int64) for labels in self.maps], axis=1)
        combinations, codes = _coded(flat)
        kind = np.uint8 if len(combinations) <= 256 else np.uint16
        return Cutout(
            _to_bytes(self.image),
            codes.reshape(self.image.shape).astype(kind),
            combinations,
            self.spacing,
            self.whole,
            self.downsampling,
        )


def close_up(view: CaseView) -> dict[str, str]:
    """Draw the slice with most of the structures, cropped to them: data URLs of the scan and each label map."""
    cutout = _region(view, CLOSE_MARGIN).cutout()
    tables = {name: table for name, table in colour_tables(view, cutout).items() if name in view.maps}
    return slice_pictures(cutout, tables, view.plane, middle_slice(cutout, view.plane))


def _region(view: CaseView, margin: float = MARGIN) -> _Region:
    """Crop a scan to its structures and a margin in mm; return all of it if it has no structure."""
    orientation = Orientation.closest(view.affine, "axial")
    spacing = np.linalg.norm(view.affine[:3, :3], axis=0)[list(orientation.axes)][::-1]

    def to_ras(array: NDArray[Any]) -> NDArray[Any]:
        # Slices run inferior to superior, rows anterior to posterior, columns right to left.
        return orientation.to_slices(array).transpose(2, 1, 0)[::-1, ::-1]

    image, maps = to_ras(view.image), [to_ras(labels) for labels in view.maps.values()]
    found = maps[0] > 0
    for labels in maps[1:]:
        found |= labels > 0
    window = _window(found, spacing, margin)
    cut = image[window]
    return _Region(cut, [labels[window] for labels in maps], tuple(spacing.tolist()), cut.size == image.size)


def to_base64(data: bytes) -> str:
    """Encode bytes as text that HTML need not escape."""
    return base64.b64encode(data).decode("ascii")


def _coded(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Encode rows of labels.

    Args:
        rows: Labels `(voxels, maps)`.

    Returns:
        The distinct rows `(codes, maps)`, background in all maps first, and the code of each voxel `(voxels,)`.
    """
    base = int(rows.max(initial=0)) + 1
    powers = base ** np.arange(rows.shape[1])[::-1]
    keys = rows @ powers
    if base ** rows.shape[1] <= MAX_TABLE_KEYS:
        found = np.bincount(keys, minlength=1) > 0
        found[0] = True
        return np.flatnonzero(found)[:, None] // powers % base, (np.cumsum(found) - 1)[keys]
    distinct, codes = np.unique(np.append(keys, 0), return_inverse=True)
    return distinct[:, None] // powers % base, codes[:-1]


def _window(found: NDArray[np.bool_], spacing: NDArray[np.float64], edge: float) -> tuple[slice, ...]:
    """Return the bounding box of a mask with a margin in mm, or the whole grid if the mask is empty."""
    window = []
    for axis in range(3):
        seen = np.flatnonzero(found.any(axis=tuple(other for other in range(3) if other != axis)))
        margin = int(np.ceil(edge / spacing[axis]))
        window.append(slice(max(int(seen[0]) - margin, 0), int(seen[-1]) + 1 + margin) if seen.size else slice(None))
    return tuple(window)


def _to_bytes(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert intensities to grey levels between the 0.5 and 99.5 percentiles of the values that are not 0."""
    content = image[image != 0]
    low, high = np.percentile(content if content.size else image, [0.5, 99.5])
    low = 0.0 if image.min() >= 0 else low
    scaled = (image.astype(np.float32) - low) / max(float(high - low), 1e-12)
    return np.asarray(np.rint(255 * scaled.clip(0, 1)), np.uint8)


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


def viewer_values(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the values of the templates `viewer.html` and `stills.html`."""
    slice_aspect = aspect(cutout, view.plane)
    return {
        "views": ["Scan", *tables],
        "plane": view.plane,
        "planes": list(AXES),
        "slice_aspect": slice_aspect,
        "screen_aspect": min(max(slice_aspect, 0.8), 1.6),
        "structure_colours": structure_colours(view.labels),
        "difference_colours": difference_colours(view),
        "voxel": " \N{MULTIPLICATION SIGN} ".join(f"{edge:.3g}" for edge in cutout.spacing),
        "margin": "" if cutout.whole else f"{MARGIN:g}",
        "downsampled": max(cutout.downsampling) > 1,
        "stills": [
            {"number": number + 1, "pictures": slice_pictures(cutout, tables, view.plane, number)}
            for number in shown_slices(cutout, view.plane)
        ],
    }


def viewer_data(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the data that the viewer's script reads as JSON."""
    names = {value: name for name, value in view.structures.items()}
    return {
        "tables": tables,
        "maps": list(view.maps),
        "names": [[names.get(int(value), "") for value in row] for row in cutout.combinations],
        "shape": list(cutout.image.shape),
        "plane": view.plane,
        "slices": {plane: middle_slice(cutout, plane) for plane in AXES},
    }
