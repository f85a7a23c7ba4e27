"""Principal components of active patches, from sums that add up over batches."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from scantune.experts.base import at_least_float32
from scantune.experts.pca import PatchSettings, PCAExperts, active_patches, has_patches
from scantune.experts.recorder import Recording
from scantune.tasks import Task


@dataclass
class PatchScatter:
    """Number, sum and scatter matrix of the active patches of each channel, over any number of batches.

    Args:
        layer: The layer the patches are cut from.
        settings: Patch size, stride, components, threshold.
        task: Tells the foreground probability of an output.
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
        """Adds the active patches of one batch."""
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
        """The leading components of each channel; None when there were too few active patches."""
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
