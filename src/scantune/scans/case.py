"""Scans and label maps in memory, and the check that two of them share a grid."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scantune.errors import ScanError

if TYPE_CHECKING:
    from scantune.scans.nifti import GridHeader

LARGEST_SHIFT = 0.25
"""Voxels along each axis by which the grids of two files may differ and still count as one. From half a voxel on, a
label would belong to a neighbour of its voxel."""


class ImageGrid:
    """Voxels on a grid in space: the base of scans and label maps."""

    name: str
    affine: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of voxels along the array's axes."""
        raise NotImplementedError

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Return the edge lengths of a voxel along the array's axes, in mm."""
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0).tolist()
        return x, y, z

    @property
    def voxel_volume(self) -> float:
        """Return the volume of one voxel in mm^3, also on sheared grids."""
        return float(abs(np.linalg.det(self.affine[:3, :3])))


@dataclass(frozen=True, eq=False)
class LabelMap(ImageGrid):
    """Integer label map.

    Attributes:
        name: File name without the image extensions.
        labels: Labels `(x, y, z)`, unsigned, in the file's own axis order.
        affine: Voxel to world, `(4, 4)`, RAS+ in mm.
    """

    name: str
    labels: NDArray[np.integer]
    affine: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of voxels along the array's axes."""
        return self.labels.shape


@dataclass(frozen=True, eq=False)
class Case(ImageGrid):
    """One 3D scan of one subject.

    Attributes:
        name: Stem of the output files, such as `sub-01_T1w`.
        image: Intensities `(x, y, z)`, float32, in the file's own axis order.
        affine: Voxel to world, `(4, 4)`, float64, RAS+ in mm.
        reference: Integer label map `(x, y, z)` on the same grid.
        subject: The person. The scan's name if nothing else is known.
        site: Site of acquisition.
        split: Part of the data set that the scan belongs to.
        header: Grid of the NIfTI file that the scan was read from. None for scans from elsewhere.
        remarks: Sentences on what was repaired when the scan was read.
        warnings: Sentences on what looks wrong about its grid.
        others: Intensities `(x, y, z)` of further channels on the same grid.
        files: The files that the scan was read from, in the order of the channels. Empty if they hold something else.
        dicom: Its DICOM files: one for each slice along the third axis, or one with all of them.
    """

    name: str
    image: NDArray[np.float32]
    affine: NDArray[np.float64]
    reference: NDArray[np.integer] | None = None
    subject: str = ""
    site: str = ""
    split: str = ""
    header: GridHeader | None = None
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    others: tuple[NDArray[np.float32], ...] = ()
    files: tuple[Path, ...] = ()
    dicom: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of voxels along the array's axes."""
        return self.image.shape

    @property
    def channels(self) -> tuple[NDArray[np.float32], ...]:
        """Return the intensities `(x, y, z)` of all channels."""
        return (self.image, *self.others)

    def with_image(self, image: NDArray[np.float32]) -> Case:
        """Return the scan with the intensities `(x, y, z)` of one channel alone."""
        return dataclasses.replace(self, image=image, others=())

    def with_reference(self, reference: LabelMap) -> Case:
        """Return the scan with a reference, which must lie on its grid.

        Raises:
            ScanError: The reference lies on another grid.
        """
        require_same_grid(reference, self)
        return dataclasses.replace(self, reference=reference.labels)

    def stripped(self, brain_mask: Case) -> Case:
        """Return the scan with 0 outside a brain mask, which must lie on its grid and is above 0 in the brain.

        It names no files, which hold another scan.

        Raises:
            ScanError: The mask lies on another grid, or the scan is 0 within it.
        """
        require_same_grid(brain_mask, self)
        kept = brain_mask.image > 0
        if not self.image[kept].any():
            raise ScanError(
                f"{brain_mask.name} must be a brain mask of {self.name}, above 0 in the brain, but leaves nothing of "
                "it. Check the mask."
            )
        image, *others = (np.where(kept, channel, np.float32(0)) for channel in self.channels)
        return dataclasses.replace(self, image=image, others=tuple(others), files=())


def require_same_grid(one: ImageGrid, other: ImageGrid) -> None:
    """Check that two volumes lie on the same grid, up to `LARGEST_SHIFT` voxels at every corner.

    Raises:
        ScanError: Their shapes differ, or their corners lie too far apart.
    """
    if one.shape != other.shape:
        raise ScanError(
            f"{one.name} must lie on the grid of {other.name}, but has shape {one.shape}, not {other.shape}. "
            "Check that the two belong together, or resample one onto the other first."
        )
    if grid_shift(one, other) > LARGEST_SHIFT:
        apart = np.linalg.norm((one.affine - other.affine) @ _corners(one), axis=0).max()
        raise ScanError(
            f"{one.name} must lie on the grid of {other.name}, but is up to {apart:.3g} mm away from it. "
            "Check that the two belong together, or resample one onto the other first."
        )


def grid_shift(one: ImageGrid, other: ImageGrid) -> float:
    """Return the largest distance between the corners of two grids of one shape, in voxels along an axis."""
    corners = _corners(one)
    return float(np.abs(np.linalg.solve(other.affine, one.affine @ corners) - corners).max())


def _corners(grid: ImageGrid) -> NDArray[np.int64]:
    """Return the homogeneous voxel coordinates of the corners, `(4, 8)`."""
    return np.array(list(itertools.product(*[(0, n - 1) for n in grid.shape], [1]))).T
