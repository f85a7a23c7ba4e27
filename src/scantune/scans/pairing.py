"""Pairs of predictions and references, found by their file names.

The scan of a prediction `NAME_seg.nii.gz` is `NAME`. Its reference is, in this order, the label map of exactly that
name (`NAME_labels.nii.gz`, `NAME_gt.nii.gz`, ...), one of its short name, a bare `NAME.nii.gz`, or a bare file of its
short name. A short name lacks what only says which image it is: nnU-Net's channel (`_0000`), the contrast (`_T1w`,
`_FLAIR`), and the BIDS entities of derivatives (`_desc-manual`, `_space-T1w`). Letters must be equal, capitals
included. A scan that was segmented is never its own reference.

Structures that may overlap have a file each: that of the structure `core` is compared with the file `NAME_seg_core` or
`NAME_core` (with any suffix), and otherwise with the label map of the scan.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scantune.errors import InputError
from scantune.scans.data_files import content_hash
from scantune.scans.names import (
    IMAGE_ENDINGS,
    IMAGE_SUFFIX,
    SOURCE_SUFFIX,
    file_word,
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
        structure: Name of the only structure of the prediction; empty for a label map of all.
        alike: Whether the reference holds that structure alone too.
    """

    name: str
    prediction: Path
    reference: Path
    source: bool
    structure: str = ""
    alike: bool = False


@dataclass(frozen=True)
class Mask:
    """File of a folder with one structure of a scan, as the folder's manifest names it.

    Attributes:
        path: The file.
        name: Name of the scan.
        structure: Name of the structure.
        source: Whether this is a prediction without adaptation.
    """

    path: Path
    name: str
    structure: str
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
        structure: Name of its only structure; empty for a label map of all.
    """

    path: Path
    name: str
    word: str
    structure: str = ""

    @property
    def source(self) -> bool:
        """Return whether this is a prediction without adaptation."""
        return self.word == SOURCE_SUFFIX


def pair_predictions(
    predictions: Path,
    references: Path,
    pattern: str | None = None,
    scans: Collection[str] = (),
    masks: Sequence[Mask] = (),
) -> PredictionPairs:
    """Find the reference of every prediction. Two single files belong together whatever their names.

    Args:
        predictions: A label map or a folder of label maps.
        references: The same. Subfolders are searched if no label map lies in the folder itself.
        pattern: Path of a reference in the folder, with `{name}` for the scan: `{name}_labels.nii.gz`, and maybe with
            `{structure}`. By default references are found by the names of this module.
        scans: Content hashes of the scans that were segmented, which are no references.
        masks: The predictions that hold one structure each. Label maps of their scans are left out.

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
        return PredictionPairs([_pair_of_files(predictions, references, masks)])
    named = {mask.path for mask in masks}
    split = {(mask.name, mask.source) for mask in masks}
    files = [path for path in images_in(predictions) if path not in named] if masks else images_in(predictions)
    ours = [each for each in _predictions_in(predictions, files) if (each.name, each.source) not in split]
    ours += [_LabelMap(mask.path, mask.name, SOURCE_SUFFIX * mask.source, mask.structure) for mask in masks]
    if pattern is not None:
        return _by_pattern(ours, references, pattern)
    theirs = [each for each in _references_in(references) if each.word or not _is_scan(each.path, scans)]
    pairs = [pair for each in ours if (pair := _pair(each, theirs, references)) is not None]
    found = {pair.prediction for pair in pairs}
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
        [each.path for each in ours if each.path not in found],
        [each.path for each in theirs if each.path not in used],
    )


def short_name(name: str) -> str:
    """Return the name of a scan without channel, contrast and BIDS entities of derivatives."""
    plain = _DERIVED.sub("", name) if name.startswith("sub-") else name
    plain = _CONTRAST.sub("", _CHANNEL.sub("", plain))
    return plain or name


def _pair_of_files(prediction: Path, reference: Path, masks: Iterable[Mask]) -> PredictionPair:
    """Return the pair of two single files; a mask's reference is a mask if its name says so."""
    mask = next((mask for mask in masks if mask.path == prediction), None)
    if mask is None:
        name, word = split_name(prediction)
        return PredictionPair(name, prediction, reference, word == SOURCE_SUFFIX)
    alike = split_name(reference)[0].endswith(f"_{file_word(mask.structure)}")
    return PredictionPair(mask.name, prediction, reference, mask.source, mask.structure, alike)


def _pair(ours: _LabelMap, theirs: Sequence[_LabelMap], folder: Path) -> PredictionPair | None:
    """Return a prediction with its reference, if there is one."""
    if ours.structure:
        for name in dict.fromkeys((ours.name, short_name(ours.name))):
            for between in ("_seg_", "_"):
                reference = _reference_of(f"{name}{between}{file_word(ours.structure)}", theirs, folder)
                if reference is not None:
                    return PredictionPair(ours.name, ours.path, reference, ours.source, ours.structure, alike=True)
    reference = _reference_of(ours.name, theirs, folder)
    return None if reference is None else PredictionPair(ours.name, ours.path, reference, ours.source, ours.structure)


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
    alike = "{structure}" in pattern
    for each in ours:
        words = dict.fromkeys((each.structure, file_word(each.structure)) if alike and each.structure else ("",))
        names = dict.fromkeys((each.name, short_name(each.name)))
        tried = [
            folder / pattern.replace("{name}", name).replace("{structure}", word) for name in names for word in words
        ]
        reference = next((path for path in tried if path.is_file()), None)
        if reference is None:
            alone.append(each.path)
        else:
            single = alike and bool(each.structure)
            pairs.append(PredictionPair(each.name, each.path, reference, each.source, each.structure, single))
    if not pairs:
        raise InputError(
            f"--reference {pattern!r} fits no file in {folder}, such as {tried[-1].name}. The name of a scan is that "
            f"of its prediction without _seg. The folder holds {listed_names(images_in(folder))}."
        )
    return PredictionPairs(pairs, alone)


def _predictions_in(folder: Path, files: Iterable[Path]) -> list[_LabelMap]:
    """List the predictions among the files of a folder, one for each scan and kind.

    Raises:
        InputError: Two files fit one scan.
    """
    chosen: dict[tuple[str, bool], _LabelMap] = {}
    # Bare names come last, so that they give way to names with a suffix.
    for each in sorted(_label_maps(files), key=lambda each: not each.word):
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
