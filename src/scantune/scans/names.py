"""File names: images, the scans that they hold, and references that fit predictions.

The scan of a label map is its file name without the image extension and without one suffix for the kind of file
(`LABEL_SUFFIXES`: `_seg`, `_source_seg`, `_labels`, `_gt`, ...). A prediction
and a reference fit when these names are equal, letter by letter. Where a folder holds both
`NAME_labels.nii.gz` and a bare `NAME.nii.gz`, the bare file is taken for the scan itself and left out. So is
`NAME_image.nii.gz`, whose prediction `NAME_image_seg.nii.gz` fits `NAME_labels.nii.gz`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class PredictionPair:
    """Prediction and its reference.

    Attributes:
        name: Name of the scan.
        prediction: Label map to score.
        reference: Label map taken as the truth.
        source: Whether the file name is that of a prediction without adaptation (`NAME_source_seg`).
    """

    name: str
    prediction: Path
    reference: Path
    source: bool


@dataclass(frozen=True)
class PredictionPairs:
    """Predictions with their references, and the files that are left over."""

    pairs: list[PredictionPair]
    lone_predictions: list[Path] = field(default_factory=list)
    lone_references: list[Path] = field(default_factory=list)


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


def find_scans(paths: Iterable[Path]) -> list[Path]:
    """Replace folders of images by the scans in them. Files and DICOM folders stay as they are.

    All images of a folder are scans, except those whose name ends in one of `LABEL_SUFFIXES`, such as `_seg`, or in
    `_deformation`.

    Raises:
        InputError: A folder cannot be read, or has label maps alone.
    """
    scans: list[Path] = []
    for path in paths:
        images = images_in(path) if path.is_dir() else []
        if images and _holds_dicom(path):
            images = []
        found = [image for image in images if not split_name(image)[1] and not _is_deformation(image)]
        if images and not found:
            raise InputError(
                f"The folder {path} must hold scans, but all images in it are named as label maps or deformations "
                f"({_listed(images)}). Give the files themselves if they are scans."
            )
        scans += found or [path]
    return scans


def pair_predictions(predictions: Path, references: Path) -> PredictionPairs:
    """Find the reference of every prediction. Two single files belong together whatever their names.

    Raises:
        InputError: Something is missing, nothing fits, or a name fits twice.
    """
    for path in (predictions, references):
        if not path.exists():
            raise InputError(f"{path} does not exist: expected a label map or a folder of them. Check the path.")
    if predictions.is_dir() != references.is_dir():
        raise InputError(
            f"{predictions} and {references} must be two label maps or two folders of label maps, but one is "
            "a file and the other a folder. Give two of a kind."
        )
    if predictions.is_file():
        name, word = split_name(predictions)
        return PredictionPairs([PredictionPair(name, predictions, references, word == SOURCE_SUFFIX)])
    ours, theirs = _label_maps(predictions), _label_maps(references)
    pairs = [
        PredictionPair(name, path, theirs[name, False], source)
        for (name, source), path in ours.items()
        if (name, False) in theirs
    ]
    if not pairs:
        raise InputError(
            f"No label map in {predictions} ({_listed(ours.values())}) has a reference of the same name in "
            f"{references} ({_listed(theirs.values())}). Name the reference of NAME_seg.nii.gz "
            "NAME.nii.gz or NAME_labels.nii.gz, or give two files instead of two folders."
        )
    used = {path for pair in pairs for path in (pair.prediction, pair.reference)}
    return PredictionPairs(
        pairs,
        [path for path in ours.values() if path not in used],
        [path for path in theirs.values() if path not in used],
    )


def _holds_dicom(folder: Path) -> bool:
    from scantune.scans.dicom import is_dicom

    return any(is_dicom(path) for path in folder.iterdir() if not path.name.lower().endswith(IMAGE_ENDINGS))


def split_name(path: Path) -> tuple[str, str]:
    """Split a label map's stem into the scan's name and the suffix, which may be empty."""
    stem = scan_name(path)
    for word in LABEL_SUFFIXES:
        if stem.lower().endswith(word) and len(stem) > len(word):
            return stem[: -len(word)], word
    return stem, ""


def _is_deformation(path: Path) -> bool:
    return scan_name(path).lower().endswith(DEFORMATION_SUFFIX)


def _label_maps(folder: Path) -> dict[tuple[str, bool], Path]:
    """Collect the label maps of a folder by scan and by whether they are predictions without adaptation."""
    chosen: dict[tuple[str, bool], Path] = {}
    # Bare names come last, so that they give way to names with a closing word.
    images = [path for path in images_in(folder) if not _is_deformation(path)]
    maps = [path for path in images if not scan_name(path).endswith(IMAGE_SUFFIX)] or images
    for path in sorted(maps, key=lambda path: not split_name(path)[1]):
        name, word = split_name(path)
        name = name.removesuffix(IMAGE_SUFFIX)
        key = (name, word == SOURCE_SUFFIX)
        if key not in chosen:
            chosen[key] = path
        elif word or not split_name(chosen[key])[1]:
            raise InputError(
                f"{folder} must hold one label map per scan, but both {chosen[key].name} and {path.name} "
                f"fit the scan {name}. Move one of them to another folder."
            )
    return dict(sorted(chosen.items()))


def _listed(paths: Iterable[Path], most: int = 3) -> str:
    names = [path.name for path in paths]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no images") + more
