"""PCA experts: loadings of patches of the last layer on their principal components (Sec. 3.2.3)."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.experts.base import Experts, Outputs, at_least_float32, image_weights
from scantune.experts.projection import all_loadings, chosen_loadings
from scantune.experts.recorder import Recording
from scantune.networks import Affine
from scantune.tasks import Task, task_from_record, task_record


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
        layer: The last layer, whose features feed the classifier.
        settings: Patch size, stride, components, threshold.
        task: Reads the foreground probability from an output.
        components: Orthonormal components `(channels, components, *patch)`.
        mean: Mean patch `(channels, *patch)`.
    """

    name: ClassVar[str] = "pca"
    layer: str
    settings: PatchSettings
    task: Task
    components: Tensor
    mean: Tensor

    @property
    def fixed(self) -> bool:
        """Return whether loadings of all patches are computed, not of active ones alone."""
        return self.settings.size == 2 * self.settings.stride

    def layers(self) -> list[str]:
        """Return the last layer alone."""
        return [self.layer]

    def outputs(self, recording: Recording, padding: Tensor | None) -> Iterator[Outputs]:
        """Yield loadings `(slices, channels * components, *positions)`, counted where the patch is active.

        At strides other than half the patch's side, of active patches alone: `(1, channels * components, patches)`.
        """
        features = recording.features[self.layer]
        if not has_patches(features, self.settings):
            return
        weights: Tensor | None = active_patches(recording, features, self.task, self.settings, padding)
        assert weights is not None
        if self.fixed:
            loadings = all_loadings(features, self.components.to(features), self.settings.stride)
        else:
            chosen = weights[:, 0] > 0
            loadings = chosen_loadings(features, self.components.to(features), self.settings.stride, chosen)
            weights = None
        bias = -(self.components * self.mean.unsqueeze(1)).flatten(2).sum(2).flatten()
        yield self.layer, loadings + bias.view(1, -1, *[1] * (loadings.ndim - 2)), weights

    def folded(self, maps: Mapping[str, Affine]) -> tuple[Self, Mapping[str, Affine]]:
        """Undo the layer's affine map in the filters, so that the loadings stay the same."""
        if self.layer not in maps:
            return self, {}
        shape = (-1, *[1] * (self.mean.ndim - 1))
        scale, shift = maps[self.layer].scale.view(shape), maps[self.layer].shift.view(shape)
        undone = replace(self, components=self.components / scale.unsqueeze(1), mean=self.mean * scale + shift)
        return undone, {}

    def tensors(self) -> dict[str, Tensor]:
        """Return components and mean."""
        return {"components": self.components, "mean": self.mean}

    def record(self) -> dict[str, Any]:
        """Return layer, patch settings and how the output is read."""
        return {"layer": self.layer, "patches": asdict(self.settings), "task": task_record(self.task)}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore the experts from a model file."""
        task = task_from_record(record["task"])
        settings = settings_from_table(PatchSettings, record["patches"], "the recorded patches")
        components, mean = tensors["components"], tensors["mean"]
        patch = (settings.size,) * (mean.ndim - 1)
        if components.shape != (len(mean), settings.components, *patch) or mean.shape != (len(mean), *patch):
            raise InputError(
                f"The prior is damaged: components {tuple(components.shape)} and mean {tuple(mean.shape)} of patches "
                f"do not fit {settings}. Fit the prior anew, or copy the file again."
            )
        return cls(str(record["layer"]), settings, task, components.float(), mean.float())


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
        return PCAExperts(self.layer, self.settings, self.task, components, mean)


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
