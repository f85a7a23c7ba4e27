"""Networks: the normaliser N_phi, the task network S_theta, and the two together."""

from collections.abc import Callable

from scantune.networks.adaptable import AdaptableNetwork
from scantune.networks.adaptors import AdaptedNetwork, Adaptors, FeatureAdaptor, ImageAdaptor, equip, with_adaptors
from scantune.networks.autoencoder import Autoencoder, Autoencoders
from scantune.networks.convolution import Convolution, quicken
from scantune.networks.denoiser import Denoiser
from scantune.networks.folding import Affine, fold_batch_norm
from scantune.networks.half_precision import Behind, Gate, Half, Precision, Single, gates
from scantune.networks.helper import Helper
from scantune.networks.layout import MemoryLayout, set_memory_layout
from scantune.networks.normalizer import Normalizer
from scantune.networks.registration import AtlasShape, CorrectedNetwork, Registering, registering
from scantune.networks.unet import UNet

ARCHITECTURES: dict[str, Callable[..., AdaptableNetwork]] = {"unet": AdaptableNetwork.default, "register": registering}
"""Untrained networks by the kind that a model file names."""

HELPERS: dict[str, type[Helper]] = {"dae": Denoiser, "ae": Autoencoders}
"""Helper networks by the name of the method they serve."""

__all__ = [
    "ARCHITECTURES",
    "HELPERS",
    "AdaptableNetwork",
    "AdaptedNetwork",
    "Adaptors",
    "Affine",
    "AtlasShape",
    "Autoencoder",
    "Autoencoders",
    "Behind",
    "Convolution",
    "CorrectedNetwork",
    "Denoiser",
    "FeatureAdaptor",
    "Gate",
    "Half",
    "Helper",
    "ImageAdaptor",
    "MemoryLayout",
    "Normalizer",
    "Precision",
    "Registering",
    "Single",
    "UNet",
    "equip",
    "fold_batch_norm",
    "gates",
    "quicken",
    "registering",
    "set_memory_layout",
    "with_adaptors",
]
