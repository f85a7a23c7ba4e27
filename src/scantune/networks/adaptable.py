"""A network that can be adapted: a normaliser in front of a task network."""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.networks.eager import unfrozen
from scantune.networks.normalizer import Normalizer
from scantune.networks.unet import UNet


class AdaptableNetwork(nn.Module):
    """y = S_theta(N_phi(x)): the normaliser is adapted to each scan, the task network is frozen.

    Args:
        normalizer: N_phi, an image-to-image network.
        task: S_theta, any network that takes the normalised image.
        channels: How many channels of an input are the image; None for all. Further ones, such as the heights of
            slices, go to the task network as they are, as a second argument.
        shrink: The image is averaged over blocks of so many pixels along each axis before it is normalised.

    Attributes:
        curve: Changes the intensities of the image before anything else does; the identity unless an adaptation
            starts from a scan of another contrast.
    """

    def __init__(self, normalizer: nn.Module, task: nn.Module, channels: int | None = None, shrink: int = 1) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.task = task
        self.channels = channels
        self.shrink = shrink
        self.curve: nn.Module = nn.Identity()

    @classmethod
    def default(cls, classes: int = 4, channels: int = 1, dimensions: int = 2, width: int = 16) -> Self:
        """Build the paper's N_phi and U-Net, untrained."""
        return cls(Normalizer(channels, dimensions=dimensions), UNet(channels, classes, width, dimensions=dimensions))

    @classmethod
    def around(
        cls, network: nn.Module, channels: int | None = None, dimensions: int | None = None
    ) -> "AdaptableNetwork":
        """Put an identity-initialised normaliser in front of a network that has none.

        The result starts exactly at the network's own predictions. The network itself is shared, not copied.

        Args:
            network: Any image network.
            channels: Channels of the image; by default those of the network's first convolution.
            dimensions: 2 or 3; by default those of the network's first convolution.
        """
        if isinstance(network, AdaptableNetwork):
            return network
        network = unfrozen(network)
        first = next((m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Conv3d)), None)
        if first is None and (channels is None or dimensions is None):
            raise InputError(
                f"{type(network).__name__} has no convolution from which to read its input channels and dimensions; "
                "give channels= and dimensions= to AdaptableNetwork.around."
            )
        if channels is None:
            assert first is not None
            channels = first.in_channels
        if dimensions is None:
            dimensions = 2 if isinstance(first, nn.Conv2d) else 3
        reference = next(network.parameters(), None)
        normalizer = Normalizer.identity(channels, dimensions=dimensions).train(network.training)
        return cls(normalizer if reference is None else normalizer.to(reference.device), network)

    @classmethod
    def bare(cls, network: nn.Module) -> "AdaptableNetwork":
        """Put nothing in front of a network without a normaliser, so that it takes images as an adaptable one does."""
        if isinstance(network, AdaptableNetwork):
            return network
        bare = cls(nn.Identity(), network)
        bare.training = network.training  # `train` would change the mode of the network's parts
        return bare

    def forward(self, x: Tensor) -> Any:
        """Map images `(slices, channels, *spatial)` to the output of the task network, in the precision of its weights.

        The normaliser computes in its own precision.
        """
        normalized = self.normalized(in_precision_of(self.normalizer, self.image(x)))
        return self.task(*(in_precision_of(self.task, part) for part in (normalized, *self.beside(x))))

    def image(self, x: Tensor) -> Tensor:
        """Return the part of an input that is normalised."""
        return block_means(self.curve(x if self.channels is None else x[:, : self.channels]), self.shrink)

    def beside(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the part of an input that is not normalised."""
        return () if self.channels is None else (x[:, self.channels :],)

    def normalized(self, image: Tensor) -> Tensor:
        """Return the image that the task network sees."""
        return self.normalizer(image)  # type: ignore[no-any-return]


def task_network(network: nn.Module) -> nn.Module:
    """Return S_theta, the part behind the normaliser; a plain network is all task network."""
    return network.task if isinstance(network, AdaptableNetwork) else network


def in_precision_of(module: nn.Module, images: Tensor) -> Tensor:
    """Return images in the precision of a module's weights; as they are for single precision and without weights."""
    kind = precision_of(module)
    return images if kind == torch.float32 else images.to(kind)


def precision_of(module: nn.Module) -> torch.dtype:
    """Return the precision of a module's first weights; single precision without weights."""
    return next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)


def block_means(images: Tensor, factor: int) -> Tensor:
    """Average blocks of images `(slices, channels, *spatial)`; the last ones may be smaller."""
    if factor == 1:
        return images
    pool = F.avg_pool2d if images.ndim == 4 else F.avg_pool3d
    return pool(images, factor, ceil_mode=True, count_include_pad=False)
