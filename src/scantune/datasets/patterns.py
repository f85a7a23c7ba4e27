"""File patterns: the files that match, the names of their scans, and pairs of files of two patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scantune.errors import InputError
from scantune.scans.names import split_name

SITE_PLACEHOLDER = "{site}"
"""Part of a pattern that stands for the name of a site."""


@dataclass(frozen=True)
class PatternMatch:
    """File that matches a pattern.

    Attributes:
        path: The file.
        site: Text that `{site}` stands for.
    """

    path: Path
    site: str = ""


def pair_files(
    images: str, labels: str = "", root: Path = Path()
) -> list[tuple[str, PatternMatch, PatternMatch | None]]:
    """Pair the files of two patterns by the common part of their names, in order of name.

    Args:
        images: Pattern of the images.
        labels: Pattern of the label maps. Empty without references.
        root: Folder where the patterns start.

    Raises:
        InputError: A pattern matches nothing, a file has no partner, or two have the same name.
    """
    found = match_pattern(images, root)
    references = match_pattern(labels, root) if labels else {}
    for pattern, files in ((images, found), (labels, references)):
        if pattern and not files:
            raise InputError(f"No file matches {pattern} in {root.absolute()}. Check the pattern, and the folder.")
    lone = sorted(found.keys() ^ references.keys()) if labels else []
    if lone:
        raise InputError(
            f"{len(lone)} of the files of {images} and {labels} have no partner: {', '.join(lone)}. Every image needs "
            "a label map of the same name. Remove the lone files, or narrow the patterns."
        )
    return [(name, found[name], references.get(name)) for name in sorted(found)]


def find_partners(names: Iterable[str], pattern: str, root: Path = Path()) -> dict[str, Path]:
    """Return the file of a pattern for each of several scans, by name. Other files of the pattern are left out.

    Raises:
        InputError: Scans have no such file. The message names them all.
    """
    found = match_pattern(pattern, root)
    without = sorted(set(names) - found.keys())
    if without:
        raise InputError(
            f"{len(without)} scans have no file of {pattern}: {', '.join(without)}. Add the files, or leave "
            "out the scans."
        )
    return {name: found[name].path for name in names}


def match_pattern(pattern: str, root: Path = Path()) -> dict[str, PatternMatch]:
    """Return the files of a pattern that starts in a folder, by the names of their scans.

    Raises:
        InputError: The text is not a pattern, or two files have the same name.
    """
    whole = Path(pattern).expanduser()
    if whole.is_absolute():
        root = Path(whole.anchor)
        whole = whole.relative_to(root)
    relative = whole.as_posix()
    try:
        paths = sorted(path for path in root.glob(relative.replace(SITE_PLACEHOLDER, "*")) if path.is_file())
    except (ValueError, IndexError) as error:  # the latter for an empty pattern, in Python 3.11
        raise InputError(f"{pattern} is not a file pattern ({error}). Write one such as data/*_T1w.nii.gz.") from error
    names: dict[str, PatternMatch] = {}
    for path in paths:
        name, site = _starred(relative, path.relative_to(root).as_posix())
        name = name or split_name(path)[0]
        if name in names:
            raise InputError(
                f"{names[name].path} and {path} have the same name {name}. Give every scan a name of its own."
            )
        names[name] = PatternMatch(path, site)
    return names


def _starred(pattern: str, path: str) -> tuple[str, str]:
    """Return what the stars and `{site}` of a pattern stand for in a path, each text once, and the site by itself."""
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "([^/]*)").replace(r"\?", "[^/]")
    first, *others = expression.split(re.escape(SITE_PLACEHOLDER))
    # A second {site} must match the same text. The first is as short as possible, so that CS_* is the site CS.
    expression = first + "".join((r"(?P=site)" if n else "(?P<site>[^/]+?)") + part for n, part in enumerate(others))
    found = re.fullmatch(expression, path)
    if not found:
        return "", ""
    return "_".join(dict.fromkeys(found.groups())), found.groupdict().get("site", "")
