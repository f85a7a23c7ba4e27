"""Any images and labels: two file patterns, paired by the names of their files."""

import re
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

    The name of a file is what the pattern's `*` stand for, in folders too, or the file's own name without its ending
    and closing word (`_labels`, `_seg`, ...) where the pattern has none. `**` stands for any folders and gives no name.

    Raises:
        InputError: A pattern matches nothing, a file has no partner, or two have the same name.
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
    whole = Path(pattern).expanduser()
    root = Path(whole.anchor)
    relative = whole.relative_to(root).as_posix()
    try:
        paths = sorted(path for path in root.glob(relative) if path.is_file())
    except (ValueError, IndexError) as error:  # the latter for an empty pattern, in Python 3.11
        raise InputError(f"{pattern} is not a file pattern ({error}); write one such as data/*_T1w.nii.gz.") from error
    names: dict[str, Path] = {}
    for path in paths:
        name = _starred(relative, path.relative_to(root).as_posix()) or split_name(path)[0]
        if name in names:
            raise InputError(f"{names[name]} and {path} have the same name {name}; give every scan a name of its own.")
        names[name] = path
    return names


def _starred(pattern: str, path: str) -> str:
    """What the stars of a pattern stand for in a path, each thing once; empty where there is no star."""
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "([^/]*)").replace(r"\?", "[^/]")
    found = re.fullmatch(expression, path)
    return "_".join(dict.fromkeys(found.groups())) if found else ""
