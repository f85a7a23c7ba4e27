"""Networks: the normaliser N_phi, the task network S_theta, and the two together."""

from scantune.networks.adaptable import AdaptableNetwork
from scantune.networks.adaptors import AdaptedNetwork, Adaptors, FeatureAdaptor, ImageAdaptor, equip, with_adaptors
from scantune.networks.autoencoder import Autoencoder, Autoencoders
from scantune.networks.denoiser import Denoiser
from scantune.networks.folding import Affine, fold_batch_norm
from scantune.networks.helper import Helper
from scantune.networks.normalizer import Normalizer
from scantune.networks.unet import UNet

HELPERS: dict[str, type[Helper]] = {"dae": Denoiser, "ae": Autoencoders}
"""Helper networks by the name of the method they serve."""

__all__ = [
    "HELPERS",
    "AdaptableNetwork",
    "AdaptedNetwork",
    "Adaptors",
    "Affine",
    "Autoencoder",
    "Autoencoders",
    "Denoiser",
    "FeatureAdaptor",
    "Helper",
    "ImageAdaptor",
    "Normalizer",
    "UNet",
    "equip",
    "fold_batch_norm",
    "with_adaptors",
]
