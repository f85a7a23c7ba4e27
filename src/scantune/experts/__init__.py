"""Experts: scalar functions of a network's features."""

from scantune.experts.base import Experts
from scantune.experts.cnn import OUTPUT, CNNExperts
from scantune.experts.fused import (
    BinCountsOnGPU,
    FusedLayers,
    MeasuredReLU,
    MomentsOnCPU,
    MomentsOnGPU,
    StatisticsProgram,
)
from scantune.experts.pca import PatchScatter, PatchSettings, PCAExperts
from scantune.experts.recorder import LayerChoice, Recorder, Recording, choose_layers, last_layers
from scantune.networks import task_network

EXPERTS: dict[str, type[Experts]] = {"cnn": CNNExperts, "pca": PCAExperts}

__all__ = [
    "EXPERTS",
    "OUTPUT",
    "BinCountsOnGPU",
    "CNNExperts",
    "Experts",
    "FusedLayers",
    "LayerChoice",
    "MeasuredReLU",
    "MomentsOnCPU",
    "MomentsOnGPU",
    "PCAExperts",
    "PatchScatter",
    "PatchSettings",
    "Recorder",
    "Recording",
    "StatisticsProgram",
    "choose_layers",
    "last_layers",
    "task_network",
]
