"""Whether a MetaImage file can be given to SimpleITK, whose reader looks at neither the axes nor the packed voxels.

With more axes than ten it writes beyond its memory: it crashes, or goes on for minutes. Of packed voxels that are
damaged it gives those that came before the damage, and for the others what lies in memory.
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
_LAST, _HERE = b"ElementDataFile", b"LOCAL"
_MOST = 10
_LONGEST = 2**20  # bytes of a header, and of what is unpacked at a time
_ANY_PACKING = zlib.MAX_WBITS | 32  # with the header of zlib or of gzip


def require_axes(path: Path) -> None:
    """Check that a MetaImage file, where it is one, has a number of axes.

    Raises:
        ScanError: It has not.
    """
    for told in _values(_header(path), b"NDims"):
        try:
            known = float(told) in range(1, _MOST + 1)
        except ValueError:
            known = False
        if not known:
            raise ScanError(
                f"{path} must have 1 to {_MOST} axes, but the entry NDims of its header tells another number: it is "
                "damaged. Repair the header, or export the scan again."
            )


def require_unpacked(path: Path, voxels: NDArray[Any]) -> None:
    """Check that the voxels of a MetaImage file, where it is one and they are packed, are what SimpleITK read.

    Args:
        path: The file.
        voxels: What was read, of any shape.

    Raises:
        ScanError: They are damaged, or something else was read.
    """
    header = _header(path)
    if not any(value[:1] in (b"T", b"t", b"1") for value in _values(header, b"CompressedData")):
        return
    try:
        with _voxels(path, header) as stream:
            unpacked = b"".join(_unpacked(stream))[: voxels.nbytes]
    except (zlib.error, EOFError, OSError, ValueError):
        unpacked = b""
    if unpacked not in (voxels.tobytes(), voxels.byteswap().tobytes()):
        raise ScanError(
            f"{path} has packed voxels that are damaged or cut short, or its header does not tell their size "
            "(CompressedDataSize). Copy it, or export the scan, again."
        )


def _header(path: Path) -> bytes:
    """The text before the voxels, with the entry that tells where they are; nothing of other formats."""
    if path.suffix.lower() not in _ENDINGS or not path.is_file():
        return b""
    with path.open("rb") as stream:
        start = stream.read(_LONGEST)
    place = start.find(_LAST)
    return start if place < 0 else start[: start.find(b"\n", place) + 1 or None]


def _values(header: bytes, name: bytes) -> list[bytes]:
    """What a header says under a name, as often as it does."""
    return [value.strip() for found, value in _ENTRY.findall(header) if found == name]


def _voxels(path: Path, header: bytes) -> BinaryIO:
    """The file with the voxels, at their first byte."""
    where = (_values(header, _LAST) or [b""])[-1]
    here = where in (_HERE, b"Local", b"local")
    stream = (path if here else path.parent / where.decode()).open("rb")
    skipped = [int(value) for value in _values(header, b"HeaderSize")[-1:]]
    stream.seek((len(header) if here else 0) + max([0, *skipped]))
    return stream


def _unpacked(stream: BinaryIO) -> Iterator[bytes]:
    """What a stream unpacks to, by parts.

    Raises:
        EOFError: It ends before its mark of the end.
        zlib.error: It is damaged.
    """
    packing = zlib.decompressobj(_ANY_PACKING)
    while not packing.eof:
        packed = packing.unconsumed_tail or stream.read(_LONGEST)
        if not packed:
            raise EOFError
        yield packing.decompress(packed, _LONGEST)
