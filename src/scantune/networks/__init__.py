"""Networks: the normaliser N_phi, the task network S_theta, and the two together."""

from scantune.networks.adaptable import AdaptableNetwork
from scantune.networks.folding import Affine, fold_batch_norm
from scantune.networks.normalizer import Normalizer
from scantune.networks.unet import UNet

__all__ = ["AdaptableNetwork", "Affine", "Normalizer", "UNet", "fold_batch_norm"]
