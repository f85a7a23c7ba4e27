"""Data files that text headers name: MetaImage and NRRD may keep their voxels in files beside the header.

A header is input like any other, so it may name only regular files in its own folder or below. Links that the user
put there are followed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from scantune.errors import ScanError

LARGEST_HEADER = 2**20
"""Bytes of a text header. Longer ones are refused where the name of the data file must be found."""

_META, _NRRD, _PAIR = (".mha", ".mhd"), (".nrrd", ".nhdr"), ".hdr"
_META_ENTRY = re.compile(rb"ElementDataFile\s*[=:]?[^\S\r\n]*([^\r\n]*)", re.IGNORECASE)
_META_LINE = re.compile(rb"^[^\S\n]*ElementDataFile\s*[=:]", re.MULTILINE)
_NRRD_ENTRY = re.compile(rb"^[^\S\n]*data ?file[^\S\n]*:[^\S\n]*([^\r\n]*)", re.MULTILINE | re.IGNORECASE)
_NRRD_END = re.compile(rb"\r?\n\r?\n")
_HERE = ("local",)
_LIST = re.compile(r"LIST\b", re.IGNORECASE)
_PATTERN = re.compile(r"^(.*%[0-9]*d.*?)((?:\s+-?\d+){3,4})$")
_MOST_FILES = 10_000


def data_files(path: Path) -> list[Path]:
    """List the files, besides a header itself, that hold the voxels of an image.

    Args:
        path: An image file. Formats that are complete in one file have no others.

    Raises:
        ScanError: The header names a file that is no regular file in its folder or below.
    """
    ending = path.suffix.lower()
    if not path.is_file():
        return []
    if ending == _PAIR:
        pair = [path.with_suffix(".img"), path.with_suffix(".img.gz"), path.with_suffix(".IMG")]
        return [file for file in pair if file.is_file()][:1]
    if ending in _META:
        names = _names(_meta_entries(path))
    elif ending in _NRRD:
        names = _names(_nrrd_entries(path))
    else:
        return []
    return [_checked(path, name) for name in names]


def content_hash(path: Path) -> str:
    """Return a short hash of what a file with its data files, or the files of a folder, hold; empty if unreadable."""
    digest = hashlib.sha256()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path, *_readable_data_files(path)]
        for file in files:
            if file.is_file():
                with file.open("rb") as stream:
                    while chunk := stream.read(2**20):
                        digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()[:16]


def joint_hash(files: Sequence[Path], part: str | None = None) -> str:
    """Return a short hash of what all files of a scan hold, in their order; empty if one is unreadable.

    Args:
        files: The files, or folders.
        part: What is taken of them, such as one of several series. None for all.
    """
    hashes = [content_hash(file) for file in files]
    if not all(hashes):
        return ""
    if part is not None:
        hashes.append(part)
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]


def _readable_data_files(path: Path) -> list[Path]:
    """Return the data files of an image, or none if the reader is going to refuse it."""
    try:
        return data_files(path)
    except ScanError:
        return []


def _start(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(LARGEST_HEADER)


def _meta_entries(path: Path) -> list[str]:
    """Return the values of all entries that may name the voxels, with the lines after a list."""
    start = _start(path)
    line = _META_LINE.search(start)
    if line is None and len(start) == LARGEST_HEADER:
        raise _too_long(path)
    end = len(start)
    if line is not None:
        found = _META_ENTRY.search(start, line.start())
        assert found is not None
        is_list = _LIST.match(_text(found.group(1)))
        end = len(start) if is_list else found.end()
    entries = list(_META_ENTRY.finditer(start, 0, end))
    return _with_lists(start, entries)


def _nrrd_entries(path: Path) -> list[str]:
    start = _start(path)
    blank = _NRRD_END.search(start)
    if blank is None and len(start) == LARGEST_HEADER:
        raise _too_long(path)
    end = len(start) if blank is None else blank.start()
    return _with_lists(start[:end], list(_NRRD_ENTRY.finditer(start, 0, end)))


def _with_lists(header: bytes, entries: Iterable[re.Match[bytes]]) -> list[str]:
    """Return the values of entries; of a list those of the lines after it."""
    values: list[str] = []
    for entry in entries:
        value = _text(entry.group(1))
        if not _LIST.match(value):
            values.append(value)
        else:
            values += [line for line in map(_text, header[entry.end() :].splitlines()) if line]
    return values[:_MOST_FILES]


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape").strip()


def _names(values: Iterable[str]) -> Iterator[str]:
    """Yield file names, with the numbers of patterns filled in."""
    for value in values:
        if not value or value.lower() in _HERE:
            continue
        pattern = _PATTERN.match(value)
        if pattern is None:
            yield value
            continue
        first, last, step = map(int, pattern.group(2).split()[:3])
        numbers = range(first, last + (1 if step > 0 else -1), step) if step else range(0)
        for number in numbers[:_MOST_FILES]:
            try:
                yield pattern.group(1) % number
            except (TypeError, ValueError):
                yield pattern.group(1)


def _checked(path: Path, name: str) -> Path:
    """Return the path of a data file.

    Raises:
        ScanError: It lies elsewhere, or is no regular file.
    """
    plain, windows = PurePosixPath(name), PureWindowsPath(name)
    if plain.is_absolute() or windows.drive or windows.root or ".." in (*plain.parts, *windows.parts) or "\0" in name:
        raise ScanError(
            f"The header {path} must name a data file in its own folder, but names {name[:200]!r}. Put the file beside "
            "the header and name it without a folder."
        )
    file = path.parent / name
    try:
        regular = file.is_file()
    except (OSError, ValueError):
        regular = False
    if not regular:
        raise ScanError(
            f"The header {path} names the data file {name[:200]!r}, which is not a regular file there. Copy the file "
            "that belongs to the header beside it."
        )
    return file


def _too_long(path: Path) -> ScanError:
    return ScanError(
        f"{path} must name its data file within the first {LARGEST_HEADER} bytes, but does not. It is damaged: export "
        "the scan again."
    )
