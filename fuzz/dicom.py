"""Folders with a DICOM series: elements with odd values, damaged files, packed pixels, missing and doubled slices."""

import random
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fuzz.base import Kind, chance, require, some
from fuzz.images import CUT_SHORT, Expected, judge
from fuzz.mutations import TEXTS, damaged

SHAPE = (16, 12, 3)
SECRET = "Secret^Name"
LONG = ("OB", "OW", "SQ", "UN", "UT", "OF")
VRS = ("US", "SS", "UL", "SL", "FL", "FD", "DS", "IS", "UI", "CS", "LO", "PN", "AT", "OB", "OW", "SQ", "UN", "UT", "??")
UNCOMPRESSED, IMPLICIT, BIG = "1.2.840.10008.1.2.1", "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
SYNTAXES = (
    *(UNCOMPRESSED, IMPLICIT, BIG, "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.70"),
    *("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.80", "1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.100", "1.2.3"),
)
PIXELS = (0x7FE0, 0x0010)
EXTRA = (
    *((0x0028, 0x0008), (0x0028, 0x0006), (0x0028, 0x0009), (0x0028, 0x1101), (0x0028, 0x1201), (0x0008, 0x0005)),
    *((0x5200, 0x9229), (0x5200, 0x9230), (0x0020, 0x9116), (0x0028, 0x0120), (0x6000, 0x0010), (0x6000, 0x3000)),
    *((0x0028, 0x0034), (0x0018, 0x1164), (0x2050, 0x0020), (0x0028, 0x9001), (0xFFFE, 0xE000), (0xFFFE, 0xE00D)),
)
Tag = tuple[int, int]


@dataclass(frozen=True)
class Element:
    """One element of a file."""

    tag: Tag
    vr: str
    value: bytes
    length: int | None = None
    """The length that the file tells, where it is another one than the value's."""

    def explicit(self) -> bytes:
        """As bytes, with the kind of value; little end first."""
        told = len(self.value) if self.length is None else self.length
        head = struct.pack("<HH", *self.tag) + self.vr.encode()
        if self.vr in LONG:
            return head + b"\0\0" + struct.pack("<I", told % 2**32) + self.value
        return head + struct.pack("<H", told % 2**16) + self.value

    def implicit(self) -> bytes:
        """As bytes, without the kind of value."""
        told = len(self.value) if self.length is None else self.length
        return struct.pack("<HHI", *self.tag, told % 2**32) + self.value


@dataclass(frozen=True)
class Packing:
    """A transfer syntax, and the pixels of every slice in it."""

    syntax: str
    pixels: tuple[bytes, ...]
    encapsulated: bool


class Dicom(Kind):
    """A folder with the files of one series."""

    name = "dicom"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.volume = np.random.default_rng(0).integers(0, 1000, SHAPE).astype("<i2")
        slices = [np.ascontiguousarray(self.volume[:, :, n].T) for n in range(SHAPE[2])]
        plain = tuple(_even(picture.tobytes()) for picture in slices)
        self.packings = [
            Packing(UNCOMPRESSED, plain, False),
            Packing(IMPLICIT, plain, False),
            Packing("1.2.840.10008.1.2.5", tuple(_items([_rle(picture)]) for picture in slices), True),
            *(packed for name in ("JPEG2000", "JPEG") if (packed := _packed(name, slices)) is not None),
        ]

    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Damages elements or bytes of one file or all, or the set of files."""
        place = folder / "series"
        place.mkdir()
        packing = rng.choice((self.packings[0], *self.packings))
        files = [elements(number, packing) for number in range(SHAPE[2])]
        expected: Expected = self.volume.astype(np.float32)
        if chance(rng, 0.5):
            files, expected = self._odd_elements(rng, files), None
        elif chance(rng, 0.1) and not packing.encapsulated:
            files, expected = [_taller(file) for file in files], CUT_SHORT
        whole = [whole_file(file, packing.syntax) for file in files]
        if chance(rng, 0.5):
            whole, expected = self._damaged(rng, whole, packing, expected)
        if chance(rng, 0.15):
            whole, expected = self._other_files(rng, whole), None
        for number, data in enumerate(whole):
            (place / f"{number * 2 % 5}.dcm").write_bytes(data)
        out = folder / "out"
        out.mkdir()
        return judge(rng, place, expected, out)

    def _odd_elements(self, rng: random.Random, files: list[list[Element]]) -> list[list[Element]]:
        """The same accident in all files, or in one."""
        everywhere = chance(rng, 0.6)
        one = rng.randrange(len(files))
        for _ in range(rng.choice((1, 1, 2, 3))):
            number = rng.randrange(len(files[0]))
            accident = rng.getrandbits(32)
            files = [
                _odd(random.Random(accident), file, min(number, len(file) - 1)) if everywhere or n == one else file
                for n, file in enumerate(files)
            ]
        return files

    def _damaged(
        self, rng: random.Random, whole: list[bytes], packing: Packing, expected: Expected
    ) -> tuple[list[bytes], Expected]:
        number = rng.randrange(len(whole))
        header = len(whole[number]) - len(packing.pixels[number])
        if chance(rng, 0.15) and expected is not None and not packing.encapsulated:
            shorter = whole[number][: rng.randrange(header, len(whole[number]))]
            return [shorter if n == number else data for n, data in enumerate(whole)], CUT_SHORT
        affected = range(len(whole)) if chance(rng, 0.3) else [number]
        accident = rng.getrandbits(32)
        other = rng.choice(whole)
        return [
            damaged(random.Random(accident), data, other, header) if n in affected else data
            for n, data in enumerate(whole)
        ], None

    def _other_files(self, rng: random.Random, whole: list[bytes]) -> list[bytes]:
        what = rng.randrange(5)
        if what == 0:
            return some(rng, whole, 2)
        if what == 1:
            return [*whole, rng.choice(whole)]
        if what == 2:
            return [*whole, rng.choice((b"", b"hello", b"\0" * 128 + b"DICM", rng.randbytes(300)))]
        if what == 3:
            return []
        return [whole_file(elements(n, self.packings[0], series=str(n)), UNCOMPRESSED) for n in range(SHAPE[2])]


def elements(number: int, packing: Packing, series: str = "1") -> list[Element]:
    """A valid slice."""
    words = {
        (0x0008, 0x0008): ("CS", "ORIGINAL\\PRIMARY"),
        (0x0008, 0x0016): ("UI", "1.2.840.10008.5.1.4.1.1.4"),
        (0x0008, 0x0018): ("UI", f"1.2.826.{series}.{number + 1}"),
        (0x0008, 0x0060): ("CS", "MR"),
        (0x0010, 0x0010): ("PN", SECRET),
        (0x0018, 0x0050): ("DS", "3"),
        (0x0018, 0x0088): ("DS", "3"),
        (0x0020, 0x000D): ("UI", "1.2.826.99"),
        (0x0020, 0x000E): ("UI", f"1.2.826.{series}"),
        (0x0020, 0x0011): ("IS", "1"),
        (0x0020, 0x0013): ("IS", str(number + 1)),
        (0x0020, 0x0032): ("DS", f"-3.5\\2\\{7 + 3 * number}"),
        (0x0020, 0x0037): ("DS", "1\\0\\0\\0\\1\\0"),
        (0x0020, 0x0052): ("UI", "1.2.826.98"),
    }
    found = [Element(tag, vr, _padded(text, vr)) for tag, (vr, text) in words.items()]
    shorts = {0x0002: 1, 0x0010: SHAPE[1], 0x0011: SHAPE[0], 0x0100: 16, 0x0101: 16, 0x0102: 15, 0x0103: 1}
    found += [Element((0x0028, tag), "US", struct.pack("<H", value)) for tag, value in shorts.items()]
    for tag, vr, text in (
        (0x0004, "CS", "MONOCHROME2"),
        (0x0030, "DS", "0.75\\0.5"),
        (0x1052, "DS", "0"),
        (0x1053, "DS", "1"),
    ):
        found.append(Element((0x0028, tag), vr, _padded(text, vr)))
    pixels = packing.pixels[number]
    found.append(Element(PIXELS, "OB" if packing.encapsulated else "OW", pixels, -1 if packing.encapsulated else None))
    return sorted(found, key=lambda element: element.tag)


def whole_file(dataset: Sequence[Element], syntax: str) -> bytes:
    """A file of a data set."""
    meta = [
        Element((0x0002, 0x0001), "OB", b"\0\1"),
        Element((0x0002, 0x0002), "UI", _padded("1.2.840.10008.5.1.4.1.1.4", "UI")),
        Element((0x0002, 0x0003), "UI", _padded("1.2.826.1.1", "UI")),
        Element((0x0002, 0x0010), "UI", _padded(syntax, "UI")),
        Element((0x0002, 0x0012), "UI", _padded("1.2.826.97", "UI")),
    ]
    head = b"".join(element.explicit() for element in meta)
    length = Element((0x0002, 0x0000), "UL", struct.pack("<I", len(head))).explicit()
    written = (element.implicit() if syntax == IMPLICIT else element.explicit() for element in dataset)
    return b"\0" * 128 + b"DICM" + length + head + b"".join(written)


def _taller(file: list[Element]) -> list[Element]:
    """A data set that tells of one row more than its pixels have."""
    rows = Element((0x0028, 0x0010), "US", struct.pack("<H", SHAPE[1] + 1))
    return [rows if element.tag == rows.tag else element for element in file]


def _odd(rng: random.Random, file: list[Element], number: int) -> list[Element]:
    """A data set with an accident to one element."""
    element = file[number]
    changed = {
        0: lambda: [replace(element, value=_odd_value(rng, element))],
        1: lambda: [replace(element, length=rng.choice((0, 1, 3, len(element.value) * 2, 65535, 2**31 - 1, -1, -2)))],
        2: lambda: [replace(element, vr=rng.choice(VRS))],
        3: lambda: [],
        4: lambda: [element, element],
        5: lambda: [
            Element(rng.choice(EXTRA), rng.choice(VRS), rng.choice((b"\2\0", b"", b"3 ", b"\xff" * 8))),
            element,
        ],
        6: lambda: [replace(element, value=rng.randbytes(len(element.value)))],
        7: lambda: [replace(element, tag=rng.choice((*EXTRA, PIXELS, (0x0028, 0x0010))))],
    }
    what = rng.choice((0, 0, 0, 0, 0, *range(8)))
    return [*file[:number], *changed[what](), *file[number + 1 :]]


def _odd_value(rng: random.Random, element: Element) -> bytes:
    if element.tag == PIXELS:
        return element.value[: rng.randrange(len(element.value) + 1)]
    if element.vr == "US":
        return struct.pack("<H", rng.choice((0, 1, 2, 3, 7, 8, 12, 15, 16, 17, 24, 32, 64, 255, 32767, 32768, 65535)))
    words = element.value.decode("latin-1").strip("\0 ").split("\\")
    words[rng.randrange(len(words))] = rng.choice(TEXTS)
    if chance(rng, 0.2):
        words = words[: rng.randrange(len(words) + 1)] * rng.choice((1, 1, 50))
    return _padded("\\".join(words), element.vr)


def _padded(text: str, vr: str) -> bytes:
    data = text.encode("utf-8")
    return data + (b"\0" if vr == "UI" else b" ") * (len(data) % 2)


def _even(data: bytes) -> bytes:
    return data + b"\0" * (len(data) % 2)


def _items(fragments: Sequence[bytes]) -> bytes:
    """Packed pixels as a sequence of items, an empty table of offsets first."""
    item = struct.pack("<HH", 0xFFFE, 0xE000)
    parts = [item + struct.pack("<I", len(even)) + even for even in (b"", *map(_even, fragments))]
    return b"".join(parts) + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)


def _rle(picture: NDArray[np.int16]) -> bytes:
    """Two byte planes, high one first, in runs of literal bytes."""
    planes = []
    for byte in (1, 0):
        plane = picture.astype("<i2").view(np.uint8).reshape(*picture.shape, 2)[..., byte]
        planes.append(_even(b"".join(bytes([len(row) - 1]) + row.tobytes() for row in plane)))
    offsets = [64, 64 + len(planes[0])]
    return struct.pack("<16I", 2, *offsets, *[0] * 13) + b"".join(planes)


def _packed(compressor: str, slices: Sequence[NDArray[np.int16]]) -> Packing | None:
    """The pixels as SimpleITK packs them; None where it does not know how."""
    import SimpleITK

    pixels, syntax = [], ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slice.dcm"
        for picture in slices:
            writer = SimpleITK.ImageFileWriter()
            writer.SetFileName(str(path))
            writer.UseCompressionOn()
            writer.SetCompressor(compressor)
            writer.Execute(SimpleITK.GetImageFromArray(picture))
            data = path.read_bytes()
            start = data.find(struct.pack("<HH", *PIXELS) + b"OB\0\0\xff\xff\xff\xff")
            if start < 0:
                return None
            pixels.append(data[start + 12 :])
            meta = data.find(b"\x02\x00\x10\x00UI")
            length = struct.unpack_from("<H", data, meta + 6)[0]
            syntax = data[meta + 8 : meta + 8 + length].strip(b"\0 ").decode()
    require(syntax, "a packed file without a transfer syntax")
    return Packing(syntax, tuple(pixels), True)
