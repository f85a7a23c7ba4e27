"""Images and labels moved and changed in one pass: positions, samples and intensities of a pixel at once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Pixels that a program computes."""


def changed(
    images: Tensor,
    labels: Tensor,
    displacement: Tensor,
    affine: tuple[Tensor, Tensor, Tensor],
    intensities: tuple[Tensor, Tensor],
    noise: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return augmented images and labels, of the shapes and types that came.

    Args:
        images: `(batch, channels, height, width)` in single precision.
        labels: `(batch, height, width)` integers.
        displacement: `(batch, 2, height, width)` pixels along rows and columns.
        affine: Translations `(batch, 2)` in pixels, degrees `(batch,)`, and magnifications `(batch,)`.
        intensities: Exponents and offsets, `(batch,)` each.
        noise: `(batch, channels, height, width)`, added.
    """
    batch, channels, height, width = images.shape
    numbers = torch.cat([affine[0], *(each[:, None] for each in (*affine[1:], *intensities))], 1)  # (batch, 6)
    new_images, new_labels = torch.empty_like(images, memory_format=torch.contiguous_format), torch.empty_like(labels)
    tensors = [tensor.contiguous() for tensor in (images, labels, displacement, noise, numbers)]
    grid = (triton.cdiv(height * width, BLOCK), batch)
    _change[grid](*tensors, new_images, new_labels, height, width, channels, BLOCK)
    return new_images, new_labels


@triton.jit
def _at(picture, row, column, height, width, weight):
    """Load a pixel's part of a sample; nothing outside."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return weight * tl.load(picture + row * width + column, mask=inside, other=0.0)


@triton.jit
def _change(
    images,
    labels,
    displacement,
    noise,
    numbers,
    new_images,
    new_labels,
    height,
    width,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    sample = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = height * width
    there = pixel < size
    own = numbers + sample * 6
    angle = tl.load(own + 2) * 0.017453292519943295
    scale, exponent, offset = tl.load(own + 3), tl.load(own + 4), tl.load(own + 5)
    cosine, sine = tl.cos(angle) / scale, tl.sin(angle) / scale
    middle_row, middle_column = (height - 1) * 0.5, (width - 1) * 0.5
    down, right = pixel // width - middle_row, pixel % width - middle_column
    shifts = displacement + sample * 2 * size + pixel
    row = cosine * down + sine * right + (middle_row - tl.load(own)) + tl.load(shifts, mask=there, other=0.0)
    column = cosine * right - sine * down + (middle_column - tl.load(own + 1))
    column += tl.load(shifts + size, mask=there, other=0.0)
    # Far outside is as good as just outside, and has a place that integers hold.
    row = tl.minimum(tl.maximum(row, -2.0), height + 1.0)
    column = tl.minimum(tl.maximum(column, -2.0), width + 1.0)
    near_row, near_column = tl.floor(row + 0.5).to(tl.int32), tl.floor(column + 0.5).to(tl.int32)
    inside = there & (near_row >= 0) & (near_row < height) & (near_column >= 0) & (near_column < width)
    label = tl.load(labels + sample * size + near_row * width + near_column, mask=inside, other=0)
    tl.store(new_labels + sample * size + pixel, label, mask=there)
    top, left = tl.floor(row), tl.floor(column)
    low, far = row - top, column - left
    i, j = top.to(tl.int32), left.to(tl.int32)
    for channel in tl.static_range(CHANNELS):
        start = (sample * CHANNELS + channel) * size
        value = _at(images + start, i, j, height, width, (1.0 - low) * (1.0 - far))
        value += _at(images + start, i, j + 1, height, width, (1.0 - low) * far)
        value += _at(images + start, i + 1, j, height, width, low * (1.0 - far))
        value += _at(images + start, i + 1, j + 1, height, width, low * far)
        power = tl.where(value > 0, tl.exp2(exponent * tl.log2(tl.maximum(value, 1e-30))), 0.0)
        value = tl.where(exponent == 1.0, value, power) + offset
        added = tl.load(noise + start + pixel, mask=there, other=0.0)
        tl.store(new_images + start + pixel, value + added, mask=there)
