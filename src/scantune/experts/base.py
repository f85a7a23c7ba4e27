"""The contract of an expert family: scalar functions of the features."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from scantune.experts.recorder import Recording
from scantune.networks import Affine

Outputs = tuple[str, Tensor, Tensor | None]
"""Group name, outputs `(slices, experts, *spatial)`, and weights `(slices, 1, *spatial)` or None for all ones."""


class Experts(ABC):
    """A family of experts by layer; divergences are averaged within a layer first, then over layers."""

    name: ClassVar[str]

    @property
    def fixed(self) -> bool:
        """Return whether the shapes of outputs do not depend on the features."""
        return True

    @abstractmethod
    def layers(self) -> list[str]:
        """Return the layers whose features the experts read."""

    @abstractmethod
    def outputs(self, recording: Recording, padding: Tensor | None) -> Iterator[Outputs]:
        """Yield the experts' outputs on one batch, layer by layer.

        Args:
            recording: A forward pass that has the features of `layers()`.
            padding: True where the image is padding, `(slices, 1, *spatial)`; None where there is none.
        """

    @abstractmethod
    def folded(self, maps: Mapping[str, Affine]) -> tuple[Self, Mapping[str, Affine]]:
        """Return the experts for a network whose layers' outputs went through affine maps.

        Returns:
            The experts, and the maps that their own outputs went through, by group.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a model file stores."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return the settings, as JSON."""

    @classmethod
    @abstractmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """Restore the experts from `record` and `tensors`."""


def image_weights(padding: Tensor | None, like: Tensor) -> Tensor | None:
    """Return 1 where a feature pixel's whole cell is free of padding, `(slices, 1, *spatial)`, else 0."""
    if padding is None:
        return None
    size = like.shape[2:]
    marked = padding.to(torch.promote_types(like.dtype, torch.float32))
    if marked.shape[2:] != size:
        pool = F.adaptive_max_pool2d if len(size) == 2 else F.adaptive_max_pool3d
        marked = pool(marked, tuple(size))
    return 1 - torch.as_tensor(marked)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert to single precision or better, since moments of half-precision features drown in rounding."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
