"""The contract of a task: what a network's output means."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from scantune.tasks.outputs import OutputChoice, main_output

Measure = Literal["stability", "likeness"]
"""What the guard judges steps by: how stable predictions are, or how far a warped atlas looks like the scan."""


class Task(ABC):
    """What a task network is for: how its raw output is read, trained and scored."""

    name: ClassVar[str]
    method: ClassVar[str]
    """The method that a network is adapted by where none is asked for: the best of those that were measured."""
    judged_by: ClassVar[Measure]
    """What the guard judges the steps of an adaptation by."""
    exclusive: bool
    """Whether the channels of the probabilities are one class each, background first."""
    overlapping: bool
    """Whether the labels are masks, one for each structure, which may overlap."""
    output: OutputChoice
    """Where the tensor that counts is in the network's output."""

    @property
    def remarks(self) -> list[str]:
        """Return sentences on what was assumed about the output, as no output can show it."""
        return []

    def scores(self, output: Any) -> Tensor:
        """Return the tensor that counts in the network's raw output, in single precision or better."""
        values = main_output(output, self.output)
        return values.to(torch.promote_types(values.dtype, torch.float32))

    @property
    def pointwise(self) -> bool:
        """Return whether the foreground probability of a pixel depends on the output at that pixel alone."""
        return False

    @abstractmethod
    def loss(self, output: Any, target: Tensor) -> Tensor:
        """Return the training loss, a scalar."""

    @abstractmethod
    def probabilities(self, output: Any) -> Tensor:
        """Return class probabilities `(slices, classes, *spatial)` from the network's raw output."""

    def activated(self, values: Tensor) -> Tensor:
        """Return class probabilities from the tensor that counts in an output; by default it holds them."""
        return values

    @abstractmethod
    def labels(self, probabilities: Tensor) -> Tensor:
        """Return labels `(slices, *spatial)`, 0 for background, from class probabilities.

        Of structures that may overlap these are masks `(slices, structures, *spatial)` of type bool.
        """

    def predict(self, output: Any) -> Tensor:
        """Return the labels that a user sees, from the network's raw output."""
        return self.labels(self.probabilities(output))

    def maps(self, output: Any) -> dict[str, Tensor]:  # noqa: ARG002
        """Return further maps that a result keeps of an output, `(slices, channels, *spatial)` by name."""
        return {}

    def quality(self, maps: Mapping[str, Tensor]) -> dict[str, float]:  # noqa: ARG002
        """Return numbers on the maps of a scan for its manifest, by name."""
        return {}

    @abstractmethod
    def foreground(self, output: Any) -> Tensor:
        """Return the probability that a pixel belongs to the region of interest, `(slices, 1, *spatial)`."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return everything needed to restore the task, as JSON."""

    @classmethod
    @abstractmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Restore a task from `record`."""


def soft_dice_loss(probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return 1 - soft Dice per image and class, mean over images and all classes, background included.

    The epsilon stands in the denominator only: a class that is absent from an image scores 0 and gives no gradient.

    Args:
        probabilities: `(slices, classes, *spatial)`.
        labels: `(slices, *spatial)` integers.
    """
    classes = torch.arange(probabilities.shape[1], device=labels.device)
    mine = labels.unsqueeze(1) == classes.view(-1, *[1] * (labels.ndim - 1))
    spatial = tuple(range(2, probabilities.ndim))
    overlap = 2 * torch.where(mine, probabilities, 0).sum(spatial)
    total = probabilities.sum(spatial) + mine.sum(spatial)
    return 1 - (overlap / (total + 1e-10)).mean()
