"""What many programs summed, added up in a fixed order."""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WIDE = 256, 16
"""Programs and numbers that are added up at a time."""


def totals(parts: Tensor, units: Tensor | None = None) -> Tensor:
    """Sum over programs, in double precision.

    Args:
        parts: `(programs, *shape)`, in single precision.
        units: What the sums are multiplied by, `shape` in double precision; None for ones.

    Returns:
        `shape`.
    """
    programs, *shape = parts.shape
    found = torch.empty(shape, dtype=torch.double, device=parts.device)
    number, chunks = found.numel(), triton.next_power_of_2(-(-programs // ROWS))
    grid = (-(-number // WIDE),)
    scale = found if units is None else units
    _totals[grid](parts, scale, found, programs, number, chunks, ROWS, WIDE, units is not None)
    return found


@triton.jit
def _totals(
    parts,
    units,
    found,
    programs,
    number,
    CHUNKS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDE: tl.constexpr,
    IN_UNITS: tl.constexpr,
):
    column = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    present = column < number
    total = tl.zeros((ROWS, WIDE), tl.float64)
    for chunk in range(CHUNKS):
        row = chunk * ROWS + tl.arange(0, ROWS)
        inside = (row < programs)[:, None] & present[None, :]
        total += tl.load(parts + row[:, None] * number + column[None, :], mask=inside, other=0.0).to(tl.float64)
    answer = tl.sum(total, 0)
    if IN_UNITS:
        answer *= tl.load(units + column, mask=present, other=0.0)
    tl.store(found + column, answer, mask=present)
