"""What must hold of every image that the reader takes, whatever its format."""

import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuzz.base import ACCEPTED, Fault, chance, refused, require
from scantune.errors import InputError
from scantune.scans.case import Case, require_same_grid
from scantune.scans.header import FileGrid, read_grid
from scantune.scans.io import read_labels, read_scan, write_labels

Expected = NDArray[np.float32] | InputError | None
"""The voxels that a file holds beyond doubt, or that it must be refused, or that nobody can tell."""

CUT_SHORT = InputError("fewer voxels than the header tells")


def judge(rng: random.Random, path: Path, expected: Expected, out: Path) -> str:
    """Give an image to the reader, and look at what comes of it.

    Args:
        rng: Decides whether the image is also read as a label map, its header by itself, and answered by a file.
        path: The image.
        expected: What it holds, where that is known.
        out: A folder for what is written.
    """
    if chance(rng, 0.25):
        _labels_are_whole(path)
    header_too = chance(rng, 0.25)
    try:
        case = read_scan(path)
    except InputError as error:
        if isinstance(expected, np.ndarray):
            usable = np.isfinite(expected).all() and expected.min() < expected.max()
            require(not usable, f"a sound image was refused: {error}")
        if header_too:
            _grid(path)
        return refused(error)
    if isinstance(expected, InputError):
        raise Fault(f"an image was read that holds {expected}")
    if expected is not None:
        np.testing.assert_array_equal(case.image, expected)
    _sound(case)
    if header_too:
        grid = _grid(path)
        require(grid is not None, "the grid of a readable image was refused")
        assert grid is not None
        require_same_grid(grid, case)
        # A reader that takes what lies in memory for a number gives another image every time.
        np.testing.assert_array_equal(read_scan(path).image, case.image)
    if chance(rng, 0.3):
        _answered(case, out)
    return ACCEPTED


def _sound(case: Case) -> None:
    require(case.image.ndim == 3 and case.image.size, f"shape {case.image.shape}")
    require(case.image.dtype == np.float32 and np.isfinite(case.image).all(), "voxels that are not finite")
    require(case.image.min() < case.image.max(), "a constant image")
    require(np.isfinite(case.affine).all() and np.isfinite(np.linalg.inv(case.affine)).all(), f"affine {case.affine}")
    require(np.isfinite(case.spacing).all() and min(case.spacing) > 0, f"spacing {case.spacing}")


def _answered(case: Case, out: Path) -> None:
    """A label map can be written on the scan's grid and read back."""
    labels = (case.image > case.image.mean()).astype(np.uint8)
    path = out / "answer_seg.nii.gz"
    write_labels(path, labels, case)
    again = read_labels(path)
    np.testing.assert_array_equal(again.labels, labels)
    require_same_grid(again, case)
    require([file.name for file in out.iterdir()] == [path.name], "something is left beside the file that was written")
    path.unlink()


def _labels_are_whole(path: Path) -> None:
    try:
        found = read_labels(path)
    except InputError as error:
        refused(error)
        return
    require(found.labels.dtype.kind == "u" and found.labels.ndim == 3, f"labels of type {found.labels.dtype}")


def _grid(path: Path) -> FileGrid | None:
    try:
        return read_grid(path)
    except InputError as error:
        refused(error)
        return None


def decoded(data: bytes, header: int, dtype: str, shape: tuple[int, ...]) -> Expected:
    """Voxels `(x, y, z)` of raw bytes behind a header, first axis fastest; `CUT_SHORT` where there are too few."""
    kind = np.dtype(dtype)
    size = kind.itemsize * int(np.prod(shape))
    if len(data) < header + size:
        return CUT_SHORT
    with np.errstate(all="ignore"):
        return np.frombuffer(data, kind, int(np.prod(shape)), header).reshape(shape, order="F").astype(np.float32)
