"""FreeSurfer's own format, brought to the one reader as NIfTI."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from scantune.errors import ScanError

Volume = TypeVar("Volume")


def read_any(path: Path, read: Callable[[Path], Volume]) -> Volume:
    """Reads a scan or a label map from any format that the reader takes, or from .mgz or .mgh.

    Args:
        path: The file.
        read: `read_scan` or `read_labels`.

    Raises:
        ScanError: The file is missing or damaged, or what `read` raises, about this path.
    """
    if path.suffix.lower() not in (".mgz", ".mgh"):
        return read(path)
    with _as_nifti(path) as nifti:
        try:
            return read(nifti)
        except ScanError as error:
            raise ScanError(str(error).replace(str(nifti), str(path))) from error


@contextmanager
def _as_nifti(path: Path) -> Iterator[Path]:
    import nibabel
    import numpy as np

    try:
        image = nibabel.load(path, mmap=False)
        array = np.asarray(image.dataobj)
    except Exception as error:  # on damaged files nibabel raises whatever it stumbles over
        raise ScanError(
            f"{path} cannot be read as an image: expected FreeSurfer's mgz or mgh, but it is missing, damaged or cut "
            "short. Check it, or copy it again."
        ) from error
    with TemporaryDirectory() as folder:
        nifti = Path(folder) / f"{path.stem}.nii"
        nibabel.save(nibabel.Nifti1Image(array, image.affine), nifti)
        yield nifti
