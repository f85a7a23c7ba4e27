"""Loadings of a feature's patches on components, by matrix products and without cutting out more than is needed."""

from typing import Any

import torch
from torch import Tensor

from scantune.kernels import usable

KERNEL_STRIDE_AND_DIMENSIONS = 8, 2
"""Stride and dimensions of patches for which there is a kernel."""

MAX_KERNEL_COMPONENTS = 16
"""Components that it can take."""


def all_loadings(features: Tensor, components: Tensor, stride: int) -> Tensor:
    """Compute the loadings of all patches whose side is twice the stride, from blocks of the stride's side.

    Every block is multiplied once with each part of the components that it may be; the loadings of a patch are the sum
    of what its blocks gave. A convolution would do the same, many times slower for filters of this size.

    Args:
        features: `(slices, channels, *spatial)`.
        components: `(channels, components, *patch)`.
        stride: Half the patch's side.

    Returns:
        `(slices, channels * components, *positions)`.
    """
    kept, *patch = components.shape[1:]
    dimensions = len(patch)
    if (
        features.dtype.itemsize == 2
        and (stride, dimensions) == KERNEL_STRIDE_AND_DIMENSIONS
        and kept <= MAX_KERNEL_COMPONENTS
        and usable(features)
    ):
        return _Projected.apply(features, components)  # type: ignore[no-any-return, no-untyped-call]
    return _Multiplied.apply(features, components, stride)  # type: ignore[no-any-return, no-untyped-call]


class _Multiplied(torch.autograd.Function):
    """By matrix products; the gradient lies in memory as the features do, which what follows would else copy."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, components: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(components)
        ctx.stride, ctx.like = stride, torch.empty_like(features, device="meta")
        dimensions = features.ndim - 2
        counts = [length // stride for length in features.shape[2:]]
        # (channels, slices * blocks, pixels of a block)
        blocks = _blocks(features, stride, dimensions).movedim(1, 0).flatten(2 + dimensions).flatten(1, 1 + dimensions)
        products = torch.bmm(blocks, _parts(components, stride))
        each = products.view(len(components), len(features), *counts, 2**dimensions, components.shape[1])
        first, *others = _shares(each)
        total = sum(others, start=first)
        # (channels, slices, *positions, components) -> (slices, channels * components, *positions)
        return total.movedim(-1, 1).flatten(0, 1).movedim(1, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (components,), stride = ctx.saved_tensors, ctx.stride
        slices, channels, *size = ctx.like.shape
        counts = [length // stride for length in size]
        # (channels, slices, *positions, components)
        gradient = torch.unflatten(gradients[0].movedim(1, 0), 0, components.shape[:2]).movedim(1, -1)
        each = gradient.new_zeros(channels, slices, *counts, 2 ** len(size), components.shape[1])
        for share in _shares(each):
            share.copy_(gradient)
        products = torch.bmm(each.flatten(-2).flatten(1, -2), _parts(components, stride).mT)
        whole = [count * stride for count in counts] == size
        new = torch.empty_like if whole else torch.zeros_like
        result = new(ctx.like, dtype=gradient.dtype, device=gradient.device)
        places = _blocks(result, stride, len(size)).movedim(1, -1)
        # Channels last first, and then the blocks: together the two copies are faster than one.
        places.copy_(products.flatten(1).T.contiguous().view(places.shape))
        return result, None, None


def _parts(components: Tensor, stride: int) -> Tensor:
    """Split components `(channels, components, *patch)` into `(channels, pixels of a block, parts * components)`."""
    dimensions = components.ndim - 2
    parts = _blocks(components, stride, dimensions).flatten(2 + dimensions).flatten(2, 1 + dimensions)
    return parts.permute(0, 3, 2, 1).flatten(2)


def _shares(products: Tensor) -> list[Tensor]:
    """Return what blocks `(channels, slices, *counts, parts, components)` add to each patch that they belong to."""
    dimensions = products.ndim - 4
    shares = []
    for part in range(2**dimensions):
        share = products.select(-2, part)
        for axis in range(dimensions):
            late = part >> (dimensions - 1 - axis) & 1
            share = share.narrow(2 + axis, late, products.shape[2 + axis] - 1)
        shares.append(share)
    return shares


class _Projected(torch.autograd.Function):
    """The same by a kernel, of features in half precision; loadings are single."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, components: Tensor) -> Tensor:
        from scantune.kernels.triton.loadings import filters, project

        weights = filters(components, features.dtype)
        ctx.save_for_backward(weights)
        ctx.size = features.shape[2:]
        return project(features, weights, components.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        from scantune.kernels.triton.loadings import adjoint

        (weights,) = ctx.saved_tensors
        return adjoint(gradients[0], weights, tuple(ctx.size)), None


def chosen_loadings(features: Tensor, components: Tensor, stride: int, chosen: Tensor) -> Tensor:
    """Compute the loadings of some patches, for strides at which patches overlap many times.

    Args:
        features: `(slices, channels, *spatial)`.
        components: `(channels, components, *patch)`.
        stride: Step between patches.
        chosen: Whether a patch is wanted `(slices, *positions)`.

    Returns:
        `(1, channels * components, patches)`.
    """
    patch, size = components.shape[2:], features.shape[2:]
    steps = [1] * len(size)
    for axis in range(len(size) - 1, 0, -1):
        steps[axis - 1] = steps[axis] * size[axis]
    slices, *positions = chosen.nonzero(as_tuple=True)
    corner = slices * (steps[0] * size[0])
    inside = torch.zeros((), dtype=torch.long, device=features.device)
    for step, position, side in zip(steps, positions, patch, strict=True):
        corner = corner + position * (stride * step)
        inside = inside.unsqueeze(-1) + torch.arange(side, device=features.device) * step
    pixels = features.movedim(1, -1).flatten(0, -2)  # (slices * pixels, channels)
    index = (corner.unsqueeze(1) + inside.flatten()).flatten()
    # (patches, pixels of a patch, channels); indexed so that a GPU adds up the gradient in a fixed order
    patches = pixels[index].view(len(corner), inside.numel(), features.shape[1])
    loadings = torch.bmm(components.flatten(2), patches.permute(2, 1, 0))  # (channels, components, patches)
    return loadings.flatten(0, 1).unsqueeze(0)


def _blocks(values: Tensor, side: int, dimensions: int) -> Tensor:
    """Split spatial axes into blocks, `(..., *spatial)` to `(..., *counts, *block)`; an incomplete block is dropped."""
    first = values.ndim - dimensions
    for axis in range(dimensions):
        at = first + 2 * axis
        values = torch.unflatten(values.narrow(at, 0, values.shape[at] // side * side), at, (-1, side))
    for axis in range(dimensions):
        values = values.movedim(first + 2 * axis, first + axis)
    return values
