"""File names: images, the scans that they hold, and label maps.

The scan of a label map is its file name without the image extension and without one suffix for the kind of file
(`LABEL_SUFFIXES`: `_seg`, `_source_seg`, `_labels`, `_gt`, ...).
"""

import re
from collections.abc import Iterable
from pathlib import Path

from scantune.errors import InputError

IMAGE_ENDINGS = (".nii.gz", ".nii", ".mha", ".mhd", ".nrrd", ".nhdr", ".hdr")
"""Endings of images in a folder. A file that the user names may have any other."""

IMAGE_SUFFIX = "_image"
"""Suffix of scans beside their label maps, as `scantune simulate` writes them."""

DEFORMATION_SUFFIX = "_deformation"
"""Suffix of deformations, which are neither scans nor label maps."""

SOURCE_SUFFIX = "_source_seg"
LABEL_SUFFIXES = (
    SOURCE_SUFFIX,
    "_segmentation",
    "_seg",
    "_dseg",
    "_labels",
    "_label",
    "_tissue",
    "_mask",
    "_gt",
    "_ref",
)
"""Suffixes that are not part of a scan's name. Longer ones come before those that they end in."""


def scan_name(path: Path) -> str:
    """Return the stem of a scan's outputs: the file name without image extensions, or a folder's name."""
    if path.is_dir():
        return path.resolve().name
    return Path(path.name.removesuffix(".gz").removesuffix(".GZ")).stem


def images_in(folder: Path) -> list[Path]:
    """List the image files of a folder by name, hidden files and subfolders left out.

    Raises:
        InputError: The folder cannot be read.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error
    return [p for p in files if p.name.lower().endswith(IMAGE_ENDINGS) and not p.name.startswith(".")]


def split_name(path: Path) -> tuple[str, str]:
    """Split a label map's stem into the scan's name and the suffix, which may be empty."""
    stem = scan_name(path)
    for word in LABEL_SUFFIXES:
        if stem.lower().endswith(word) and len(stem) > len(word):
            return stem[: -len(word)], word
    return stem, ""


def file_word(structure: str) -> str:
    """Return the name of a structure as file names have it."""
    return re.sub(r"[^\w-]+", "-", structure).strip("-") or "structure"


def is_deformation(path: Path) -> bool:
    """Return whether a file name is that of a deformation."""
    return scan_name(path).lower().endswith(DEFORMATION_SUFFIX)


def listed_names(paths: Iterable[Path], most: int = 3) -> str:
    """Return the first file names in words, and how many more there are."""
    names = [path.name for path in paths]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no images") + more
