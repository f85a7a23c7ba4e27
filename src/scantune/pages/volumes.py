"""Volumes as a page carries them: cut out, in 8 bits, turned to RAS+, gzipped NIfTI in base64.

The label maps of a scan travel as one volume of codes, each a combination of labels that occurs, so that a viewer shows
any of them, and their differences, by another table of colours.
"""

import base64
import gzip
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.pages.base import CaseView
from scantune.scans.grid import Orientation

MARGIN = 25.0
"""Millimetres that are shown around the structures."""

MOST_VOXELS = 4_000_000
"""Larger volumes are shown coarser: software without a GPU draws them, too."""

MOST_BYTES = 2_000_000
"""Of both volumes, gzipped; a page has 5 MB for base64 of these, the viewer and everything else."""

FEW_KEYS = 2**20
"""Combinations of labels that are looked up in a table; sorting takes ten times as long."""

AXES = {"axial": 2, "coronal": 1, "sagittal": 0}
"""Array axis of a plane's slices once a volume is turned to RAS+."""


@dataclass(frozen=True, eq=False)
class Cutout:
    """What of a scan is shown, turned to RAS+.

    Attributes:
        image: Intensities `(x, y, z)`, 0 to 255.
        codes: `(x, y, z)`, each a row of `combinations`.
        combinations: Labels `(codes, maps)` in the order of `CaseView.maps`.
        spacing: Voxel edges in mm.
        whole: Whether nothing was cut off.
        coarser: How many of the scan's voxels make one, along x, y and z.
    """

    image: NDArray[np.uint8]
    codes: NDArray[np.unsignedinteger]
    combinations: NDArray[np.integer]
    spacing: tuple[float, ...]
    whole: bool
    coarser: tuple[int, ...] = (1, 1, 1)

    def labels(self, number: int) -> NDArray[Any]:
        """One of the label maps `(x, y, z)` again."""
        labels: NDArray[Any] = self.combinations[:, number][self.codes]
        return labels

    def packed(self) -> tuple[bytes, bytes]:
        """Image and codes as gzipped NIfTI, without any word of the scan's header."""
        return self._nifti(self.image), self._nifti(self.codes)

    def _nifti(self, array: NDArray[Any]) -> bytes:
        import nibabel

        # The same bytes for the same scan: no time in the gzip header.
        return gzip.compress(nibabel.Nifti1Image(array, np.diag([*self.spacing, 1.0])).to_bytes(), 6, mtime=0)


@dataclass(frozen=True)
class Packed:
    """The two volumes of a page, base64 of gzipped NIfTI, and what they were made of."""

    image: str
    codes: str
    cutout: Cutout


def pack(view: CaseView) -> Packed:
    """Cut out and pack what is shown of a scan, coarser by halves until it is small enough."""
    piece = _piece(view)
    while piece.image.size > MOST_VOXELS:
        piece = piece.halved()
    cutout = piece.cutout()
    image, codes = cutout.packed()
    while len(image) + len(codes) > MOST_BYTES:
        piece = piece.halved()
        cutout = piece.cutout()
        image, codes = cutout.packed()
    return Packed(to_base64(image), to_base64(codes), cutout)


def cut_out(view: CaseView) -> Cutout:
    """What is shown of a scan at its own resolution: its structures and what is around them."""
    return _piece(view).cutout()


@dataclass(frozen=True, eq=False)
class _Piece:
    """A part of a scan, turned to RAS+: intensities and label maps `(x, y, z)`, and the edges of their voxels in mm."""

    image: NDArray[Any]
    maps: list[NDArray[Any]]
    spacing: tuple[float, ...]
    whole: bool
    coarser: tuple[int, ...] = (1, 1, 1)

    def halved(self) -> "_Piece":
        """Every two voxels along the axis with the finest ones as one: their mean, and the labels of the first."""
        edges = [edge if n > 1 else np.inf for edge, n in zip(self.spacing, self.image.shape, strict=True)]
        axis = int(np.argmin(edges))
        even = self.image.shape[axis] // 2 * 2

        def part(array: NDArray[Any], start: int) -> NDArray[Any]:
            every = [slice(None)] * 3
            every[axis] = slice(start, even, 2)
            return array[tuple(every)]

        doubled = np.array([2 if other == axis else 1 for other in range(3)])
        return _Piece(
            (part(self.image, 0).astype(np.float32) + part(self.image, 1)) / 2,
            [part(labels, 0) for labels in self.maps],
            tuple((doubled * self.spacing).tolist()),
            self.whole,
            tuple((doubled * self.coarser).tolist()),
        )

    def cutout(self) -> Cutout:
        """The same in grey levels and codes."""
        flat = np.stack([labels.ravel().astype(np.int64) for labels in self.maps], axis=1)
        combinations, codes = _coded(flat)
        kind = np.uint8 if len(combinations) <= 256 else np.uint16
        return Cutout(
            _to_bytes(self.image),
            codes.reshape(self.image.shape).astype(kind),
            combinations,
            self.spacing,
            self.whole,
            self.coarser,
        )


def _piece(view: CaseView) -> _Piece:
    """The structures and what is around them; everything where there is none."""
    orientation = Orientation.closest(view.affine, "axial")
    spacing = np.linalg.norm(view.affine[:3, :3], axis=0)[list(orientation.axes)][::-1]

    def turned(array: NDArray[Any]) -> NDArray[Any]:
        # Slices run inferior to superior, rows anterior to posterior, columns right to left.
        return orientation.to_slices(array).transpose(2, 1, 0)[::-1, ::-1]

    image, maps = turned(view.image), [turned(labels) for labels in view.maps.values()]
    found = maps[0] > 0
    for labels in maps[1:]:
        found |= labels > 0
    window = _window(found, spacing)
    cut = image[window]
    return _Piece(cut, [labels[window] for labels in maps], tuple(spacing.tolist()), cut.size == image.size)


def to_base64(data: bytes) -> str:
    """As text that HTML need not escape."""
    return base64.b64encode(data).decode("ascii")


def _coded(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows `(voxels, maps)` that differ, background throughout first, and the number of each voxel's `(voxels,)`."""
    base = int(rows.max(initial=0)) + 1
    powers = base ** np.arange(rows.shape[1])[::-1]
    keys = rows @ powers
    if base ** rows.shape[1] <= FEW_KEYS:
        found = np.bincount(keys, minlength=1) > 0
        found[0] = True
        return np.flatnonzero(found)[:, None] // powers % base, (np.cumsum(found) - 1)[keys]
    distinct, codes = np.unique(np.append(keys, 0), return_inverse=True)
    return distinct[:, None] // powers % base, codes[:-1]


def _window(found: NDArray[np.bool_], spacing: NDArray[np.float64]) -> tuple[slice, ...]:
    """The box of what was found and its surroundings; everything where nothing was."""
    window = []
    for axis in range(3):
        seen = np.flatnonzero(found.any(axis=tuple(other for other in range(3) if other != axis)))
        margin = int(np.ceil(MARGIN / spacing[axis]))
        window.append(slice(max(int(seen[0]) - margin, 0), int(seen[-1]) + 1 + margin) if seen.size else slice(None))
    return tuple(window)


def _to_bytes(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Grey levels, the 0.5 and 99.5 percentiles of what is not exactly 0 at their ends."""
    content = image[image != 0]
    low, high = np.percentile(content if content.size else image, [0.5, 99.5])
    low = 0.0 if image.min() >= 0 else low
    scaled = (image.astype(np.float32) - low) / max(float(high - low), 1e-12)
    return np.asarray(np.rint(255 * scaled.clip(0, 1)), np.uint8)
