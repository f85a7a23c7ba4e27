"""Networks whose outputs are averaged, each behind a normaliser of its own."""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from scantune.networks.adaptable import AdaptableNetwork


class Ensemble(nn.Module):
    """Average of the outputs of networks of one architecture.

    Args:
        members: The networks.
        channels: Channels of an image. An input with more holds an image for each network, one after the other.
    """

    def __init__(self, members: Sequence[nn.Module], channels: int) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(slices, channels, *spatial)`, or `members x channels` of them, to the average output."""
        own = images.shape[1] > self.channels
        parts = images.chunk(len(self.members), 1) if own else [images] * len(self.members)
        return torch.stack([member(part) for member, part in zip(self.members, parts, strict=True)]).mean(0)


class Normalizers(nn.Module):
    """Normalisers side by side: an image for each network of an ensemble.

    Args:
        members: The normalisers.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Tensor:
        """Map images `(slices, channels, *spatial)` to `(slices, members x channels, *spatial)`."""
        return torch.cat([member(images) for member in self.members], dim=1)


class AdaptableEnsemble(AdaptableNetwork):
    """Ensemble of which each network is adapted by its own normaliser."""

    @classmethod
    def around(cls, network: Any, channels: int | None = None, dimensions: int | None = None) -> Self:
        """Put an identity-initialised normaliser in front of each network of an ensemble.

        Args:
            network: An `Ensemble`.
            channels: Channels of the image; by default those of the ensemble.
            dimensions: 2 or 3; by default those of the first convolution.
        """
        if isinstance(network, cls):
            return network
        each = [AdaptableNetwork.around(member, channels or network.channels, dimensions) for member in network.members]
        return cls(Normalizers([one.normalizer for one in each]), network)

    @property
    def members(self) -> list[AdaptableNetwork]:
        """Return each network with its normaliser."""
        assert isinstance(self.normalizer, Normalizers)
        assert isinstance(self.task, Ensemble)
        pairs = zip(self.normalizer.members, self.task.members, strict=True)
        return [AdaptableNetwork(normalizer, member) for normalizer, member in pairs]
