"""Criteria that need no labels: confidence, estimates of Dice from confidence, and shapes of label maps.

Probabilities are `(slices, classes, height, width)`, labels and references `(slices, height, width)` with 0 for the
background. What is read by structure is a list with a number for each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

NEAR = 5
"""Side in pixels of the square by which the predicted foreground is widened before confidence is averaged."""

Bools = NDArray[np.bool_]


def overlap(claimed: Tensor, predicted: Tensor) -> float:
    """Compute the Dice of what is claimed to be a structure, 0 to 1 a pixel, and its predicted pixels."""
    total = float(claimed.sum() + predicted.sum())
    return 2 * float(claimed[predicted].sum()) / total if total else 0.0


def soft_dice(probabilities: Tensor, labels: Tensor) -> list[float]:
    """Compute the Dice of the probabilities of each structure and its predicted pixels."""
    return [overlap(probabilities[:, value], labels == value) for value in range(1, probabilities.shape[1])]


def near_foreground(labels: Tensor) -> Tensor:
    """Return True at the predicted foreground and around it."""
    return F.max_pool2d((labels > 0).float()[:, None], NEAR, 1, NEAR // 2)[:, 0] > 0


def confidence(probabilities: Tensor, labels: Tensor) -> float:
    """Compute the mean probability of the label at and around the foreground; 0 without foreground."""
    near = near_foreground(labels)
    return float(probabilities.amax(1)[near].mean()) if near.any() else 0.0


def entropy(probabilities: Tensor, labels: Tensor) -> float:
    """Compute the mean entropy at and around the foreground, as a share of the largest; 1 without foreground."""
    near = near_foreground(labels)
    each = -(probabilities.clamp_min(1e-9).log() * probabilities).sum(1) / math.log(probabilities.shape[1])
    return float(each[near].mean()) if near.any() else 1.0


def cooled(probabilities: Tensor, temperature: float) -> Tensor:
    """Return probabilities whose logits are divided by a temperature."""
    return (probabilities.clamp_min(1e-9).log() / temperature).softmax(1)


def bisect(function: Callable[[float], float], low: float, high: float, wanted: float, rounds: int = 24) -> float:
    """Return where a falling function has a value, or the nearer end of the interval."""
    for _ in range(rounds):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > wanted else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class ConfidenceEstimates:
    """Estimates of Dice from confidence with parameters by class, after Li et al. (MICCAI 2022).

    Each estimate is exact on average over the home scans.

    Args:
        temperatures: Temperatures by structure; the Dice of the cooled probabilities is the estimate CS-TS.
        differences: Amounts by which the soft Dice exceeds Dice; the soft Dice less these is the estimate CS-DoC.
        thresholds: Cooled probabilities from which a pixel counts as the structure; the Dice of these pixels and the
            predicted ones is the estimate CS-ATC.
    """

    temperatures: tuple[float, ...]
    differences: tuple[float, ...]
    thresholds: tuple[float, ...]

    @classmethod
    def fit(cls, home: Sequence[tuple[Tensor, Tensor]]) -> Self:
        """Find the parameters from probabilities and references of home scans."""
        classes = home[0][0].shape[1]
        found: list[tuple[float, float, float]] = []
        for value in range(1, classes):
            scans = [(each, each.argmax(1) == value) for each, _ in home]
            true = float(
                np.mean([overlap((ref == value).float(), own) for (_, ref), (_, own) in zip(home, scans, strict=True)])
            )

            def soft(logarithm: float, value: int = value, scans: list[tuple[Tensor, Tensor]] = scans) -> float:
                return float(np.mean([overlap(cooled(p, math.exp(logarithm))[:, value], own) for p, own in scans]))

            temperature = math.exp(bisect(soft, math.log(0.05), math.log(20), true))
            cold = [(cooled(p, temperature)[:, value], own) for p, own in scans]
            found.append((temperature, soft(0.0) - true, _threshold(cold, true)))
        return cls(*zip(*found, strict=True))

    def by_temperature(self, probabilities: Tensor, labels: Tensor) -> list[float]:
        """Estimate Dice by class-specific temperatures."""
        return [overlap(each, labels == value) for value, each in self._cold(probabilities)]

    def by_difference(self, probabilities: Tensor, labels: Tensor) -> list[float]:
        """Estimate Dice by class-specific differences of confidence."""
        pairs = zip(soft_dice(probabilities, labels), self.differences, strict=True)
        return [min(max(soft - difference, 0.0), 1.0) for soft, difference in pairs]

    def by_threshold(self, probabilities: Tensor, labels: Tensor) -> list[float]:
        """Estimate Dice by class-specific thresholds of confidence."""
        pairs = zip(self._cold(probabilities), self.thresholds, strict=True)
        return [overlap((each > threshold).float(), labels == value) for (value, each), threshold in pairs]

    def _cold(self, probabilities: Tensor) -> list[tuple[int, Tensor]]:
        """Return the numbers of the structures, and their probabilities at their temperatures."""
        return [(n, cooled(probabilities, each)[:, n]) for n, each in enumerate(self.temperatures, 1)]


def _threshold(cold: Sequence[tuple[Tensor, Tensor]], true: float) -> float:
    """Return the threshold whose Dice is closest to the true one, of quantiles of the predicted probabilities."""
    inside = torch.cat([each[own] for each, own in cold])
    if not len(inside):
        return 0.5
    tried = torch.quantile(inside[:: max(len(inside) // 100_000, 1)], torch.linspace(0, 0.99, 100)).tolist()
    return min(
        tried, key=lambda t: abs(float(np.mean([overlap((each > t).float(), own) for each, own in cold])) - true)
    )


def largest_component(mask: Bools) -> float:
    """Compute the share of a structure in the largest component of each slice."""
    biggest = 0
    for each in mask:
        parts, count = ndimage.label(each)
        biggest += int(np.bincount(parts.ravel())[1:].max()) if count else 0
    return biggest / int(mask.sum())


def continuity(mask: Bools) -> float:
    """Compute the Dice between neighbouring slices, over all of them; 1 for a single slice."""
    total = int(mask[1:].sum() + mask[:-1].sum())
    return 2 * int((mask[1:] & mask[:-1]).sum()) / total if total else 1.0


def outline(mask: Bools) -> float:
    """Compute the length of the outline over the root of the area, the mean over slices with any of it."""
    ratios = []
    for each in mask[mask.any((1, 2))]:
        padded = np.pad(each, 1)
        length = int((padded[1:] != padded[:-1]).sum() + (padded[:, 1:] != padded[:, :-1]).sum())
        ratios.append(length / math.sqrt(each.sum()))
    return float(np.mean(ratios))


def depth(mask: Bools, foreground: Bools) -> float:
    """Compute the mean distance to the outside of the foreground, over the radius of a disc of its area."""
    deep = np.stack([ndimage.distance_transform_edt(np.pad(each, 1))[1:-1, 1:-1] for each in foreground])
    radius = math.sqrt(foreground.sum() / max(int(foreground.any((1, 2)).sum()), 1) / math.pi)
    return float(deep[mask].mean()) / radius


def shapes(labels: Tensor, structures: int) -> dict[str, list[float | None]]:
    """Read the shape of each structure by name of the reading; None where there is nothing of it."""
    pixels = labels.cpu().numpy()
    found: dict[str, list[float | None]] = {name: [] for name in ("largest", "continuity", "outline", "depth")}
    for value in range(1, structures + 1):
        mask = pixels == value
        there = bool(mask.any())
        found["largest"].append(largest_component(mask) if there else None)
        found["continuity"].append(continuity(mask) if there else None)
        found["outline"].append(outline(mask) if there else None)
        found["depth"].append(depth(mask, pixels > 0) if there else None)
    return found
