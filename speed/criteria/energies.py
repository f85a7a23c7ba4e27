"""Energies of a scan: how far moments of a network's features are from those of home scans, in nats a channel.

`foreground` compares mean and variance of each channel over pixels of the body, `joint` means and the covariance of all
channels, `by class` mean and variance over the pixels of each class, weighted by the predicted probabilities.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.experts import Recorder
from scantune.scans.volume import Volume, batch_size
from scantune.tasks import Task

RIDGE, FLOOR = 1e-2, 0.1
"""What is added to a channel's variance, and the least variance within a class, as shares of the variance at home."""


@dataclass(frozen=True)
class Moments:
    """Weights, means and second moments of a layer's channels, over the body and over the pixels of each class.

    Args:
        weight: Sums of weights `(1 + classes,)`, of the body first.
        first: Weighted sums `(1 + classes, channels)`.
        second: Weighted sums of products over the body `(channels, channels)`.
        squares: Weighted sums of squares `(1 + classes, channels)`.
    """

    weight: Tensor
    first: Tensor
    second: Tensor
    squares: Tensor

    @classmethod
    def of(cls, feature: Tensor, weights: Tensor) -> Self:
        """Sum up a feature `(slices, channels, *spatial)` with weights `(slices, 1 + classes, *spatial)`."""
        values = feature.transpose(0, 1).flatten(1).double()
        heavy = weights.transpose(0, 1).flatten(1).double()
        body = values * heavy[:1]
        return cls(heavy.sum(1), heavy @ values.T, body @ values.T, heavy @ values.square().T)

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in vars(self)))


LayerMoments = dict[str, Moments]


@torch.no_grad()
def layer_moments(network: nn.Module, layers: Sequence[str], volume: Volume, task: Task) -> LayerMoments:
    """Sum up the features of a network's layers for a scan, over pixels that are neither 0 nor padding."""
    total: LayerMoments = {}
    shrink = F.adaptive_avg_pool2d if volume.images.ndim == 4 else F.adaptive_avg_pool3d
    with Recorder(network, layers) as record:
        for part in volume.batches(batch_size(volume.images)):
            recording = record(part.images)
            body = (part.images[:, :1] > 0).float()
            body = body if part.padding is None else body * ~part.padding
            weights = torch.cat([body, body * task.probabilities(recording.output).float()], 1)
            for name, feature in recording.features.items():
                found = Moments.of(feature, shrink(weights, feature.shape[2:]))
                total[name] = total[name] + found if name in total else found
    return total


def summed(scans: Iterable[LayerMoments]) -> LayerMoments:
    """Add up the moments of several scans."""
    total: LayerMoments = {}
    for scan in scans:
        total = {name: total[name] + found if name in total else found for name, found in scan.items()}
    return total


def divergence(mean: Tensor, variance: Tensor, usual_mean: Tensor, usual_variance: Tensor) -> Tensor:
    """Compute the KL divergence of Gaussians from usual ones, channel by channel."""
    ratio = variance / usual_variance
    return 0.5 * (ratio - 1 - ratio.log() + (mean - usual_mean).square() / usual_variance)


def joint_divergence(mean: Tensor, covariance: Tensor, usual_mean: Tensor, usual: Tensor) -> float:
    """Compute the KL divergence of a Gaussian of several channels from a usual one."""
    apart = mean - usual_mean
    trace = torch.linalg.solve(usual, covariance).trace() + apart @ torch.linalg.solve(usual, apart)
    logarithm = torch.logdet(usual) - torch.logdet(covariance)
    return float(0.5 * (trace - len(mean) + logarithm))


def energies(scan: LayerMoments, home: LayerMoments) -> dict[str, float]:
    """Return the energies of a scan by name, each the mean over layers."""
    found = [_layer_energies(scan[name], home[name]) for name in home]
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


def _layer_energies(scan: Moments, home: Moments) -> dict[str, float]:
    """Return the energies of one layer by name."""
    mean, usual_mean = scan.first[0] / scan.weight[0], home.first[0] / home.weight[0]
    usual = home.second / home.weight[0] - usual_mean.outer(usual_mean)
    alive = usual.diagonal() > 1e-8 * usual.diagonal().mean()
    scale = usual.diagonal()[alive].sqrt()
    ridge = RIDGE * torch.eye(len(scale), dtype=scale.dtype)

    def standard(moments: Moments, middle: Tensor) -> Tensor:
        covariance = moments.second / moments.weight[0] - middle.outer(middle)
        return covariance[alive][:, alive] / scale.outer(scale) + ridge

    own, theirs = standard(scan, mean), standard(home, usual_mean)
    one, other = (mean[alive] / scale, usual_mean[alive] / scale)
    plain = divergence(one, own.diagonal(), other, theirs.diagonal())
    return {
        "foreground": float(plain.mean()),
        "joint": joint_divergence(one, own, other, theirs) / len(scale),
        "by class": _by_class(scan, home, alive, scale),
    }


def _by_class(scan: Moments, home: Moments, alive: Tensor, scale: Tensor) -> float:
    """Return the mean divergence over classes and channels."""
    each = []
    for number in range(1, len(home.weight)):
        parts = []
        for moments in (scan, home):
            weight = moments.weight[number].clamp_min(1e-6)
            mean = (moments.first[number] / weight)[alive] / scale
            square = (moments.squares[number] / weight)[alive] / scale.square()
            parts += [mean, (square - mean.square()).clamp_min(0) + FLOOR]
        each.append(divergence(*parts).mean())
    return float(torch.stack(each).mean())
