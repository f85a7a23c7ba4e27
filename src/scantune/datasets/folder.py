"""Any images and labels: two file patterns, paired by the names of their files."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from scantune.errors import InputError
from scantune.filenames import split_name
from scantune.scans import Case, read_labels, read_scan


@dataclass(frozen=True)
class Pair:
    """An image file and its label map."""

    image: Path
    labels: Path


def pairs(images: str, labels: str) -> list[Pair]:
    """Pairs the files of two patterns by what their names have in common, in order of name.

    The name of a file is what the pattern's `*` stands for, or the file's own name without its ending and closing word
    (`_labels`, `_seg`, ...) where the pattern has none.
    """
    found, references = _named(images), _named(labels)
    for pattern, files in ((images, found), (labels, references)):
        if not files:
            raise InputError(f"No file matches {pattern}; check the pattern, and the folder it is looked for in.")
    lone = sorted(found.keys() ^ references.keys())
    if lone:
        raise InputError(
            f"{len(lone)} of the files of {images} and {labels} have no partner (first: {lone[0]}); every image needs "
            "a label map of the same name. Remove the lone files, or narrow the patterns."
        )
    return [Pair(found[name], references[name]) for name in sorted(found)]


def read(pair: Pair, allowed: Collection[int]) -> Case:
    """Reads an image with its label map, which must lie on the same grid and hold known labels only."""
    return read_scan(pair.image).with_reference(read_labels(pair.labels, allowed))


def _named(pattern: str) -> dict[str, Path]:
    root = Path(pattern).anchor or "."
    relative = str(Path(pattern).relative_to(root)) if Path(pattern).anchor else pattern
    before, star, after = Path(pattern).name.partition("*")
    names: dict[str, Path] = {}
    for path in sorted(Path(root).glob(relative)):
        name = path.name.removeprefix(before).removesuffix(after) if star else split_name(path)[0]
        if name in names:
            raise InputError(f"{names[name]} and {path} have the same name {name}; give every scan a name of its own.")
        names[name] = path
    return names
