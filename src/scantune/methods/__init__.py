"""Methods: ways to adapt a network to a scan."""

from scantune.errors import InputError
from scantune.methods.ae import AE
from scantune.methods.base import (
    ClosedForm,
    FastPath,
    Method,
    MethodOptions,
    ModelParts,
    OutputCache,
    Terms,
    Update,
    measure_batches,
)
from scantune.methods.batchnorm import BatchNorm
from scantune.methods.dae import DAE
from scantune.methods.entropy import Entropy
from scantune.methods.foe import FoECNN, FoECNNPCA
from scantune.methods.instance import Instance
from scantune.methods.source import Source

METHODS: dict[str, type[Method]] = {
    "source": Source,
    "batchnorm": BatchNorm,
    "entropy": Entropy,
    "dae": DAE,
    "ae": AE,
    "foe-cnn": FoECNN,
    "foe-cnn-pca": FoECNNPCA,
    "instance": Instance,
}


def find_method(name: str) -> type[Method]:
    """Return a method by its name.

    Raises:
        InputError: There is no such method.
    """
    if name not in METHODS:
        raise InputError(f"Unknown method {name!r}. Available: {', '.join(METHODS)}.")
    return METHODS[name]


__all__ = [
    "AE",
    "DAE",
    "METHODS",
    "BatchNorm",
    "ClosedForm",
    "Entropy",
    "FastPath",
    "FoECNN",
    "FoECNNPCA",
    "Instance",
    "Method",
    "MethodOptions",
    "ModelParts",
    "OutputCache",
    "Source",
    "Terms",
    "Update",
    "find_method",
    "measure_batches",
]
