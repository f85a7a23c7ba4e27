"""Loadings of patches on components, and their adjoint, as matrix products that read and write features once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SIDE, STRIDE = 16, 8
"""Side of the patches, and step between them."""
MAX_COMPONENTS = 16
"""Maximum number of components."""
BLOCK, WIDE = 32, 8
"""Patches and channels that a program processes at a time."""
WARPS = 8


def filters(components: Tensor, dtype: torch.dtype) -> Tensor:
    """Return components `(channels, components, SIDE, SIDE)` as kernels read them.

    Returns:
        `(SIDE, channels, SIDE, MAX_COMPONENTS)`.
    """
    channels, kept = components.shape[:2]
    result = torch.zeros(SIDE, channels, SIDE, MAX_COMPONENTS, dtype=dtype, device=components.device)
    result[..., :kept] = components.permute(2, 0, 3, 1)
    return result


def project(features: Tensor, weights: Tensor, kept: int) -> Tensor:
    """Compute the loadings of all patches.

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
        features.movedim(1, -1).contiguous(),
        weights,
        result,
        *shape,
        STRIDE,
        SIDE,
        MAX_COMPONENTS,
        BLOCK,
        WIDE,
        num_warps=WARPS,
    )
    return result.movedim(-1, 1)


def adjoint(gradient: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the gradient with respect to features, `(slices, channels, *size)` in the weights' precision.

    Args:
        gradient: Of the loadings.
        weights: By `filters`.
        size: Height and width of the features.
    """
    channels = weights.shape[1]
    slices, experts, down, across = gradient.shape
    result = weights.new_empty(slices, *size, channels)
    rows = MAX_COMPONENTS // STRIDE
    blocks = -(-size[0] // STRIDE), -(-size[1] // STRIDE)
    grid = (slices * blocks[0], -(-blocks[1] // BLOCK), -(-channels // WIDE))
    shape = (*size, channels, down, across, experts // channels)
    table = gradient.movedim(1, -1).contiguous()
    _adjoint[grid](table, weights, result, *shape, rows, STRIDE, SIDE, MAX_COMPONENTS, BLOCK, WIDE, num_warps=WARPS)
    return result.movedim(-1, 1)


@triton.jit
def _weights(weights, row, channel, column, component, channels, SIDE: tl.constexpr, MAX_COMPONENTS: tl.constexpr):
    """Load the weights of the components at a row and a column of a patch."""
    place = ((row * channels + channel) * SIDE + column) * MAX_COMPONENTS + component
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
    MAX_COMPONENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    line = tl.program_id(0).to(tl.int64)
    patch = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :, None]
    channel = (tl.program_id(2) * WIDE + tl.arange(0, WIDE))[:, None, None]
    component = tl.arange(0, MAX_COMPONENTS)[None, None, :]
    there = (channel < channels) & (patch < across)
    start = features + ((line // down) * height + (line % down) * STRIDE) * width * channels
    place = (patch * STRIDE + tl.arange(0, SIDE)[None, None, :]) * channels + channel
    total = tl.zeros((WIDE, BLOCK, MAX_COMPONENTS), tl.float32)
    for row in range(SIDE):
        value = tl.load(start + row * width * channels + place, mask=there, other=0.0)
        weight = _weights(
            weights, row, channel, tl.arange(0, SIDE)[None, :, None], component, channels, SIDE, MAX_COMPONENTS
        )
        total = tl.dot(value, weight, total)
    into = result + line * across * channels * kept
    tl.store(into + (patch * channels + channel) * kept + component, total, mask=there & (component < kept))


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
    MAX_COMPONENTS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    # A row of blocks as large as the stride, each of which is a part of up to four patches.
    line = tl.program_id(0)
    blocks = tl.cdiv(height, STRIDE)
    number, below = (line // blocks).to(tl.int64), line % blocks
    block = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :, None]
    channel = (tl.program_id(2) * WIDE + tl.arange(0, WIDE))[:, None, None]
    component = tl.arange(0, MAX_COMPONENTS)
    pixel = tl.arange(0, ROWS * STRIDE)[None, None, :]
    column = pixel % STRIDE
    start = gradient + (number * down + below) * across * channels * kept
    place = (block * channels + channel) * kept + component[None, None, :]
    known = (channel < channels) & (component < kept)[None, None, :]
    here, over = (below < down) & known, (below > 0) & (below <= down) & known
    behind = (block > 0) & (block <= across)
    before, higher = channels * kept, across * channels * kept
    kind = weights.dtype.element_ty
    lower_right = tl.load(start + place, mask=here & (block < across), other=0.0).to(kind)
    lower_left = tl.load(start + place - before, mask=here & behind, other=0.0).to(kind)
    upper_right = tl.load(start + place - higher, mask=over & (block < across), other=0.0).to(kind)
    upper_left = tl.load(start + place - higher - before, mask=over & behind, other=0.0).to(kind)
    for part in tl.static_range(0, STRIDE, ROWS):
        row = part + pixel // STRIDE
        of = component[None, :, None]
        weight = _weights(weights, row, channel, column, of, channels, SIDE, MAX_COMPONENTS)
        total = tl.dot(lower_right, weight)
        weight = _weights(weights, row, channel, column + STRIDE, of, channels, SIDE, MAX_COMPONENTS)
        total = tl.dot(lower_left, weight, total)
        weight = _weights(weights, row + STRIDE, channel, column, of, channels, SIDE, MAX_COMPONENTS)
        total = tl.dot(upper_right, weight, total)
        weight = _weights(weights, row + STRIDE, channel, column + STRIDE, of, channels, SIDE, MAX_COMPONENTS)
        total = tl.dot(upper_left, weight, total)
        y, x = below * STRIDE + row, block * STRIDE + column
        into = result + (number * height + below * STRIDE) * width * channels
        inside = (y < height) & (x < width) & (channel < channels)
        tl.store(into + (row * width + x) * channels + channel, total.to(kind), mask=inside)
