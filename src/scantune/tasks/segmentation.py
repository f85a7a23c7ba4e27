"""Segmentation: the output is a class for every pixel."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.kernels import usable
from scantune.tasks.base import Measure, Task, main_output, soft_dice_loss

Activation = Literal["softmax", "sigmoid", "none"]
Foreground = Iterable[int] | Callable[[Any], Tensor] | Literal["max"] | None
"""Output channels, or a function of the raw output, or None for all but the background, or `max` for the likeliest."""

ACTIVATIONS: tuple[Activation, ...] = ("softmax", "sigmoid", "none")

TOLERANCE = 1e-3
"""How far probabilities may be off by rounding."""


@dataclass(frozen=True)
class Segmentation(Task):
    """Reads a network's output as class probabilities.

    Args:
        activation: What turns the raw output into probabilities: `softmax` over mutually exclusive classes, `sigmoid`
            for independent ones, `none` where the network already gives probabilities.
        exclusive: Whether the channels are one class each, background first. With independent (sigmoid) channels there
            is no background channel.
        structures: The output channels that count as foreground; by default all but the background.
        rule: A function from the raw output to the foreground probability `(slices, 1, *spatial)`, where no choice of
            channels will do. It cannot be stored in a file.
        likeliest: Whether the foreground probability is that of the likeliest structure, as in the authors' code, and
            not of any structure.
    """

    name: ClassVar[str] = "segmentation"
    method: ClassVar[str] = "foe-cnn-pca"
    judged_by: ClassVar[Measure] = "stability"
    activation: Activation = "softmax"
    exclusive: bool = True
    structures: tuple[int, ...] | None = None
    rule: Callable[[Any], Tensor] | None = None
    likeliest: bool = False

    @classmethod
    @torch.no_grad()
    def detect(cls, network: Callable[[Tensor], Any], images: Tensor, foreground: Foreground = None) -> Self:
        """Detect whether a network gives logits or probabilities, of exclusive classes or not.

        Logits may happen to lie between 0 and 1 on a scan; probabilities do so on whatever they are made from, strong
        noise included.

        Args:
            network: The network, in evaluation mode.
            images: What it is made for, `(slices, channels, *spatial)`.
            foreground: What counts as foreground.
        """
        if callable(foreground):
            return replace(cls.detect(network, images), rule=foreground)
        if isinstance(foreground, str):
            if foreground != "max":
                raise InputError(f"foreground must be output channels, a function or 'max', got {foreground!r}.")
            return replace(cls.detect(network, images), likeliest=True)
        structures = None if foreground is None else tuple(foreground)
        values = main_output(network(images)).float()
        bounded = _bounded(values) and _bounded(main_output(network(_strong_noise(images))).float())
        sums_to_one = bool(torch.allclose(values.sum(1), torch.ones_like(values.sum(1)), atol=TOLERANCE))
        exclusive = values.shape[1] > 1 and (not bounded or sums_to_one)
        activation: Activation = "none" if bounded else ("softmax" if exclusive else "sigmoid")
        return cls(activation, exclusive, structures)

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}.")

    @property
    def pointwise(self) -> bool:
        """Return True, unless a rule defines the foreground."""
        return self.rule is None

    def probabilities(self, output: Any) -> Tensor:
        """Return class probabilities `(slices, classes, *spatial)`."""
        values = main_output(output)
        if self.activation == "softmax":
            return values.softmax(1)
        return values.sigmoid() if self.activation == "sigmoid" else values

    def foreground(self, output: Any) -> Tensor:
        """Return the probability of any foreground structure, `(slices, 1, *spatial)`."""
        if self.rule is not None:
            return self.rule(output)
        probabilities = self.probabilities(output)
        if max(self.structures or (0,)) >= probabilities.shape[1]:
            raise InputError(
                f"The foreground is said to be the output channels {self.structures}, but the network has "
                f"{probabilities.shape[1]}, counted from 0."
            )
        if self.likeliest:
            return probabilities[:, int(self.exclusive) :].amax(1, keepdim=True)
        if self.exclusive:
            if self.structures is None:
                return 1 - probabilities[:, :1]
            return probabilities[:, list(self.structures)].sum(1, keepdim=True)
        chosen = probabilities if self.structures is None else probabilities[:, list(self.structures)]
        return 1 - (1 - chosen).prod(1, keepdim=True)

    def labels(self, probabilities: Tensor) -> Tensor:
        """Return the likeliest class; of independent channels the likeliest above a half, or background."""
        if self.exclusive:
            return probabilities.argmax(1)
        best, channel = probabilities.max(1)
        return torch.where(best > 0.5, channel + 1, 0)

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """Return one minus the mean soft Dice, over images and all classes."""
        values = main_output(output)
        if self.activation == "softmax" and usable(values):
            from scantune.kernels.triton.dice import softmax_dice_loss

            return softmax_dice_loss(values, target)
        # Half-precision outputs would make a coarse loss.
        probabilities = self.probabilities(values.to(torch.promote_types(values.dtype, torch.float32)))
        return soft_dice_loss(probabilities, target)

    def record(self) -> dict[str, Any]:
        """Return the task as JSON."""
        if self.rule is not None:
            raise InputError(
                "A foreground given as a function cannot be stored; give foreground= as output channels instead."
            )
        structures = None if self.structures is None else list(self.structures)
        record = {"activation": self.activation, "exclusive": self.exclusive, "structures": structures}
        return record | ({"likeliest": True} if self.likeliest else {})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Restore the task from JSON."""
        structures = None if record["structures"] is None else tuple(record["structures"])
        if not isinstance(record["exclusive"], bool) or not all(
            isinstance(n, int) and n >= 0 for n in structures or ()
        ):
            raise InputError(
                "The recorded task must say exclusive = true or false, and structures as output channels or null, not "
                f"{record['exclusive']!r} and {structures!r}."
            )
        likeliest = bool(record.get("likeliest", False))
        return cls(record["activation"], record["exclusive"], structures, likeliest=likeliest)


def _bounded(values: Tensor) -> bool:
    """Return whether all values may be probabilities; NaN, which noise may lead to, is ignored."""
    return not bool(((values < -TOLERANCE) | (values > 1 + TOLERANCE)).any())


def _strong_noise(images: Tensor) -> Tensor:
    """Return the same noise each time, of both signs, some 10,000 times as strong as scans are."""
    generator = torch.Generator().manual_seed(0)
    return (1e4 * torch.randn(images.shape, generator=generator)).to(images)
