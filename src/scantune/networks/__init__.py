"""Networks: the normaliser N_phi, the task network S_theta, and the two together."""

from collections.abc import Callable

from scantune.networks.adaptable import AdaptableNetwork, precision_of, task_network
from scantune.networks.adaptors import (
    AdaptedNetwork,
    Adaptors,
    FeatureAdaptor,
    ImageAdaptor,
    insert_adaptors,
    insert_default_adaptors,
)
from scantune.networks.autoencoder import Autoencoder, Autoencoders
from scantune.networks.convolution import (
    Affine,
    FastConvolution,
    MemoryLayout,
    fold_batch_norm,
    set_memory_layout,
    use_fast_convolutions,
)
from scantune.networks.denoiser import Denoiser
from scantune.networks.eager import copied, eager_network, in_evaluation
from scantune.networks.ensemble import AdaptableEnsemble, Ensemble
from scantune.networks.half_precision import (
    ForwardPrecision,
    GateAfterNormalizer,
    HalfPrecision,
    PrecisionGate,
    SinglePrecision,
    possible_gates,
)
from scantune.networks.helper import Helper
from scantune.networks.inversion import Inversion
from scantune.networks.normalizer import Normalizer
from scantune.networks.registration import AtlasShape, CorrectedNetwork, RegistrationNetwork, registration_network
from scantune.networks.unet import UNet

ARCHITECTURES: dict[str, Callable[..., AdaptableNetwork]] = {
    "unet": AdaptableNetwork.default,
    "register": registration_network,
}
"""Untrained networks by the kind that a model file names."""

HELPERS: dict[str, type[Helper]] = {"dae": Denoiser, "ae": Autoencoders}
"""Helper networks by the name of the method they serve."""

__all__ = [
    "ARCHITECTURES",
    "HELPERS",
    "AdaptableEnsemble",
    "AdaptableNetwork",
    "AdaptedNetwork",
    "Adaptors",
    "Affine",
    "AtlasShape",
    "Autoencoder",
    "Autoencoders",
    "CorrectedNetwork",
    "Denoiser",
    "Ensemble",
    "FastConvolution",
    "FeatureAdaptor",
    "ForwardPrecision",
    "GateAfterNormalizer",
    "HalfPrecision",
    "Helper",
    "ImageAdaptor",
    "Inversion",
    "MemoryLayout",
    "Normalizer",
    "PrecisionGate",
    "RegistrationNetwork",
    "SinglePrecision",
    "UNet",
    "copied",
    "eager_network",
    "fold_batch_norm",
    "in_evaluation",
    "insert_adaptors",
    "insert_default_adaptors",
    "possible_gates",
    "precision_of",
    "registration_network",
    "set_memory_layout",
    "task_network",
    "use_fast_convolutions",
]
