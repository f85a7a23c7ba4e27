"""How kernels see features: as a table of pixels times channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Numbers that a program looks at at once."""
PROGRAMS = 2048
"""About how many programs go through a table where each has several tiles."""


def table(values: Tensor) -> Tensor:
    """Features `(slices, channels, *spatial)` as `(pixels, channels)`; a view where channels come last in memory."""
    return values.movedim(1, -1).contiguous().flatten(0, -2)


def like(pixels: Tensor, values: Tensor) -> Tensor:
    """The inverse of `table`: `(pixels, channels)` in the shape of `values`, channels last in memory."""
    moved = values.movedim(1, -1)
    return pixels.view(moved.shape).movedim(-1, 1)


def tiling(pixels: Tensor) -> tuple[tuple[int, int], int, int]:
    """How many tiles cover a table, along pixels and channels, and how many of each a tile has."""
    number, channels = pixels.shape
    wide = min(1 << (channels - 1).bit_length(), 128)  # a power of two
    block = TILE // wide
    return (-(-number // block), -(-channels // wide)), block, wide


def sharing(pixels: Tensor) -> tuple[tuple[int, int], int, int, int]:
    """As `tiling`, for programs that go through several tiles each; and through how many."""
    (blocks, groups), block, wide = tiling(pixels)
    programs, rounds = shares(blocks, max(PROGRAMS // groups, 1))
    return (programs, groups), block, wide, rounds


def shares(blocks: int, most: int) -> tuple[int, int]:
    """How many programs share so many blocks, about `most` of them, and how many blocks each goes through.

    Where there is no pixel at all, because no patch is active, one program finds nothing to sum.
    """
    rounds = triton.next_power_of_2(max(-(-blocks // most), 1))
    return max(-(-blocks // rounds), 1), rounds


def weighed(weights: Tensor | None, pixels: Tensor) -> Tensor:
    """Weights `(slices, 1, *spatial)` as `(pixels,)`; where there are none, something to point to."""
    return pixels if weights is None else weights.to(torch.float32).contiguous().flatten()


@triton.jit
def cells(number, channels, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """A program's tile: its rows `(BLOCK,)`, its columns `(WIDE,)`, their places in the table, and which there are."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    place = row[:, None] * channels + column[None, :]
    return row, column, place, (row < number)[:, None] & (column < channels)[None, :]


@triton.jit
def share(turn, column, number, channels, BLOCK: tl.constexpr):
    """A tile of a program that goes through several: its rows, their places in the table, and which there are."""
    row = (turn * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = row[:, None] * channels + column[None, :]
    return row, place, (row < number)[:, None] & (column < channels)[None, :]
