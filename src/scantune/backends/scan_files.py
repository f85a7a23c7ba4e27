"""Files of a scan for tools of other frameworks, which read files themselves."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scantune.scans.case import Case

NIFTI = (".nii", ".nii.gz")


@contextmanager
def files_of(case: Case, endings: Sequence[str] = NIFTI) -> Iterator[list[str]]:
    """Give one file per channel of a scan: its own files, or temporary NIfTI files.

    A scan has temporary files if its own hold several channels or have other endings, or if it was changed after it was
    read, as by a brain mask.

    Args:
        case: The scan.
        endings: Endings of files that the tool reads.
    """
    if len(case.files) == len(case.channels) and all(str(file).endswith(tuple(endings)) for file in case.files):
        yield [str(file) for file in case.files]
        return
    with tempfile.TemporaryDirectory() as folder:
        named = {f"{number:04d}.nii": image for number, image in enumerate(case.channels)}
        yield [write_temporary(Path(folder) / name, image, case) for name, image in named.items()]


def write_temporary(path: Path, array: NDArray[np.generic], case: Case) -> str:
    """Write voxels `(x, y, z)` on the grid of a scan to a NIfTI file, and return its name."""
    import nibabel

    nibabel.save(nibabel.Nifti1Image(array, case.affine), path)
    return str(path)
