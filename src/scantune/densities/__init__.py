"""Densities: the 1D distributions of the experts' outputs."""

from scantune.densities.base import Density
from scantune.densities.gaussian import Gaussian, SummarisedGaussian

DENSITIES: dict[str, type[Density]] = {"gaussian": Gaussian}

STORED: dict[str, type[Density]] = {**DENSITIES, "gaussian-summary": SummarisedGaussian}
"""The forms a prior file may hold: the densities themselves, and what a summarised prior keeps of them."""

__all__ = ["DENSITIES", "STORED", "Density", "Gaussian", "SummarisedGaussian"]
