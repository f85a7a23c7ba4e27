"""Layout of features for kernels: a table of pixels times channels."""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""Numbers that a program processes at a time."""
PROGRAMS = 2048
"""About how many programs go through a table where each has several tiles."""


def table(values: Tensor) -> Tensor:
    """Return features `(slices, channels, *spatial)` as `(pixels, channels)`; a view if channels come last."""
    return values.movedim(1, -1).contiguous().flatten(0, -2)


def like(pixels: Tensor, values: Tensor) -> Tensor:
    """Return `(pixels, channels)` in the shape of `values`, channels last in memory: the inverse of `table`."""
    moved = values.movedim(1, -1)
    return pixels.view(moved.shape).movedim(-1, 1)


def tiling(pixels: Tensor) -> tuple[tuple[int, int], int, int]:
    """Return how many tiles cover a table, along pixels and channels, and the shape of a tile."""
    number, channels = pixels.shape
    wide = min(1 << (channels - 1).bit_length(), 128)  # a power of two
    block = TILE // wide
    return (-(-number // block), -(-channels // wide)), block, wide


def sharing(pixels: Tensor) -> tuple[tuple[int, int], int, int, int]:
    """Return `tiling` for programs that go through several tiles each, and through how many."""
    (blocks, groups), block, wide = tiling(pixels)
    programs, rounds = shares(blocks, max(PROGRAMS // groups, 1))
    return (programs, groups), block, wide, rounds


def shares(blocks: int, most: int) -> tuple[int, int]:
    """Return how many programs (about `most`) share the blocks, and how many blocks each goes through.

    Where there is no pixel at all, because no patch is active, one program finds nothing to sum.
    """
    rounds = triton.next_power_of_2(max(-(-blocks // most), 1))
    return max(-(-blocks // rounds), 1), rounds


def weighed(weights: Tensor | None, pixels: Tensor) -> Tensor:
    """Return weights `(slices, 1, *spatial)` as `(pixels,)`; without weights, any tensor to point to."""
    return pixels if weights is None else weights.to(torch.float32).contiguous().flatten()


@triton.jit
def cells(number, channels, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Return a program's tile: rows `(BLOCK,)`, columns `(WIDE,)`, places in the table, and which exist."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    place = row[:, None] * channels + column[None, :]
    return row, column, place, (row < number)[:, None] & (column < channels)[None, :]


@triton.jit
def share(turn, column, number, channels, BLOCK: tl.constexpr):
    """Return a tile of a program that goes through several: rows, places in the table, and which exist."""
    row = (turn * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = row[:, None] * channels + column[None, :]
    return row, place, (row < number)[:, None] & (column < channels)[None, :]
