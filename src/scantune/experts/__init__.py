"""Experts: scalar functions of a network's features."""

from scantune.experts.base import Experts
from scantune.experts.cnn import OUTPUT, CNNExperts
from scantune.experts.meters import Counts, Meter, Moments, MomentsByRows
from scantune.experts.pca import PatchSettings, PCAExperts
from scantune.experts.principal import PatchScatter
from scantune.experts.recorder import LayerChoice, Recorder, Recording, choose_layers, task_network
from scantune.experts.units import MeasuredReLU, Units

EXPERTS: dict[str, type[Experts]] = {"cnn": CNNExperts, "pca": PCAExperts}

__all__ = [
    "EXPERTS",
    "OUTPUT",
    "CNNExperts",
    "Counts",
    "Experts",
    "LayerChoice",
    "MeasuredReLU",
    "Meter",
    "Moments",
    "MomentsByRows",
    "PCAExperts",
    "PatchScatter",
    "PatchSettings",
    "Recorder",
    "Recording",
    "Units",
    "choose_layers",
    "task_network",
]
