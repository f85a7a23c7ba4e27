"""Checks of MetaImage files, since SimpleITK's reader checks neither the number of axes nor compressed voxels.

With more than ten axes the reader writes beyond its memory: it crashes, or runs for minutes. From damaged compressed
voxels it returns those before the damage, and for the others whatever lies in memory; so it does for slices that a list
of data files lacks.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from scantune.errors import ScanError
from scantune.scans.data_files import data_files

_ENDINGS = (".mha", ".mhd")  # by which SimpleITK knows the format
_ENTRY = re.compile(rb"^[^\S\n]*(\w+)\s*[=:][^\S\n]*([^\r\n]*)", re.MULTILINE)
_DATA_FILE, _SAME_FILE = b"ElementDataFile", b"LOCAL"
_COMPRESSED = re.compile(rb"CompressedData(?!Size)")
_LIST = re.compile(rb"^LIST\b|%", re.IGNORECASE)
_MAX_AXES = 10
_CHUNK = 2**20  # bytes of a header, and of voxels that are decompressed at once
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32


def require_axes(path: Path) -> None:
    """Check that a file, if it is MetaImage, has a sound number of axes.

    Raises:
        ScanError: The number of axes is missing, too large or no number.
    """
    for value in _values(_header(path), b"NDims"):
        try:
            known = float(value) in range(1, _MAX_AXES + 1)
        except ValueError:
            known = False
        if not known:
            raise ScanError(
                f"{path} must have 1 to {_MAX_AXES} axes, but the entry NDims of its header gives another number: it "
                "is damaged. Repair the header, or export the scan again."
            )


def require_intact(path: Path, voxels: NDArray[Any]) -> None:
    """Check that SimpleITK read the voxels of a file as they are, if it is a compressed or listed MetaImage.

    Args:
        path: The file.
        voxels: Voxels that SimpleITK read, of any shape.

    Raises:
        ScanError: The voxels are damaged, or SimpleITK read others.
    """
    header = _header(path)
    compressed = _is_compressed(path, header)
    if any(_LIST.search(value) for value in _values(header, _DATA_FILE)):
        _require_listed(path, voxels)
    elif compressed:
        _require_unpacked(path, header, voxels)


def _require_listed(path: Path, voxels: NDArray[Any]) -> None:
    """Check that the files of a list hold the voxels, one after another."""
    if b"".join(file.read_bytes() for file in data_files(path)) not in _either_order(voxels):
        raise ScanError(
            f"The header {path} lists data files, which must hold all voxels slice by slice and nothing else, but they "
            "do not. Copy all of them beside the header, or export the scan as one file."
        )


def _either_order(voxels: NDArray[Any]) -> tuple[bytes, bytes]:
    """Return the bytes of voxels, little and big end first."""
    return voxels.tobytes(), voxels.byteswap().tobytes()


def _require_unpacked(path: Path, header: bytes, voxels: NDArray[Any]) -> None:
    """Check that the voxels of a compressed file are those that SimpleITK read."""
    try:
        with _open_voxels(path, header) as stream:
            unpacked = b"".join(_decompress(stream))[: voxels.nbytes]
    except (zlib.error, EOFError, OSError, ValueError):
        unpacked = b""
    if unpacked not in _either_order(voxels):
        raise ScanError(
            f"{path} has compressed voxels that are damaged or cut short, or its header does not give their size "
            "(CompressedDataSize). Copy it, or export the scan, again."
        )


def _is_compressed(path: Path, header: bytes) -> bool:
    """Return whether the voxels are compressed.

    Raises:
        ScanError: The header gives no clear answer. SimpleITK may then take any bytes for compressed ones.
    """
    answers = [value[:1].lower() for value in _values(header, b"CompressedData")]
    if len(answers) < len(_COMPRESSED.findall(header)) or not set(answers) <= {b"t", b"1", b"f", b"0"}:
        raise ScanError(
            f"{path} must say whether its voxels are compressed (CompressedData = True or False), but its header is "
            "damaged there. Repair the header, or export the scan again."
        )
    return bool({b"t", b"1"} & set(answers))


def _header(path: Path) -> bytes:
    """Return the text before the voxels, with the entry of their place, or nothing for other formats."""
    if path.suffix.lower() not in _ENDINGS or not path.is_file():
        return b""
    with path.open("rb") as stream:
        start = stream.read(_CHUNK)
    place = start.find(_DATA_FILE)
    return start if place < 0 else start[: start.find(b"\n", place) + 1 or None]


def _values(header: bytes, name: bytes) -> list[bytes]:
    """Return all values that a header has under a name."""
    return [value.strip() for found, value in _ENTRY.findall(header) if found == name]


def _open_voxels(path: Path, header: bytes) -> BinaryIO:
    """Open the file with the voxels at their first byte."""
    where = (_values(header, _DATA_FILE) or [b""])[-1]
    here = where in (_SAME_FILE, b"Local", b"local")
    stream = (path if here else path.parent / where.decode()).open("rb")
    skipped = [int(value) for value in _values(header, b"HeaderSize")[-1:]]
    stream.seek((len(header) if here else 0) + max([0, *skipped]))
    return stream


def _decompress(stream: BinaryIO) -> Iterator[bytes]:
    """Decompress a stream part by part.

    Raises:
        EOFError: The stream ends too early.
        zlib.error: The stream is damaged.
    """
    decompressor = zlib.decompressobj(_ZLIB_OR_GZIP)
    while not decompressor.eof:
        compressed = decompressor.unconsumed_tail or stream.read(_CHUNK)
        if not compressed:
            raise EOFError
        yield decompressor.decompress(compressed, _CHUNK)
