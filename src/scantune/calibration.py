"""Calibration: what is typical of source subjects, so that an energy and a prediction can be judged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from scantune.tasks import Segmentation, Task, main_output

QUANTILE = 0.9
"""A scan is typical if its energy is below this quantile of held-out source subjects' energies."""


@dataclass(frozen=True)
class Calibration:
    """What is typical of source subjects; no number tells of a single one.

    Args:
        typical: The energy in nats below which a scan counts as typical, a quantile over subjects that the network was
            *not* trained on: training subjects look too typical, because the network has seen them.
        shares: Mean share of each structure in the predicted foreground `(structures,)`.
        spread: Standard deviation of these shares over subjects `(structures,)`.
    """

    typical: float
    shares: Tensor
    spread: Tensor

    @classmethod
    def of(cls, energies: Sequence[float], proportions: Tensor) -> Self:
        """From the energies of held-out subjects, and the proportions `(subjects, structures)` of source subjects."""
        level = torch.quantile(torch.tensor(energies, dtype=torch.double), QUANTILE)
        spread = proportions.std(0, correction=0).clamp_min(1e-3)
        return cls(float(level), proportions.mean(0).float().cpu(), spread.float().cpu())

    def oddness(self, counts: Tensor) -> float:
        """How far the proportions of a prediction are from the source's, in deviations of the oddest structure.

        Args:
            counts: Pixels of each structure `(structures,)`, background left out.
        """
        if float(counts.sum()) == 0:
            return math.inf
        shares = counts.cpu() / counts.cpu().sum()
        return float(((shares - self.shares) / self.spread).abs().max())

    def tensors(self) -> dict[str, Tensor]:
        """What is stored in a model file."""
        return {"typical": torch.tensor([self.typical]), "shares": self.shares, "spread": self.spread}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `tensors`."""
        return cls(float(tensors["typical"][0]), tensors["shares"], tensors["spread"])


def structure_counts(labels: Tensor, structures: int) -> Tensor:
    """Pixels of each structure of a label map, background left out, `(structures,)`."""
    return torch.bincount(labels.flatten(), minlength=structures + 1)[1 : structures + 1]


@torch.no_grad()
def predicted_proportions(network: nn.Module, volume: Tensor, task: Task | None = None, batch: int = 8) -> Tensor:
    """Share of each structure in the predicted foreground of a volume, `(structures,)`; by default segmented."""
    training = network.training
    network.eval()
    task = task or Segmentation.detect(network, volume[:1])
    counts = []
    for images in torch.split(volume, batch):
        output = network(images)
        structures = main_output(output).shape[1] - int(task.exclusive)
        counts.append(structure_counts(task.predict(output), structures).double())
    network.train(training)
    total = torch.stack(counts).sum(0)
    return total / total.sum().clamp_min(1)
