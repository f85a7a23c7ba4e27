"""Discs with a core as label maps, and their readings."""

import torch
from torch import Tensor

from scantune.prior.coefficients import Coefficients, Contest, FitCounts, LocalCoefficients
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings


def disc(radius: float, core: float, shift: int = 0, size: int = 40) -> Tensor:
    """Draw a disc 1 with a core 2 in two slices."""
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    distance = ((rows - size / 2) ** 2 + (columns - size / 2 - shift) ** 2).sqrt()
    labels = (distance < radius).long() + (distance < core).long()
    return labels.expand(2, size, size)


def readings_of(labels: Tensor, other: Tensor | None = None) -> Readings:
    """Read a label map that is as steady as `other` lets it be."""
    other = labels if other is None else other
    return Readings.of(labels, {"moved": other, "mirrored": other}, structures=2)


RADII = (11.0, 11.5, 12.0, 12.5, 13.0, 11.8, 12.2, 12.6)


def home_of_discs() -> HomeReadings:
    """Return home readings of eight people with a disc of each radius."""
    people = [readings_of(disc(radius, radius / 2), disc(radius, radius / 2, shift=1)) for radius in RADII]
    return HomeReadings.fit(people, [[0.94, 0.90]] * len(RADII))


LOCAL = LocalCoefficients(
    fitted=Coefficients(unsteady=1.0, widest=(2.0, 0.5)),
    error=Contest(0.04, 0.05),
    reach=Contest(0.03, 0.02),
    gain=0.08,
    value=Contest(0.1, 0.2),
    counts=FitCounts(10, 8, 400, 30),
)
"""Made-up local coefficients: the weights win, the range and the margin do not."""
