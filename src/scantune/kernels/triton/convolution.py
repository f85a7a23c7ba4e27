"""3 x 3 convolutions of few channels in half precision, for which libraries' tiles are too wide."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Pixels of a row that a program computes at a time."""
WIDE = 64
"""Maximum number of output channels of a program."""
PROGRAMS = 1056
"""Maximum number of programs that share the rows."""


def convolve(features: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve features in half precision; sums are single.

    Args:
        features: `(slices, inputs, height, width)`; inputs are 16, 32, 48 or 64, so that three times as many are the
            sum of two powers of two.
        weights: `(9, inputs, outputs)`, taps row by row, outputs a multiple of 16; in the features' precision.
        bias: `(outputs,)`.

    Returns:
        `(slices, outputs, height, width)`, channels last in memory.
    """
    slices, inputs, height, width = features.shape
    outputs, lines = weights.shape[2], slices * height
    wide = min(triton.next_power_of_2(outputs), WIDE)
    block = min(BLOCK, max(16, triton.next_power_of_2(width)))
    columns, chunks = triton.cdiv(width, block), triton.cdiv(outputs, wide)
    run = triton.next_power_of_2(triton.cdiv(lines, max(PROGRAMS // columns // chunks, 1)))
    grid = (columns * triton.cdiv(lines, run), chunks)
    result = features.new_empty(slices, height, width, outputs)
    tables = (features.movedim(1, -1).contiguous(), weights.contiguous(), weights if bias is None else bias.float())
    most = 1 << ((3 * inputs).bit_length() - 1)
    taken = (most, 3 * inputs - most, inputs)
    sizes = (lines, height, width, outputs, columns)
    _convolve[grid](*tables, result, *sizes, block, wide, *taken, run, bias is not None, num_stages=3)
    return result.movedim(-1, 1)


@triton.jit
def _taps(weights, row, taken, to, outputs, INPUTS: tl.constexpr):
    """Take those taps of a row that are wanted, `(taken, to)`."""
    place = weights + ((3 * row * INPUTS + taken)[:, None] * outputs + to[None, :])
    return tl.load(place, mask=(to < outputs)[None, :], other=0.0)


@triton.jit
def _pixels(features, line, column, taken, lines, width, INPUTS: tl.constexpr):
    """Take the wanted channels of three neighbouring pixels, `(column, taken)`."""
    beside = column[:, None] + (taken // INPUTS - 1)[None, :]
    inside = (beside >= 0) & (beside < width) & (line >= 0) & (line < lines)
    place = (line * width + beside) * INPUTS + (taken % INPUTS)[None, :]
    return tl.load(features + place, mask=inside, other=0.0)


@triton.jit
def _convolve(
    features,
    weights,
    bias,
    result,
    lines,
    height,
    width,
    outputs,
    columns,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    MOST: tl.constexpr,
    REST: tl.constexpr,
    INPUTS: tl.constexpr,
    RUN: tl.constexpr,
    BIASED: tl.constexpr,
):
    share = tl.program_id(0)
    column = (share % columns) * BLOCK + tl.arange(0, BLOCK)
    first = (share // columns) * RUN
    to = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    # Sums are over powers of two: the three pixels' channels come in two parts.
    most, rest = tl.arange(0, MOST), MOST + tl.arange(0, REST)
    below_most, below_rest = _taps(weights, 0, most, to, outputs, INPUTS), _taps(weights, 0, rest, to, outputs, INPUTS)
    here_most, here_rest = _taps(weights, 1, most, to, outputs, INPUTS), _taps(weights, 1, rest, to, outputs, INPUTS)
    above_most, above_rest = _taps(weights, 2, most, to, outputs, INPUTS), _taps(weights, 2, rest, to, outputs, INPUTS)
    nothing = tl.zeros((BLOCK, WIDE), tl.float32)
    # Each row is read once, and adds to the one above, to its own and to the one below.
    here, below = nothing, nothing
    for turn in range(RUN + 2):
        line = first + turn - 1
        one = _pixels(features, line, column, most, lines, width, INPUTS)
        two = _pixels(features, line, column, rest, lines, width, INPUTS)
        above = tl.dot(two, above_rest, tl.dot(one, above_most, here))
        # The first row of a slice has none above, the last none below.
        answer = tl.where(line % height == 0, here, above)
        here = tl.dot(two, here_rest, tl.dot(one, here_most, below))
        below = tl.dot(two, below_rest, tl.dot(one, below_most))
        below = tl.where((line + 1) % height == 0, nothing, below)
        if BIASED:
            answer += tl.load(bias + to, mask=to < outputs, other=0.0)[None, :]
        done = (line > first) & (line <= lines)
        inside = (column < width)[:, None] & (to < outputs)[None, :] & done
        place = ((line - 1) * width + column)[:, None] * outputs + to[None, :]
        tl.store(result + place, answer.to(result.dtype.element_ty), mask=inside)
