"""Loadings of patches on components, and their adjoint, as matrix products that read and write features once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SIDE, STRIDE = 16, 8
"""Side of the patches, and step between them."""
DEEP = 16
"""Components that there may be."""
BLOCK, WIDE = 32, 16
"""Patches and channels that a program looks at."""
WARPS = 16


def filters(components: Tensor, dtype: torch.dtype) -> Tensor:
    """Components `(channels, components, SIDE, SIDE)` as kernels read them, `(SIDE, channels, SIDE, DEEP)`."""
    channels, kept = components.shape[:2]
    result = torch.zeros(SIDE, channels, SIDE, DEEP, dtype=dtype, device=components.device)
    result[..., :kept] = components.permute(2, 0, 3, 1)
    return result


def project(features: Tensor, weights: Tensor, kept: int) -> Tensor:
    """Loadings of all patches.

    Args:
        features: `(slices, channels, height, width)` in half precision, at least `SIDE` high and wide.
        weights: By `filters`, in the features' precision.
        kept: Number of components.

    Returns:
        `(slices, channels * kept, *positions)` in single precision, channels last in memory.
    """
    slices, channels, height, width = features.shape
    down, across = height // STRIDE - 1, width // STRIDE - 1
    result = torch.empty(slices, down, across, channels * kept, device=features.device)
    grid = (slices * down, -(-across // BLOCK), -(-channels // WIDE))
    shape = (height, width, channels, down, across, kept)
    _project[grid](
        features.movedim(1, -1).contiguous(), weights, result, *shape, STRIDE, SIDE, DEEP, BLOCK, WIDE, num_warps=WARPS
    )
    return result.movedim(-1, 1)


def adjoint(gradient: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    """The gradient with respect to features, `(slices, channels, *size)` in the precision of the weights.

    Args:
        gradient: Of the loadings.
        weights: By `filters`.
        size: Height and width of the features.
    """
    channels = weights.shape[1]
    slices, experts, down, across = gradient.shape
    result = weights.new_empty(slices, *size, channels)
    rows = DEEP // STRIDE
    blocks = -(-size[0] // STRIDE), -(-size[1] // STRIDE)
    grid = (slices * blocks[0] * (STRIDE // rows), -(-blocks[1] // BLOCK), -(-channels // WIDE))
    shape = (*size, channels, down, across, experts // channels)
    table = gradient.movedim(1, -1).contiguous()
    _adjoint[grid](table, weights, result, *shape, rows, STRIDE, SIDE, DEEP, BLOCK, WIDE, num_warps=WARPS)
    return result.movedim(-1, 1)


@triton.jit
def _weights(weights, row, channel, column, component, channels, SIDE: tl.constexpr, DEEP: tl.constexpr):
    """Those of the components at a row and a column of a patch."""
    place = ((row * channels + channel) * SIDE + column) * DEEP + component
    return tl.load(weights + place, mask=channel < channels, other=0.0)


@triton.jit
def _project(
    features,
    weights,
    result,
    height,
    width,
    channels,
    down,
    across,
    kept,
    STRIDE: tl.constexpr,
    SIDE: tl.constexpr,
    DEEP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    patch = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :, None]
    channel = (tl.program_id(2) * WIDE + tl.arange(0, WIDE))[:, None, None]
    component = tl.arange(0, DEEP)[None, None, :]
    there = (channel < channels) & (patch < across)
    top = (line // down) * height + (line % down) * STRIDE
    column = patch * STRIDE + tl.arange(0, SIDE)[None, None, :]
    total = tl.zeros((WIDE, BLOCK, DEEP), tl.float32)
    for row in range(SIDE):
        value = tl.load(features + ((top + row) * width + column) * channels + channel, mask=there, other=0.0)
        weight = _weights(weights, row, channel, tl.arange(0, SIDE)[None, :, None], component, channels, SIDE, DEEP)
        total = tl.dot(value, weight, total)
    place = ((line * across + patch) * channels + channel) * kept + component
    tl.store(result + place, total, mask=there & (component < kept))


@triton.jit
def _adjoint(
    gradient,
    weights,
    result,
    height,
    width,
    channels,
    down,
    across,
    kept,
    ROWS: tl.constexpr,
    STRIDE: tl.constexpr,
    SIDE: tl.constexpr,
    DEEP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    # Some rows of blocks as large as the stride, each of which is a part of up to four patches.
    line = tl.program_id(0)
    rows = tl.cdiv(height, STRIDE) * (STRIDE // ROWS)
    number, below = line // rows, (line % rows) // (STRIDE // ROWS)
    block = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :, None]
    channel = (tl.program_id(2) * WIDE + tl.arange(0, WIDE))[:, None, None]
    component = tl.arange(0, DEEP)
    pixel = tl.arange(0, ROWS * STRIDE)[None, None, :]
    row, column = (line % (STRIDE // ROWS)) * ROWS + pixel // STRIDE, pixel % STRIDE
    total = tl.zeros((WIDE, BLOCK, ROWS * STRIDE), tl.float32)
    for part in tl.static_range(4):
        up, left = part // 2, part % 2
        patch = block - left
        there = (below - up >= 0) & (below - up < down) & (patch >= 0) & (patch < across) & (channel < channels)
        start = ((number.to(tl.int64) * down + below - up) * across + patch) * channels + channel
        there = there & (component < kept)[None, None, :]
        slope = tl.load(gradient + start * kept + component[None, None, :], mask=there, other=0.0)
        at = row + up * STRIDE
        weight = _weights(weights, at, channel, column + left * STRIDE, component[None, :, None], channels, SIDE, DEEP)
        total = tl.dot(slope.to(weight.dtype), weight, total)
    y, x = below * STRIDE + row, block * STRIDE + column
    place = ((number.to(tl.int64) * height + y) * width + x) * channels + channel
    tl.store(result + place, total.to(result.dtype.element_ty), mask=(y < height) & (x < width) & (channel < channels))
