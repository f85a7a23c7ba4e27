"""Stability: how far a prediction stays the same when the scan is changed in ways that should not matter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from scantune.runtime.threads import Threads, number_for
from scantune.scans.volume import batch_size
from scantune.tasks import Task


@dataclass(frozen=True)
class Perturbation:
    """A small change of a scan, and what undoes it in the prediction.

    Args:
        there: From images `(slices, channels, *spatial)` to changed ones.
        back: From what is predicted for the changed scan to what that says of the scan, the same last axes.
    """

    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def _mirror(values: Tensor) -> Tensor:
    return values.flip(-1)


def _same(values: Tensor) -> Tensor:
    return values


SHIFT = 3
"""Pixels by which a scan is moved; odd, so that it does not meet the grid of a pooling layer again."""

PERTURBATIONS: dict[str, Perturbation] = {
    "mirrored": Perturbation(_mirror, _mirror),
    "darker": Perturbation(lambda images: 0.9 * images, _same),
    "brighter": Perturbation(lambda images: 1.1 * images, _same),
    "moved": Perturbation(lambda v: v.roll((SHIFT, SHIFT), (-2, -1)), lambda v: v.roll((-SHIFT, -SHIFT), (-2, -1))),
}
"""By name."""

CHOSEN = ("mirrored", "darker", "brighter")
"""Those by which the guard looks, chosen by `scripts/guard_rules.py`."""

SLICES = 8
"""The most slices that are looked at, evenly spaced: a look is to cost less than a step."""


@dataclass(frozen=True)
class Scout:
    """Looks at what a network makes of some slices of a scan, as they are and perturbed.

    Args:
        images: The slices `(slices, channels, *spatial)`.
        task: How the network's output is read.
        names: The perturbations.
        channels: How many channels of the input are the image; None for all. Others stay as they are.
        threads: Share the slices, where there are any.
        chosen: Which slices of the scan these are, where they are known.
    """

    images: Tensor
    task: Task
    names: Sequence[str] = CHOSEN
    channels: int | None = None
    threads: Threads | None = None
    chosen: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        images: Tensor,
        task: Task,
        names: Sequence[str] = CHOSEN,
        channels: int | None = None,
        threads: Threads | None = None,
    ) -> "Scout":
        """Of at most `SLICES` slices of a scan."""
        number = len(images)
        chosen = torch.linspace(0, number - 1, min(SLICES, number)).round().long()
        return cls(images[chosen.to(images.device)], task, names, channels, threads, chosen.tolist())

    @torch.no_grad()
    def probabilities(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """The scan's own class probabilities `(slices, classes, *spatial)`, then those under each perturbation.

        Args:
            network: The network.
            own: The first of these, where they are known.
        """
        perturbed = [PERTURBATIONS[name] for name in self.names]
        changes = perturbed if own is not None else [Perturbation(_same, _same), *perturbed]
        images = torch.cat([self._changed(change, self.images) for change in changes])
        parts = torch.split(images, batch_size(images))
        # What was adapted may have got what two threads must not call at once.
        threads = self.threads if number_for(network, images) > 1 else None
        outputs = [network(part) for part in parts] if threads is None else threads.each(network, parts)
        found = torch.cat([self.task.probabilities(output).float() for output in outputs])
        each = torch.split(found, len(self.images))
        seen = [change.back(probabilities) for change, probabilities in zip(changes, each, strict=True)]
        return seen if own is None else [own.to(found), *seen]

    def _changed(self, change: Perturbation, images: Tensor) -> Tensor:
        if self.channels is None:
            return change.there(images)
        return torch.cat([change.there(images[:, : self.channels]), images[:, self.channels :]], 1)

    def labels(self, network: nn.Module, own: Tensor | None = None) -> list[Tensor]:
        """The same as labels `(slices, *spatial)`."""
        return [self.task.labels(probabilities) for probabilities in self.probabilities(network, own)]


def agreements(one: Tensor, other: Tensor, structures: int) -> list[float]:
    """Dice of each structure in two label maps; 1 where neither has it."""
    found = []
    for value in range(1, structures + 1):
        here, there = one == value, other == value
        total = float(here.sum() + there.sum())
        found.append(2 * float((here & there).sum()) / total if total else 1.0)
    return found


def stability(labels: Sequence[Tensor], structures: int) -> list[float]:
    """Mean Dice of a prediction with each of the perturbed scan's, by structure; the prediction comes first."""
    own, *others = labels
    return [fmean(each) for each in zip(*(agreements(own, other, structures) for other in others), strict=True)]
