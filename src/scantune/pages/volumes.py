"""Volumes in a page: cropped, in 8 bits, reoriented to RAS+, as gzipped NIfTI in base64.

The label maps of a scan are stored as one volume of codes. Each code is a combination of labels that occurs, so that a
viewer shows any of the maps, and their differences, by another table of colours.
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
"""Millimetres shown around the structures."""

MAX_VOXELS = 4_000_000
"""Larger volumes are downsampled, because browsers without a GPU draw them in software."""

MAX_BYTES = 2_000_000
"""Size of both gzipped volumes. With the viewer and in base64 they stay within the 5 MB of a page."""

MAX_TABLE_KEYS = 2**20
"""Largest number of possible combinations that are found by a table. Sorting takes ten times as long."""

AXES = {"axial": 2, "coronal": 1, "sagittal": 0}
"""Array axis of the slices of a plane, in a volume in RAS+."""


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


def _region(view: CaseView) -> _Region:
    """Crop a scan to its structures and their margin; return all of it if it has no structure."""
    orientation = Orientation.closest(view.affine, "axial")
    spacing = np.linalg.norm(view.affine[:3, :3], axis=0)[list(orientation.axes)][::-1]

    def to_ras(array: NDArray[Any]) -> NDArray[Any]:
        # Slices run inferior to superior, rows anterior to posterior, columns right to left.
        return orientation.to_slices(array).transpose(2, 1, 0)[::-1, ::-1]

    image, maps = to_ras(view.image), [to_ras(labels) for labels in view.maps.values()]
    found = maps[0] > 0
    for labels in maps[1:]:
        found |= labels > 0
    window = _window(found, spacing)
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


def _window(found: NDArray[np.bool_], spacing: NDArray[np.float64]) -> tuple[slice, ...]:
    """Return the bounding box of a mask with its margin, or the whole grid if the mask is empty."""
    window = []
    for axis in range(3):
        seen = np.flatnonzero(found.any(axis=tuple(other for other in range(3) if other != axis)))
        margin = int(np.ceil(MARGIN / spacing[axis]))
        window.append(slice(max(int(seen[0]) - margin, 0), int(seen[-1]) + 1 + margin) if seen.size else slice(None))
    return tuple(window)


def _to_bytes(image: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert intensities to grey levels between the 0.5 and 99.5 percentiles of the values that are not 0."""
    content = image[image != 0]
    low, high = np.percentile(content if content.size else image, [0.5, 99.5])
    low = 0.0 if image.min() >= 0 else low
    scaled = (image.astype(np.float32) - low) / max(float(high - low), 1e-12)
    return np.asarray(np.rint(255 * scaled.clip(0, 1)), np.uint8)
