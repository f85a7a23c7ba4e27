"""Autoencoders of what a network sees, thinks and says (He et al. 2021, as compared in the paper)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.kernels import usable
from scantune.networks.dimensions import layer_types
from scantune.networks.helper import Helper
from scantune.networks.unet import upsample_by_two

IMAGE_WIDTHS, FEATURE_WIDTHS = (32, 16, 8), (64, 32, 16)
"""Widths of the autoencoders of image and output, and of those of features."""

LayerGroup = tuple[tuple[str, int], ...]
"""Layers whose outputs are put together, by name and channels; the first is the one that gets an adaptor."""


class Autoencoder(nn.Module):
    """Two poolings down, two up, no skip connection: convolution, instance norm and ReLU at each of five places.

    Args:
        channels: Of what is encoded.
        widths: Channels at full, half and quarter resolution.
        dimensions: 2 or 3.
    """

    def __init__(self, channels: int, widths: tuple[int, int, int], dimensions: int = 2) -> None:
        super().__init__()
        kind = layer_types(dimensions)
        wide, middle, narrow = widths
        self.channels, self.linear = channels, kind.linear
        self.pool = kind.max_pool(2, ceil_mode=True)
        self.down = nn.ModuleList(
            kind.convolution(inputs, outputs, 3, padding=1, bias=False)
            for inputs, outputs in ((channels, wide), (wide, middle), (middle, narrow))
        )
        self.up = nn.ModuleList(
            kind.convolution(inputs, outputs, 3, padding=1, bias=False)
            for inputs, outputs in ((narrow, middle), (middle, wide))
        )
        self.output = kind.convolution(wide, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(slices, channels, *spatial)`, of any size, to its reconstruction."""
        sizes = []
        for convolution in self.down[:-1]:
            x = _activated(convolution(x))
            sizes.append(x.shape[2:])
            x = self.pool(x)
        x = _activated(self.down[-1](x))
        for convolution, size in zip(self.up, reversed(sizes), strict=True):
            x = _activated(convolution(self._upsampled(x, size)))
        return self.output(x)  # type: ignore[no-any-return]

    def _upsampled(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if x.is_cuda and all(new == 2 * old for new, old in zip(size, x.shape[2:], strict=True)):
            return upsample_by_two(x)
        return F.interpolate(x, size=list(size), mode=self.linear, align_corners=False)


def instance_norm_without_scale(x: Tensor) -> Tensor:
    """Apply an instance norm without scale and shift; a single pixel becomes zero."""
    if x.shape[2:].numel() == 1:
        return x - x
    return F.instance_norm(x)


def _activated(x: Tensor) -> Tensor:
    if usable(x) and x.shape[2:].numel() > 1:
        from scantune.kernels.triton.norm import instance_relu

        return instance_relu(x)
    return F.relu(instance_norm_without_scale(x))


class Autoencoders(Helper):
    """Five in the paper: of the normalised image (xn), of features at three depths (f1, f2, f3), of the output (y).

    Args:
        channels: Of the normalised image.
        classes: Channels of the output.
        features: The layers that each of f1, f2, ... reads, named as in the task network.
        dimensions: 2 or 3.
    """

    name: ClassVar[str] = "ae"

    def __init__(self, channels: int, classes: int, features: Sequence[LayerGroup] = (), dimensions: int = 2) -> None:
        super().__init__()
        if not all(features):
            raise InputError("A feature autoencoder must read at least one layer; one of them reads none.")
        self.channels, self.classes, self.dimensions = channels, classes, dimensions
        self.features = tuple(tuple((str(layer), int(width)) for layer, width in group) for group in features)
        inputs = {name: sum(width for _, width in group) for name, group in self._groups().items()}
        self.networks = nn.ModuleDict(
            {
                "xn": Autoencoder(channels, IMAGE_WIDTHS, dimensions),
                **{name: Autoencoder(width, FEATURE_WIDTHS, dimensions) for name, width in inputs.items()},
                "y": Autoencoder(classes, IMAGE_WIDTHS, dimensions),
            }
        )

    def _groups(self) -> dict[str, LayerGroup]:
        return {f"f{number}": group for number, group in enumerate(self.features, 1)}

    def names(self) -> list[str]:
        """Return the names of the autoencoders, from input to output."""
        return list(self.networks)

    def layers(self) -> dict[str, tuple[str, ...]]:
        """Return the layers that each feature autoencoder reads."""
        return {name: tuple(layer for layer, _ in group) for name, group in self._groups().items()}

    def positions(self) -> dict[str, int]:
        """Return the layers behind which a feature adaptor sits, and their channels."""
        return dict(group[0] for group in self.features)

    def width(self, name: str) -> int:
        """Return the number of channels that an autoencoder reads."""
        network = self.networks[name]
        assert isinstance(network, Autoencoder)
        return network.channels

    def record(self) -> dict[str, Any]:
        """Return everything but the weights, as JSON."""
        features = [[list(layer) for layer in group] for group in self.features]
        return {
            "channels": self.channels,
            "classes": self.classes,
            "features": features,
            "dimensions": self.dimensions,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Build the autoencoders of a `record`, with random weights."""
        with torch.random.fork_rng(devices=[]):
            return cls(**record)

    def forward(self, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the reconstructions of what each autoencoder reads, `(slices, channels, *spatial)`."""
        return {name: self.networks[name](view) for name, view in views.items()}
