"""Checks of MetaImage files, since SimpleITK's reader checks neither the number of axes nor compressed voxels.

With more than ten axes the reader writes beyond its memory: it crashes, or runs for minutes. From damaged compressed
voxels it returns those before the damage, and for the others whatever lies in memory.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from scantune.errors import ScanError

_ENDINGS = (".mha", ".mhd")  # by which SimpleITK knows the format
_ENTRY = re.compile(rb"^[^\S\n]*(\w+)\s*[=:][^\S\n]*([^\r\n]*)", re.MULTILINE)
_DATA_FILE, _SAME_FILE = b"ElementDataFile", b"LOCAL"
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
    """Check that SimpleITK read the voxels of a file as they are, if it is a compressed MetaImage.

    Args:
        path: The file.
        voxels: Voxels that SimpleITK read, of any shape.

    Raises:
        ScanError: The voxels are damaged, or SimpleITK read others.
    """
    header = _header(path)
    if not any(value[:1] in (b"T", b"t", b"1") for value in _values(header, b"CompressedData")):
        return
    try:
        with _open_voxels(path, header) as stream:
            unpacked = b"".join(_decompress(stream))[: voxels.nbytes]
    except (zlib.error, EOFError, OSError, ValueError):
        unpacked = b""
    if unpacked not in (voxels.tobytes(), voxels.byteswap().tobytes()):
        raise ScanError(
            f"{path} has compressed voxels that are damaged or cut short, or its header does not give their size "
            "(CompressedDataSize). Copy it, or export the scan, again."
        )


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
