"""Denoising autoencoder (Karani et al. 2021, as compared in the paper): make predictions anatomically plausible."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.experts.base import at_least_float32
from scantune.methods.base import Method, MethodOptions, ModelParts, Terms
from scantune.networks import AdaptableNetwork, Denoiser, fold_batch_norm
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume

EPSILON = 1e-10
"""In the denominator of a Dice: a class that is nowhere scores 0, a constant, and gives no gradient."""


@dataclass(frozen=True)
class DAEOptions(MethodOptions):
    """What can be chosen; the defaults are the paper's."""

    learning_rate: float = 1e-3
    """Adam's."""
    refresh: int = 10
    """Steps between two passes of the denoiser. Only steps with a fresh pass can be chosen, so take more steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refresh < 1:
            raise InputError(f"The option refresh must be 1 or more, got {self.refresh}.")


class DAE(Method):
    """Follows, by the soft Dice, what a denoising autoencoder makes of the whole volume's prediction.

    It is one of the four existing methods that the paper compares with (Section 4.1.3): its prior H_psi (Section 1.3)
    is a network in the space of outputs, min_phi 1 - Dice(S(N_phi(x)), H_psi(S(N_phi(x)))), and, other than a Field of
    Experts, has a distribution shift problem of its own (Section 1.4). The Dice is of the whole volume, per class,
    averaged over all classes, background included. Padding counts: it is background in the training labels, too.

    The denoiser's output is a constant between two passes, every `refresh` steps. Only right after a pass is the
    objective a function of the parameters alone; later ones measure how well an older output was reached, and are not
    comparable between passes. So only the steps with a fresh pass are eligible, as in the authors' code (which compares
    their hard, not soft, Dice).
    """

    name: ClassVar[str] = "dae"
    objective: ClassVar[str] = "one minus Dice"
    Options = DAEOptions
    options: DAEOptions
    steady = False
    refuses: ClassVar[dict[str, str]] = {
        "registration": "its denoising autoencoder is trained with the corruptions that are expected at test time, and "
        "designing such corruptions of deformations is not trivial"
    }

    def __init__(self, parts: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts, options)
        helper = parts.helpers.get(self.name)
        if not isinstance(helper, Denoiser):
            raise InputError(
                "Method dae needs a denoising autoencoder, and the model has none; train it with: "
                "scantune fit MODEL --data RECIPE --method dae"
            )
        self.helper = helper

    def prepare(self, network: AdaptableNetwork) -> None:
        """Copy the denoiser to the network's device."""
        super().prepare(network)
        self.denoiser = deepcopy(self.helper).to(next(network.parameters()).device).eval().requires_grad_(False)
        fold_batch_norm(self.denoiser)

    def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:  # noqa: ARG002
        """Denoise the present prediction of the whole volume every `refresh` steps."""
        self.fresh = step % self.options.refresh == 0
        if self.fresh:
            self.targets = self._denoised(volume)

    def measure(self, batch: Batch) -> Statistics:
        """Return twice the overlap and the sum of both, `(2, classes)`, in the slices of the denoiser's grid."""
        predicted = exclusive_probabilities(self.task.probabilities(self.network(batch.images)), self.task.exclusive)
        target = self.targets[batch.slices]
        known = target.sum(1, keepdim=True) > 0.5
        return {"dice": overlap_sums(predicted * known, target)}

    def terms(self, statistics: Statistics) -> Terms:
        """Return one minus the mean Dice over classes."""
        dice = mean_dice(statistics["dice"])
        return Terms(1 - dice, {"overlap": dice}, self.fresh)

    @torch.no_grad()
    def _denoised(self, volume: Volume, batch: int = 8) -> Tensor:
        """Return the denoised prediction, `(slices, classes, *spatial)`."""
        parts = [self.task.probabilities(self.network(part.images)) for part in volume.batches(batch)]
        predicted = exclusive_probabilities(torch.cat(parts), self.task.exclusive)
        if predicted.shape[1] != self.denoiser.classes:
            raise InputError(
                f"The denoising autoencoder is made for {self.denoiser.classes} classes, but the network has "
                f"{predicted.shape[1]}; train it for this model with: scantune fit MODEL --data RECIPE --method dae"
            )
        if predicted.ndim == 4:
            return self.denoiser.restore(predicted, volume.distance)
        # A 3D network has its slices along an axis of their own.
        whole = (self.denoiser.restore(each.movedim(1, 0), volume.distance) for each in predicted)
        return torch.stack([each.movedim(0, 1) for each in whole])


def exclusive_probabilities(probabilities: Tensor, already: bool) -> Tensor:
    """Return probabilities of exclusive classes, background first, in single precision or better.

    Args:
        probabilities: `(slices, channels, *spatial)`.
        already: Whether the channels are such classes; one independent channel is a structure and its complement.
    """
    values = at_least_float32(probabilities)
    if already:
        return values
    if values.shape[1] > 1:
        raise InputError(
            f"Method dae needs exclusive classes, but the network has {values.shape[1]} channels that may overlap, for "
            "which no label volume says what is plausible; use another method."
        )
    return torch.cat([1 - values, values], dim=1)


def overlap_sums(one: Tensor, other: Tensor) -> Tensor:
    """Return twice the overlap and the sum of both, per class; they add up over slices.

    Args:
        one: `(slices, classes, *spatial)`.
        other: The same.

    Returns:
        `(2, classes)`.
    """
    axes = (0, *range(2, one.ndim))
    return torch.stack([2 * (one * other).sum(axes), (one + other).sum(axes)])


def mean_dice(sums: Tensor) -> Tensor:
    """Return the mean over classes of the soft Dice, from `overlap_sums`."""
    return (sums[0] / (sums[1] + EPSILON)).mean()
