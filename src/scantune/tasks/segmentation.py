"""Segmentation: the output is a class for every pixel."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.kernels import usable
from scantune.tasks.base import Measure, Task, soft_dice_loss
from scantune.tasks.outputs import OutputChoice, main_output

Activation = Literal["softmax", "sigmoid", "none"]
Foreground = Iterable[int] | Callable[[Any], Tensor] | Literal["max"] | None
"""Output channels, or a function of the raw output, or None for all but the background, or `max` for the likeliest."""

ACTIVATIONS: tuple[Activation, ...] = ("softmax", "sigmoid", "none")

ASSUMED = {
    "softmax": "The network gives logits of several channels, which do not show whether classes exclude each other: "
    "softmax was assumed. For structures that may overlap, give task=Segmentation(overlapping=True).",
    "none": "The network gives several channels from 0 to 1 that do not sum to 1: probabilities of structures that may "
    "overlap were assumed. For classes that exclude each other, give task=Segmentation().",
}
"""Remarks on what several channels do not show, by the activation that was assumed."""

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
        overlapping: Whether structures may overlap, as the regions of BraTS do. The prediction is then a mask of each
            channel, `(slices, channels, *spatial)`. It makes `exclusive` False, and `sigmoid` of `softmax`.
        output: Where the class scores are in the network's output: a key, an index, or a function, which cannot be
            stored in a file. By default a tensor, the first of a tuple, or `out`, `logits` or `pred` of a dictionary.
        assumed: Whether it is a guess that the channels exclude each other, or that they do not.
    """

    name: ClassVar[str] = "segmentation"
    method: ClassVar[str] = "foe-cnn-pca"
    judged_by: ClassVar[Measure] = "stability"
    activation: Activation = "softmax"
    exclusive: bool = True
    structures: tuple[int, ...] | None = None
    rule: Callable[[Any], Tensor] | None = None
    likeliest: bool = False
    overlapping: bool = False
    output: OutputChoice = None
    assumed: bool = field(default=False, compare=False)

    @classmethod
    @torch.no_grad()
    def detect(
        cls,
        network: Callable[[Tensor], Any],
        images: Tensor,
        foreground: Foreground = None,
        output: OutputChoice = None,
    ) -> Self:
        """Detect whether a network gives logits or probabilities, of exclusive classes or not.

        Logits may happen to lie between 0 and 1 on a scan; probabilities do so on whatever they are made from, strong
        noise included.

        Args:
            network: The network, in evaluation mode.
            images: What it is made for, `(slices, channels, *spatial)`.
            foreground: What counts as foreground.
            output: Where the class scores are in the network's output.
        """
        if callable(foreground):
            return replace(cls.detect(network, images, output=output), rule=foreground)
        if isinstance(foreground, str):
            if foreground != "max":
                raise InputError(f"foreground must be output channels, a function or 'max', got {foreground!r}.")
            return replace(cls.detect(network, images, output=output), likeliest=True)
        structures = None if foreground is None else tuple(foreground)
        probe = cls(output=output)
        values = probe.scores(network(images))
        bounded = _bounded(values) and _bounded(probe.scores(network(_strong_noise(images))))
        sums_to_one = bool(torch.allclose(values.sum(1), torch.ones_like(values.sum(1)), atol=TOLERANCE))
        exclusive = values.shape[1] > 1 and (not bounded or sums_to_one)
        activation: Activation = "none" if bounded else ("softmax" if exclusive else "sigmoid")
        several = values.shape[1] > 1
        return cls(
            activation,
            exclusive,
            structures,
            overlapping=several and not exclusive,
            output=output,
            assumed=several and not (bounded and sums_to_one),
        )

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}.")
        if self.overlapping:
            object.__setattr__(self, "exclusive", False)
            object.__setattr__(self, "activation", "sigmoid" if self.activation == "softmax" else self.activation)

    @property
    def pointwise(self) -> bool:
        """Return True, unless a function defines the foreground or the output."""
        return self.rule is None and not callable(self.output)

    @property
    def remarks(self) -> list[str]:
        """Return a sentence if it is a guess whether classes exclude each other."""
        return [ASSUMED[self.activation]] if self.assumed and self.activation in ASSUMED else []

    def probabilities(self, output: Any) -> Tensor:
        """Return class probabilities `(slices, classes, *spatial)`."""
        return self.activated(self.scores(output))

    def activated(self, values: Tensor) -> Tensor:
        """Return the probabilities of class scores."""
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
        """Return the likeliest class; of independent channels the likeliest above a half, or background.

        Of structures that may overlap, return for each whether it is above a half, `(slices, structures, *spatial)`.
        """
        if self.overlapping:
            return probabilities > 0.5
        if self.exclusive:
            return probabilities.max(1).indices  # the same as `argmax`, which is ten times slower on a CPU
        best, channel = probabilities.max(1)
        return torch.where(best > 0.5, channel + 1, 0)

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """Return one minus the mean soft Dice, over images and all classes."""
        values = main_output(output, self.output)
        if self.activation == "softmax" and usable(values):
            from scantune.kernels.triton.dice import softmax_dice_loss

            return softmax_dice_loss(values, target)
        # Half-precision outputs would make a coarse loss.
        return soft_dice_loss(self.probabilities(output), target)

    def record(self) -> dict[str, Any]:
        """Return the task as JSON."""
        if self.rule is not None:
            raise InputError(
                "A foreground given as a function cannot be stored; give foreground= as output channels instead."
            )
        if callable(self.output):
            raise InputError(
                "An output given as a function cannot be stored; give output= as a key or an index, or wrap the "
                "network in a module that returns that tensor."
            )
        structures = None if self.structures is None else list(self.structures)
        record = {"activation": self.activation, "exclusive": self.exclusive, "structures": structures}
        further = {"likeliest": self.likeliest, "overlapping": self.overlapping, "assumed": self.assumed}
        record |= {name: True for name, value in further.items() if value}
        return record if self.output is None else record | {"output": self.output}

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
        output = record.get("output")
        if not isinstance(output, str | int | None) or isinstance(output, bool):
            raise InputError(f"The recorded task must have a key or an index as output, not {output!r}.")
        likeliest, overlapping, assumed = (
            bool(record.get(name, False)) for name in ("likeliest", "overlapping", "assumed")
        )
        return cls(
            record["activation"],
            record["exclusive"],
            structures,
            likeliest=likeliest,
            overlapping=overlapping,
            output=output,
            assumed=assumed,
        )


def _bounded(values: Tensor) -> bool:
    """Return whether all values may be probabilities; NaN, which noise may lead to, is ignored."""
    return not bool(((values < -TOLERANCE) | (values > 1 + TOLERANCE)).any())


def _strong_noise(images: Tensor) -> Tensor:
    """Return the same noise each time, of both signs, some 10,000 times as strong as scans are."""
    generator = torch.Generator().manual_seed(0)
    return (1e4 * torch.randn(images.shape, generator=generator)).to(images)
