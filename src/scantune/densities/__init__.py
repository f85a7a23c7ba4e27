"""Densities: the 1D distributions of the experts' outputs, and how far apart they are."""

from scantune.densities.base import Density, Standardization
from scantune.densities.divergences import DIVERGENCES, Divergence
from scantune.densities.gaussian import Gaussian, GaussianBase, SummarisedGaussian
from scantune.densities.gridded import GridDensity
from scantune.densities.histogram import Histogram
from scantune.densities.kde import ALPHA, KDE

DENSITIES: dict[str, type[Density]] = {"gaussian": Gaussian, "kde": KDE, "histogram": Histogram}

STORED: dict[str, type[Density]] = {**DENSITIES, "gaussian-summary": SummarisedGaussian}
"""The forms a prior file may hold: the densities themselves, and what a summarised prior keeps of them."""

__all__ = [
    "ALPHA",
    "DENSITIES",
    "DIVERGENCES",
    "KDE",
    "STORED",
    "Density",
    "Divergence",
    "Gaussian",
    "GaussianBase",
    "GridDensity",
    "Histogram",
    "Standardization",
    "SummarisedGaussian",
]
