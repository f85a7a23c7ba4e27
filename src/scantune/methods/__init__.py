"""Methods: ways to adapt a network to a scan."""

from scantune.methods.base import Equipment, Method, Terms
from scantune.methods.entropy import Entropy
from scantune.methods.foe import FoECNN, FoECNNPCA
from scantune.methods.source import Source

METHODS: dict[str, type[Method]] = {
    "source": Source,
    "entropy": Entropy,
    "foe-cnn": FoECNN,
    "foe-cnn-pca": FoECNNPCA,
}

__all__ = ["METHODS", "Entropy", "Equipment", "FoECNN", "FoECNNPCA", "Method", "Source", "Terms"]
