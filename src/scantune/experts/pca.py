"""PCA experts: loadings of patches of the last layer on their principal components (Sec. 3.2.3).

The loadings are matrix products, which cut out no more of the features than is needed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.experts.base import Experts, Outputs, at_least_float32, image_weights
from scantune.experts.recorder import Recording
from scantune.kernels import usable
from scantune.networks import Affine
from scantune.tasks import Task, task_from_record, task_record

KERNEL_STRIDE_AND_DIMENSIONS = 8, 2
"""Stride and dimensions of patches for which there is a kernel."""

MAX_KERNEL_COMPONENTS = 16
"""Components that it can take."""


@dataclass(frozen=True)
class PatchSettings:
    """Patches of the PCA experts."""

    size: int = 16
    """Side r of the square patches, in pixels of the last layer."""
    stride: int = 8
    """Step d between patches."""
    components: int = 10
    """Principal components G kept per channel."""
    threshold: float = 0.8
    """A patch is active if the foreground probability of its central pixel exceeds this tau."""

    def __post_init__(self) -> None:
        if min(self.size, self.stride, self.components) < 1:
            raise InputError(f"Size, stride and components of patches must be 1 or more, got {self}.")

    @classmethod
    def for_dimensions(cls, dimensions: int) -> Self:
        """Return the paper's patches in 2D, and half the side in 3D, where 16 would mean 4096 numbers a patch."""
        return cls() if dimensions == 2 else cls(size=8, stride=4)


@dataclass(frozen=True)
class PCAExperts(Experts):
    """Projections of active patches on principal components, per channel (Sec. 3.2.3).

    They equal a strided grouped convolution, and are computed by matrix products.

    Args:
        chosen: The last layer, whose features feed the classifier; of an ensemble that of each network.
        settings: Patch size, stride, components, threshold.
        task: Reads the foreground probability from an output.
        components: Orthonormal components of all layers `(channels, components, *patch)`, as many of each layer.
        mean: Mean patch `(channels, *patch)`.
    """

    name: ClassVar[str] = "pca"
    chosen: tuple[str, ...]
    settings: PatchSettings
    task: Task
    components: Tensor
    mean: Tensor

    @property
    def fixed(self) -> bool:
        """Return whether loadings of all patches are computed, not of active ones alone."""
        return self.settings.size == 2 * self.settings.stride

    @classmethod
    def joined(cls, each: Sequence[Self]) -> Self:
        """Return the experts of several layers, one after the other."""
        components, mean = torch.cat([one.components for one in each]), torch.cat([one.mean for one in each])
        chosen = tuple(layer for one in each for layer in one.chosen)
        return replace(each[0], chosen=chosen, components=components, mean=mean)

    def layers(self) -> list[str]:
        """Return the last layer alone, or those of an ensemble."""
        return list(self.chosen)

    def outputs(self, recording: Recording, padding: Tensor | None) -> Iterator[Outputs]:
        """Yield loadings `(slices, channels * components, *positions)`, counted where the patch is active.

        At strides other than half the patch's side, of active patches alone: `(1, channels * components, patches)`.
        """
        for layer, components, mean in self._by_layer():
            features = recording.features[layer]
            if not has_patches(features, self.settings):
                return
            weights: Tensor | None = active_patches(recording, features, self.task, self.settings, padding)
            assert weights is not None
            if self.fixed:
                loadings = all_loadings(features, components.to(features), self.settings.stride)
            else:
                chosen = weights[:, 0] > 0
                loadings = chosen_loadings(features, components.to(features), self.settings.stride, chosen)
                weights = None
            bias = -(components * mean.unsqueeze(1)).flatten(2).sum(2).flatten()
            yield layer, loadings + bias.view(1, -1, *[1] * (loadings.ndim - 2)), weights

    def _by_layer(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield each layer with its components and its mean patch."""
        number = len(self.chosen)
        yield from zip(self.chosen, self.components.chunk(number), self.mean.chunk(number), strict=True)

    def folded(self, maps: Mapping[str, Affine]) -> tuple[Self, Mapping[str, Affine]]:
        """Undo the layers' affine maps in the filters, so that the loadings stay the same."""
        shape = (-1, *[1] * (self.mean.ndim - 1))
        filters, means = [], []
        for layer, components, mean in self._by_layer():
            if layer in maps:
                scale, shift = maps[layer].scale.view(shape), maps[layer].shift.view(shape)
                components, mean = components / scale.unsqueeze(1), mean * scale + shift
            filters.append(components)
            means.append(mean)
        return replace(self, components=torch.cat(filters), mean=torch.cat(means)), {}

    def tensors(self) -> dict[str, Tensor]:
        """Return components and mean."""
        return {"components": self.components, "mean": self.mean}

    def record(self) -> dict[str, Any]:
        """Return the layer or layers, patch settings and how the output is read."""
        layer = self.chosen[0] if len(self.chosen) == 1 else list(self.chosen)
        return {"layer": layer, "patches": asdict(self.settings), "task": task_record(self.task)}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore the experts from a model file."""
        task = task_from_record(record["task"])
        settings = settings_from_table(PatchSettings, record["patches"], "the recorded patches")
        components, mean = tensors["components"], tensors["mean"]
        patch = (settings.size,) * (mean.ndim - 1)
        chosen = (record["layer"],) if isinstance(record["layer"], str) else tuple(map(str, record["layer"]))
        if (
            not chosen
            or len(mean) % len(chosen)
            or components.shape != (len(mean), settings.components, *patch)
            or mean.shape != (len(mean), *patch)
        ):
            raise InputError(
                f"The prior is damaged: components {tuple(components.shape)} and mean {tuple(mean.shape)} of patches "
                f"do not fit {settings}. Fit the prior again, or copy the file again."
            )
        return cls(chosen, settings, task, components.float(), mean.float())


@dataclass
class PatchScatter:
    """Number, sum and scatter matrix of the active patches of each channel, over any number of batches.

    Args:
        layer: The layer the patches are cut from.
        settings: Patch size, stride, components, threshold.
        task: Reads the foreground probability from an output.
    """

    layer: str
    settings: PatchSettings
    task: Task
    number: int = 0
    _origin: Tensor | None = field(default=None, repr=False)
    _sum: Tensor | None = field(default=None, repr=False)
    _scatter: Tensor | None = field(default=None, repr=False)
    _patch: tuple[int, ...] = field(default=(), repr=False)

    def add(self, recording: Recording, padding: Tensor | None) -> None:
        """Add the active patches of one batch."""
        features = at_least_float32(recording.features[self.layer])
        if not has_patches(features, self.settings):
            return
        chosen = active_patches(recording, features, self.task, self.settings, padding)[:, 0] > 0
        patches = features
        for axis in range(2, features.ndim):
            patches = patches.unfold(axis, self.settings.size, self.settings.stride)
        # (slices, channels, *positions, *patch) -> (active, channels, pixels)
        patches = patches.movedim(1, chosen.ndim)[chosen].flatten(2).double()
        if not len(patches):
            return
        if self._origin is None:
            self._patch = (self.settings.size,) * (features.ndim - 2)
            self._origin = patches.mean(0)
            self._sum = torch.zeros_like(self._origin)
            self._scatter = patches.new_zeros(*self._origin.shape, self._origin.shape[-1])
        assert self._sum is not None and self._scatter is not None
        away = (patches - self._origin).transpose(0, 1)  # (channels, active, pixels)
        self.number += len(patches)
        self._sum += away.sum(1)
        self._scatter += away.transpose(1, 2) @ away

    def experts(self) -> PCAExperts | None:
        """Return experts with the leading components of each channel; None if there were too few active patches."""
        if self._origin is None or self._sum is None or self._scatter is None:
            return None
        if self.number <= self.settings.components:
            return None
        offset = self._sum / self.number
        covariance = self._scatter / self.number - offset.unsqueeze(2) * offset.unsqueeze(1)
        _, vectors = torch.linalg.eigh(covariance)
        leading = vectors.flip(2)[..., : self.settings.components].transpose(1, 2)  # (channels, components, pixels)
        # The sign of a component is free; fix it, so that two fits of the same data agree.
        largest = leading.gather(2, leading.abs().argmax(2, keepdim=True))
        leading = leading * largest.sign()
        components = leading.reshape(*leading.shape[:2], *self._patch).float().contiguous()
        mean = (self._origin + offset).reshape(-1, *self._patch).float()
        return PCAExperts((self.layer,), self.settings, self.task, components, mean)


def has_patches(features: Tensor, settings: PatchSettings) -> bool:
    """Return whether features `(slices, channels, *spatial)` are large enough for one patch."""
    return min(features.shape[2:]) >= settings.size


def active_patches(
    recording: Recording, features: Tensor, task: Task, settings: PatchSettings, padding: Tensor | None
) -> Tensor:
    """Return 1 where a patch is active, `(slices, 1, *positions)`; no gradient passes the selection."""
    output = recording.output
    if task.pointwise and isinstance(output, Tensor) and output.shape[2:] == features.shape[2:]:
        probability = at_least_float32(task.foreground(_centres(output.detach(), settings)))
    else:
        probability = at_least_float32(task.foreground(output).detach())
        if probability.shape[2:] != features.shape[2:]:
            probability = F.interpolate(probability, size=list(features.shape[2:]))
        probability = _centres(probability, settings)
    chosen = (probability > settings.threshold).to(probability.dtype)
    free = image_weights(padding, features)
    return chosen if free is None else chosen * _centres(free, settings)


def _centres(values: Tensor, settings: PatchSettings) -> Tensor:
    """Return values `(slices, channels, *spatial)` at the centres of patches, `(slices, channels, *positions)`."""
    for axis in range(2, values.ndim):
        positions = (values.shape[axis] - settings.size) // settings.stride + 1
        centres = torch.arange(positions, device=values.device) * settings.stride + settings.size // 2
        values = values.index_select(axis, centres)
    return values


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
