"""NRRD and MetaImage files: a text header with the voxels behind it, or in a file of their own."""

import gzip
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuzz.base import Kind, chance
from fuzz.images import Expected, decoded, judge
from fuzz.mutations import damaged, odd_lines

SHAPE = (4, 3, 2)
NRRD = """NRRD0004
type: {type}
dimension: 3
space: left-posterior-superior
sizes: 4 3 2
space directions: (1.5,0,0) (0,0.9,-0.3) (0,0.3,0.9)
kinds: domain domain domain
endian: {endian}
encoding: {encoding}
space origin: (-3.5,2,7)
"""
META = """ObjectType = Image
NDims = 3
BinaryData = True
BinaryDataByteOrderMSB = {big}
CompressedData = {packed}
TransformMatrix = 1 0 0 0 0.8 0.6 0 -0.6 0.8
Offset = -3.5 2 7
CenterOfRotation = 0 0 0
AnatomicalOrientation = RAI
ElementSpacing = 1.5 1 2.5
DimSize = 4 3 2
ElementType = {type}
"""
NRRD_FIELDS = (
    *("type", "dimension", "space", "space dimension", "sizes", "space directions", "kinds", "endian", "encoding"),
    *("space origin", "spacings", "axis mins", "thicknesses", "data file", "datafile", "line skip", "byte skip"),
    *("centers", "units", "old min", "old max", "block size", "measurement frame", "content"),
)
META_FIELDS = (
    *("ObjectType", "NDims", "BinaryData", "BinaryDataByteOrderMSB", "CompressedData", "CompressedDataSize"),
    *("TransformMatrix", "Offset", "ElementSpacing", "DimSize", "ElementType", "ElementDataFile", "HeaderSize"),
    *("ElementNumberOfChannels", "ElementSize", "Modality", "SequenceID", "ElementMin", "ElementMax", "ID"),
)
TYPES = {
    "u1": ("uchar", "MET_UCHAR"),
    "<i2": ("short", "MET_SHORT"),
    ">i2": ("short", "MET_SHORT"),
    "<u2": ("ushort", "MET_USHORT"),
    "<f4": ("float", "MET_FLOAT"),
    "<f8": ("double", "MET_DOUBLE"),
    ">f4": ("float", "MET_FLOAT"),
}


@dataclass(frozen=True)
class Seed:
    """A valid header, and the voxels that go with it."""

    ending: str
    header: str
    voxels: bytes
    dtype: str
    packed: bool

    @property
    def detached(self) -> bool:
        """Whether the voxels are in a file of their own."""
        return self.ending in (".mhd", ".nhdr")

    @property
    def pointer(self) -> str:
        """What the header's end says about where the voxels are."""
        where = "voxels.raw" + (".gz" if self.packed and self.ending == ".nhdr" else "")
        if self.ending == ".nrrd":
            return "\n"
        if self.ending == ".nhdr":
            return f"data file: {where}\n"
        return f"ElementDataFile = {where if self.detached else 'LOCAL'}\n"


class Itk(Kind):
    """One `.nrrd`, `.nhdr`, `.mha` or `.mhd` file."""

    name = "nrrd-mhd"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seeds = [
            seed(ending, dtype, packed)
            for ending in (".nrrd", ".nhdr", ".mha", ".mhd")
            for dtype in TYPES
            for packed in (False, True)
        ]

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Damages lines of the header, bytes of the header, or the voxels."""
        chosen = rng.choice(self.seeds)
        header, voxels = chosen.header, chosen.voxels
        if chance(rng, 0.5):
            fields, assign = (NRRD_FIELDS, ": ") if chosen.ending[1] == "n" else (META_FIELDS, " = ")
            header = odd_lines(rng, header, fields, assign)
        first = (header + chosen.pointer).encode()
        if chance(rng, 0.3):
            voxels = damaged(rng, voxels, rng.choice(self.seeds).voxels, len(voxels))
        whole = first == (chosen.header + chosen.pointer).encode()
        expected = self._holds(chosen, voxels) if whole else None
        if not chosen.detached:
            first += voxels
        if chance(rng, 0.4):
            before = first
            first = damaged(rng, first, rng.choice(self.seeds).header.encode(), len(header))
            expected = expected if first == before else None
        path = folder / f"scan{chosen.ending}"
        path.write_bytes(first)
        if chosen.detached and not chance(rng, 0.03):
            (folder / ("voxels.raw.gz" if chosen.packed and chosen.ending == ".nhdr" else "voxels.raw")).write_bytes(
                voxels
            )
        elif chosen.detached:
            expected = None
        out = folder / "out"
        out.mkdir()
        return judge(rng, path, expected, out)

    def _holds(self, chosen: Seed, voxels: bytes) -> Expected:
        if not chosen.packed:
            return decoded(voxels, 0, chosen.dtype, SHAPE)
        # Of packed voxels, the checksum at the end may be damaged, and the voxels whole: what was not changed is known.
        return decoded(raw(chosen), 0, chosen.dtype, SHAPE) if voxels == chosen.voxels else None


def raw(chosen: Seed) -> bytes:
    """The voxels of a valid seed, unpacked."""
    if not chosen.packed:
        return chosen.voxels
    return gzip.decompress(chosen.voxels) if chosen.ending[1] == "n" else zlib.decompress(chosen.voxels)


def seed(ending: str, dtype: str, packed: bool) -> Seed:
    """A valid file of a few voxels."""
    voxels = np.random.default_rng(len(dtype)).integers(1, 100, SHAPE).astype(dtype).tobytes(order="F")
    big = dtype.startswith(">")
    if ending[1] == "n":
        header = NRRD.format(
            type=TYPES[dtype][0], endian="big" if big else "little", encoding="gzip" if packed else "raw"
        )
        return Seed(ending, header, gzip.compress(voxels, mtime=0) if packed else voxels, dtype, packed)
    header = META.format(type=TYPES[dtype][1], big=big, packed=packed)
    if packed:
        voxels = zlib.compress(voxels)
        header += f"CompressedDataSize = {len(voxels)}\n"
    return Seed(ending, header, voxels, dtype, packed)
