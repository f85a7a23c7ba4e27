"""Kernel density estimates of experts against their Gaussian approximations, as the paper's figure shows them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from scantune.densities.kde import KDE
from scantune.experts.recorder import LayerChoice
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.report.figures.base import figure_style, legend_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS_PER_ROW = 5
"""Panels beside each other."""

MAX_SLICES = 16
"""At most so many slices of a scan, evenly spread: each has thousands of pixels."""

KDE_COLOUR, GAUSSIAN_COLOUR = "#0072b2", "#d55e00"


@dataclass(frozen=True)
class LeastGaussian:
    """The channel of a layer whose distribution is least like a Gaussian.

    Attributes:
        channel: Its number.
        divergence: KL from the kernel density estimate to the Gaussian of the same mean and variance, in nats.
        typical: The median of that divergence over the layer's channels.
        points: Where the densities are taken, in deviations from the channel's mean.
        kde: The estimate's heights there.
        gaussian: The Gaussian's heights there.
    """

    channel: int
    divergence: float
    typical: float
    points: NDArray[np.float64]
    kde: NDArray[np.float64]
    gaussian: NDArray[np.float64]


def least_gaussian(
    network: nn.Module, volume: Tensor, mask: Tensor | None = None, layers: LayerChoice = None
) -> dict[str, LeastGaussian]:
    """Return the channel of each layer with the largest KL between the estimate and the Gaussian (Eq. 16 and 10).

    Args:
        network: Any network; a pixel of a channel of its layers is a sample.
        volume: One subject's slices `(slices, channels, height, width)`, as the network expects them.
        mask: True where a pixel is padding, `(slices, 1, height, width)`.
        layers: As in `FieldOfExperts.fit`.
    """
    every = slice(None, None, -(-len(volume) // MAX_SLICES))
    masks = None if mask is None else [mask[every]]
    # The prior of one subject standardises each channel by that subject's own mean and deviation.
    prior = FieldOfExperts.fit(network, [volume[every]], masks=masks, layers=layers, density="kde")
    found = {}
    for layer, field in prior.families["cnn"].layers.items():
        density = field.density
        assert isinstance(density, KDE)
        points = density.grid.points()
        heights = density.heights[0].double()
        gaussian = (-points.square() / 2).exp() / math.sqrt(2 * math.pi)
        divergences = (heights * (heights.log() - gaussian.log())).sum(1) * density.grid.step
        divergences = torch.where(field.kept, divergences, -math.inf)
        channel = int(divergences.argmax())
        found[layer] = LeastGaussian(
            channel,
            float(divergences[channel]),
            float(divergences[field.kept].median()),
            points.numpy(),
            heights[channel].numpy(),
            gaussian.numpy(),
        )
    return found


def density_figure(found: Mapping[str, LeastGaussian], title: str) -> "Figure":
    """Draw a panel per layer with both densities of its least Gaussian channel."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    across = min(len(found), LAYERS_PER_ROW)
    down = -(-len(found) // across)
    with figure_style():
        figure = Figure(figsize=(max(2.5 * across, 5.0), 2.1 * down + 1.0), layout="constrained")
        panels = list(figure.subplots(down, across, sharex=True, squeeze=False).flat)
        for number, (panel, one) in enumerate(zip(panels, found.values(), strict=False), start=1):
            panel.fill_between(one.points, one.kde, color=KDE_COLOUR, alpha=0.25, linewidth=0)
            panel.plot(one.points, one.kde, color=KDE_COLOUR, linewidth=1.6)
            panel.plot(one.points, one.gaussian, color=GAUSSIAN_COLOUR, linewidth=1.6, linestyle="--")
            panel.set_title(
                f"l = {number}, c = {one.channel}\nKL {one.divergence:.2f} (median {one.typical:.2f})", fontsize=9
            )
            panel.set_yticks([])
            panel.spines["left"].set_visible(False)
            panel.set_xlim(-4, 4)
            panel.set_ylim(bottom=0)
        for panel in panels[len(found) :]:
            panel.set_visible(False)
        for panel in panels[max(len(found) - across, 0) : len(found)]:
            panel.tick_params(labelbottom=True)
        figure.suptitle(f"{title}, in deviations from its mean", fontsize=12)
        handles = (("kernel density estimate", KDE_COLOUR, "-"), ("Gaussian", GAUSSIAN_COLOUR, "--"))
        legend_below(figure, [Line2D([], [], color=c, linestyle=dash, label=name) for name, c, dash in handles])
    return figure
