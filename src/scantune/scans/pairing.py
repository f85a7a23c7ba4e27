"""Pairs of predictions and references, found by their file names.

The scan of a prediction `NAME_seg.nii.gz` is `NAME`. Its reference is, in this order, the label map of exactly that
name (`NAME_labels.nii.gz`, `NAME_gt.nii.gz`, ...), one of its short name, a bare `NAME.nii.gz`, or a bare file of its
short name. A short name lacks what only says which image it is: nnU-Net's channel (`_0000`), the contrast (`_T1w`,
`_FLAIR`), and the BIDS entities of derivatives (`_desc-manual`, `_space-T1w`). Letters must be equal, capitals
included. A scan that was segmented is never its own reference.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scantune.errors import InputError
from scantune.scans.data_files import content_hash
from scantune.scans.names import (
    IMAGE_ENDINGS,
    IMAGE_SUFFIX,
    SOURCE_SUFFIX,
    images_in,
    is_deformation,
    listed_names,
    scan_name,
    split_name,
)

_CONTRASTS = (
    "T1w",
    "T2w",
    "T1",
    "T2",
    "FLAIR",
    "PDw",
    "PD",
    "T2star",
    "T2starw",
    "T1c",
    "T1ce",
    "bold",
    "angio",
    "inplaneT2",
)
_CHANNEL = re.compile(r"_000\d$")
_CONTRAST = re.compile(rf"_(?:{'|'.join(_CONTRASTS)})$")
_DERIVED = re.compile(r"_(?:desc|space|res|den|label|seg|atlas)-[0-9A-Za-z]+")


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


@dataclass(frozen=True)
class _LabelMap:
    """A file that may be a label map.

    Attributes:
        path: The file.
        name: Name of its scan.
        word: Suffix for the kind of file, which may be empty.
    """

    path: Path
    name: str
    word: str

    @property
    def source(self) -> bool:
        """Return whether this is a prediction without adaptation."""
        return self.word == SOURCE_SUFFIX


def pair_predictions(
    predictions: Path, references: Path, pattern: str | None = None, scans: Collection[str] = ()
) -> PredictionPairs:
    """Find the reference of every prediction. Two single files belong together whatever their names.

    Args:
        predictions: A label map or a folder of label maps.
        references: The same. Subfolders are searched if no label map lies in the folder itself.
        pattern: Path of a reference in the folder, with `{name}` for the scan: `{name}_labels.nii.gz`. By default
            references are found by the names of this module.
        scans: Content hashes of the scans that were segmented, which are no references.

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
    ours = _predictions_in(predictions)
    if pattern is not None:
        return _by_pattern(ours, references, pattern)
    theirs = [each for each in _references_in(references) if each.word or not _is_scan(each.path, scans)]
    found = {each.path: _reference_of(each.name, theirs, references) for each in ours}
    pairs = [
        PredictionPair(each.name, each.path, reference, each.source)
        for each in ours
        if (reference := found[each.path]) is not None
    ]
    if not pairs:
        raise InputError(
            f"No label map in {predictions} ({listed_names(each.path for each in ours)}) has a reference in "
            f"{references} ({listed_names(each.path for each in theirs)}). Name the reference of "
            "NAME_seg.nii.gz NAME_labels.nii.gz, say how yours are named (--reference '{name}_truth.nii.gz'), or give "
            "two files."
        )
    used = {pair.reference for pair in pairs}
    return PredictionPairs(
        pairs,
        [each.path for each in ours if found[each.path] is None],
        [each.path for each in theirs if each.path not in used],
    )


def short_name(name: str) -> str:
    """Return the name of a scan without channel, contrast and BIDS entities of derivatives."""
    plain = _DERIVED.sub("", name) if name.startswith("sub-") else name
    plain = _CONTRAST.sub("", _CHANNEL.sub("", plain))
    return plain or name


def _reference_of(name: str, theirs: Iterable[_LabelMap], folder: Path) -> Path | None:
    """Return the best reference of a scan, or None.

    Raises:
        InputError: Two are equally good.
    """
    short = short_name(name)
    ranks: dict[int, list[Path]] = {}
    for each in theirs:
        exact, close = each.name == name, short_name(each.name) == short
        if exact or close:
            ranks.setdefault(2 * (not each.word) + (not exact), []).append(each.path)
    if not ranks:
        return None
    best = ranks[min(ranks)]
    if len(best) > 1:
        raise InputError(
            f"{folder} must hold one reference per scan, but both {best[0].name} and {best[1].name} fit the scan "
            f"{name}. Say which ones are meant (--reference '{{name}}_labels.nii.gz'), or move the others elsewhere."
        )
    return best[0]


def _by_pattern(ours: Iterable[_LabelMap], folder: Path, pattern: str) -> PredictionPairs:
    """Pair predictions with the files that a pattern names."""
    if "{name}" not in pattern or Path(pattern).is_absolute():
        raise InputError(
            f"--reference must be a path inside {folder} with {{name}} for the name of the scan, such as "
            f"'{{name}}_labels.nii.gz', but is {pattern!r}."
        )
    pairs, alone = [], []
    for each in ours:
        tried = [folder / pattern.replace("{name}", name) for name in dict.fromkeys((each.name, short_name(each.name)))]
        reference = next((path for path in tried if path.is_file()), None)
        if reference is None:
            alone.append(each.path)
        else:
            pairs.append(PredictionPair(each.name, each.path, reference, each.source))
    if not pairs:
        raise InputError(
            f"--reference {pattern!r} fits no file in {folder}, such as {tried[-1].name}. The name of a scan is that "
            f"of its prediction without _seg. The folder holds {listed_names(images_in(folder))}."
        )
    return PredictionPairs(pairs, alone)


def _predictions_in(folder: Path) -> list[_LabelMap]:
    """List the predictions of a folder, one for each scan and kind.

    Raises:
        InputError: Two files fit one scan.
    """
    chosen: dict[tuple[str, bool], _LabelMap] = {}
    # Bare names come last, so that they give way to names with a suffix.
    for each in sorted(_label_maps(images_in(folder)), key=lambda each: not each.word):
        other = chosen.setdefault((each.name, each.source), each)
        if other is not each and (each.word or not other.word):
            raise InputError(
                f"{folder} must hold one label map per scan, but both {other.path.name} and {each.path.name} "
                f"fit the scan {each.name}. Move one of them to another folder."
            )
    return [chosen[key] for key in sorted(chosen)]


def _references_in(folder: Path) -> list[_LabelMap]:
    """List what may be a reference in a folder, or below it if the folder itself holds no image."""
    images = images_in(folder) or sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name.lower().endswith(IMAGE_ENDINGS)
    )
    return [each for each in _label_maps(images) if not each.source]


def _label_maps(images: Iterable[Path]) -> list[_LabelMap]:
    """Return the label maps among images: all but deformations, and but scans beside their label maps."""
    images = [path for path in images if not is_deformation(path)]
    maps = [path for path in images if not scan_name(path).endswith(IMAGE_SUFFIX)] or images
    return [_LabelMap(path, *_name_and_word(path)) for path in maps]


def _name_and_word(path: Path) -> tuple[str, str]:
    name, word = split_name(path)
    return name.removesuffix(IMAGE_SUFFIX), word


def _is_scan(path: Path, scans: Collection[str]) -> bool:
    return bool(scans) and content_hash(path) in scans
