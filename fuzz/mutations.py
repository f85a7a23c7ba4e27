"""Damage: how valid bytes become hard ones."""

import random
import struct
from collections.abc import Callable

INTEGERS = (0, 1, 2, 3, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, 1e30, 3e38, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    *("", " ", "0", "-1", "1", "2", "3", "4", "7", "0.5", "-0.0", "1e400", "-1e400", "nan", "inf", "NaN", "999999999"),
    *("4294967296", "18446744073709551616", "9" * 400, "%s%n", "../../x", "\x00", "ÿ", "(1,0,0)", "none", "True"),
)
"""Numbers and words at which programs stumble."""


def damaged(rng: random.Random, data: bytes, other: bytes, header: int) -> bytes:
    """Bytes after one to four accidents, most of them in the header.

    Args:
        rng: Decides.
        data: Valid bytes.
        other: Valid bytes of another file, for splices.
        header: Number of bytes that are not voxels or weights.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        start = _place(rng, len(data), header)
        data = rng.choice(ACCIDENTS)(rng, data, start, other)
    return data


def _place(rng: random.Random, size: int, header: int) -> int:
    return rng.randrange(max(1, min(size, header) if rng.random() < 0.7 else size))


def _flip(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[min(start, len(changed) - 1)] ^= 1 << rng.randrange(8)
        start = rng.randrange(max(1, len(changed)))
    return bytes(changed)


def _extreme(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    """A number of two, four or eight bytes becomes an extreme one."""
    del other
    width = rng.choice((2, 4, 8))
    order = rng.choice("<>")
    start -= start % width if rng.random() < 0.7 else 0
    if rng.random() < 0.5 and width > 2:
        new = struct.pack(order + {4: "f", 8: "d"}[width], rng.choice(FLOATS))
    else:
        value = rng.choice(INTEGERS) * rng.choice((1, -1)) % 256**width
        new = value.to_bytes(width, "little" if order == "<" else "big")
    return data[:start] + new + data[start + width :]


def _swap(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    width = rng.choice((2, 4, 8))
    return data[:start] + data[start : start + width][::-1] + data[start + width :]


def _cut(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del rng, other
    return data[:start]


def _drop(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    return data[:start] + data[start + rng.choice((1, 2, 4, 16, 100)) :]


def _insert(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    return data[:start] + rng.randbytes(rng.choice((1, 2, 4, 16, 100))) + data[start:]


def _blank(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    stop = min(len(data), start + rng.choice((1, 4, 16, 64, 1000)))
    return data[:start] + rng.choice((b"\x00", b"\xff", b" ")) * (stop - start) + data[stop:]


def _repeat(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    del other
    part = data[start : start + rng.choice((4, 16, 64, 1000))]
    return data[:start] + part * rng.choice((2, 3, 50)) + data[start:]


def _splice(rng: random.Random, data: bytes, start: int, other: bytes) -> bytes:
    return data[:start] + other[rng.randrange(max(1, len(other))) :]


Accident = Callable[[random.Random, bytes, int, bytes], bytes]
ACCIDENTS: tuple[Accident, ...] = (
    *(_flip, _flip, _flip, _extreme, _extreme, _extreme, _extreme),
    *(_swap, _cut, _drop, _insert, _blank, _repeat, _splice),
)
"""What can happen to bytes, the likelier more often."""


def odd_lines(rng: random.Random, header: str, names: tuple[str, ...], assign: str) -> str:
    """A text header after one to four accidents to its lines.

    Args:
        rng: Decides.
        header: Lines of a name and a value.
        names: Fields that the format knows.
        assign: What stands between a name and its value.
    """
    lines = header.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        number = rng.randrange(len(lines))
        name, _, value = lines[number].partition(assign)
        what = rng.randrange(6)
        if what == 0:
            lines[number] = name + assign + rng.choice(TEXTS)
        elif what == 1:
            words = value.split() or [""]
            words[rng.randrange(len(words))] = rng.choice(TEXTS)
            lines[number] = name + assign + " ".join(words)
        elif what == 2 and len(lines) > 1:
            del lines[number]
        elif what == 3:
            lines.insert(number, lines[rng.randrange(len(lines))])
        elif what == 4:
            lines.insert(rng.randrange(1, len(lines) + 1), rng.choice(names) + assign + rng.choice(TEXTS))
        else:
            lines[number] = rng.choice(names) + assign + value
    return "\n".join(lines) + "\n"
