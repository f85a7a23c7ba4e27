"""Adaptors: small networks put into a trained one at test time (He et al. 2021)."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.errors import InputError
from scantune.networks.adaptable import AdaptableNetwork
from scantune.networks.autoencoder import instance_norm_without_scale
from scantune.networks.dimensions import layer_types
from scantune.networks.unet import UNet

UNET_POSITIONS = ("down.1.second", "down.2.second", "down.3.first")
"""The units of the U-Net behind which the paper has its feature adaptors."""

LEAKY_SLOPE = 0.2
"""Of the leaky ReLUs, for negative values."""


class ImageAdaptor(nn.Module):
    """A^x: a curve of intensities, by three convolutions of kernel 1; it starts as the identity.

    Args:
        channels: Of the image.
        hidden: Channels of the two hidden layers.
        dimensions: 2 or 3.
        instance_norm: Whether hidden layers are normalised slice by slice, as in He et al. 2021. The paper leaves it
            out. Then there is no identity to start from.
    """

    def __init__(
        self, channels: int = 1, hidden: int = 64, dimensions: int = 2, *, instance_norm: bool = False
    ) -> None:
        super().__init__()
        if hidden < 2 * channels:
            raise InputError(f"An adaptor of {channels} channels needs {2 * channels} hidden ones, got {hidden}.")
        convolution = layer_types(dimensions).convolution
        self.instance_norm = instance_norm
        self.first = convolution(channels, hidden, 1)
        self.second = convolution(hidden, hidden, 1)
        self.last = convolution(hidden, channels, 1)
        self._set_identity(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map an image `(slices, channels, *spatial)` to one of the same shape."""
        for layer in (self.first, self.second):
            x = layer(x)
            x = F.leaky_relu(instance_norm_without_scale(x) if self.instance_norm else x, LEAKY_SLOPE)
        curved: Tensor = self.last(x)
        return curved

    @torch.no_grad()
    def _set_identity(self, channels: int) -> None:
        """Let two hidden channels carry u and -u, since leaky(u) - leaky(-u) = (1 + slope) u.

        The others are there to learn.
        """
        there = torch.eye(channels)
        pair = torch.cat([there, -there])
        own = slice(2 * channels)
        for layer in (self.first, self.second, self.last):
            assert layer.bias is not None
            layer.bias.zero_()
        _matrix(self.first)[own] = pair
        _matrix(self.second)[own] = 0
        _matrix(self.second)[own, own] = pair @ pair.T / (1 + LEAKY_SLOPE)
        _matrix(self.last).zero_()
        _matrix(self.last)[:, own] = pair.T / (1 + LEAKY_SLOPE)

    @torch.no_grad()
    def draw(self, generator: torch.Generator, *, centred: bool = False) -> None:
        """Draw the weights: normal, variance 2 / inputs, mean 1 / inputs (the paper's), or 0 if `centred`."""
        for layer in (self.first, self.second, self.last):
            inputs = layer.in_channels
            noise = torch.randn(layer.weight.shape, generator=generator)
            layer.weight.copy_((0.0 if centred else 1 / inputs) + (2 / inputs) ** 0.5 * noise)
            assert layer.bias is not None
            layer.bias.zero_()


class FeatureAdaptor(nn.Module):
    """A^1, A^2, A^3: a linear map of a layer's channels, pixel by pixel; it starts as the identity.

    Args:
        channels: Of the layer.
        dimensions: 2 or 3.
    """

    def __init__(self, channels: int, dimensions: int = 2) -> None:
        super().__init__()
        self.map = layer_types(dimensions).convolution(channels, channels, 1)
        nn.init.dirac_(self.map.weight)
        assert self.map.bias is not None
        nn.init.zeros_(self.map.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map features `(slices, channels, *spatial)` to features of the same shape."""
        mapped: Tensor = self.map(x)
        return mapped

    def orthogonality(self) -> Tensor:
        """Return the squared spectral norm of W^T W - I, zero if the map keeps lengths."""
        return squared_spectral_norm(_gram(_matrix(self.map)))


class Adaptors(nn.Module):
    """A^x, and the feature adaptors in the order of their layers.

    Args:
        channels: Of the image.
        positions: Layers of the task network, and their channels, behind which a feature adaptor sits.
        dimensions: 2 or 3.
        instance_norm: See `ImageAdaptor`.
    """

    def __init__(
        self, channels: int, positions: Mapping[str, int], dimensions: int = 2, *, instance_norm: bool = False
    ) -> None:
        super().__init__()
        self.image = ImageAdaptor(channels, dimensions=dimensions, instance_norm=instance_norm)
        self.positions = tuple(positions)
        self.features = nn.ModuleList(FeatureAdaptor(width, dimensions) for width in positions.values())

    def by_position(self) -> dict[str, FeatureAdaptor]:
        """Return the feature adaptors, by the layer they sit behind."""
        found = dict(zip(self.positions, self.features, strict=True))
        return {layer: adaptor for layer, adaptor in found.items() if isinstance(adaptor, FeatureAdaptor)}


class AdaptedNetwork(AdaptableNetwork):
    """y = S_theta(N_phi(A^x(x))), where the outputs of some layers of S_theta go through adaptors, too.

    Whatever reads such a layer, a skip connection included, gets the adapted output.

    Args:
        network: What the adaptors are put into; its parts are shared, not copied.
        adaptors: They are moved to where the network is.
    """

    alone: ClassVar[bool] = True
    """Not to be called by two threads at once, for they would hear each other's hooks."""

    def __init__(self, network: AdaptableNetwork, adaptors: Adaptors) -> None:
        super().__init__(network.normalizer, network.task, network.channels, network.shrink)
        named = dict(network.task.named_modules())
        missing = [layer for layer in adaptors.positions if layer not in named]
        if missing:
            raise InputError(f"The task network has no layer {missing[0]!r} for an adaptor to sit behind.")
        self.adaptors = adaptors.to(next(network.parameters()))
        self.train(network.training)

    def forward(self, x: Tensor) -> Any:
        """Map images `(slices, channels, *spatial)` to the output of the task network."""
        # Hooks live for one call only: a copy of the network has no hooks that lead to the adaptors of the original.
        # They come first, so that other hooks on a layer see what the next layer gets.
        handles = [
            self.task.get_submodule(layer).register_forward_hook(_through(layer, adaptor), prepend=True)
            for layer, adaptor in self.adaptors.by_position().items()
        ]
        try:
            return super().forward(x)
        finally:
            for handle in handles:
                handle.remove()

    def normalized(self, image: Tensor) -> Tensor:
        """Return the image that the task network sees, behind A^x and N_phi."""
        return super().normalized(self.adaptors.image(image))


def insert_adaptors(
    network: AdaptableNetwork,
    channels: int = 1,
    positions: Mapping[str, int] | None = None,
    dimensions: int = 2,
    *,
    instance_norm: bool = False,
) -> AdaptedNetwork:
    """Insert adaptors into a network; they always start as the same identity.

    Args:
        network: It is shared, not copied.
        channels: Of the image.
        positions: Layers of the task network, and their channels, behind which a feature adaptor sits.
        dimensions: 2 or 3.
        instance_norm: See `ImageAdaptor`; then A^x is not the identity.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        adaptors = Adaptors(channels, positions or {}, dimensions, instance_norm=instance_norm)
    return AdaptedNetwork(network, adaptors)


def unet_prefix(task: nn.Module) -> str | None:
    """Return what comes before the names of a U-Net's layers: nothing if it is the task network, as `unet.` inside it.

    Returns:
        None if there is no U-Net in the task network.
    """
    names = (name for name, part in task.named_modules() if isinstance(part, UNet))
    return next((f"{name}." if name else "" for name in names), None)


def insert_default_adaptors(network: AdaptableNetwork) -> AdaptedNetwork:
    """Insert the paper's adaptors: A^x, and A^1, A^2, A^3 if the task network is or holds the paper's U-Net.

    Args:
        network: It is shared, not copied.
    """
    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Conv3d)), None)
    if first is None:
        raise InputError(
            f"Adaptors need a network with convolutions, which tell its channels and dimensions; this one "
            f"({type(network.task).__name__}) has none. Choose another setting of moving, such as all."
        )
    prefix = unet_prefix(network.task)
    units = () if prefix is None else tuple(f"{prefix}{unit}" for unit in UNET_POSITIONS)
    widths = {unit: int(network.task.get_parameter(f"{unit}.conv.weight").shape[0]) for unit in units}
    return insert_adaptors(network, first.in_channels, widths, 2 if isinstance(first, nn.Conv2d) else 3)


def squared_spectral_norm(matrix: Tensor, squarings: int = 10) -> Tensor:
    """Return the squared spectral norm of a symmetric matrix by power iteration, a mostly tight lower bound.

    As many squarings of the matrix make a power of 2 ^ squarings, and its longest column is a start that cannot miss
    the leading direction: same matrix, same value. The direction itself is taken as fixed by the gradient, which
    changes nothing at the leading one.

    Args:
        matrix: `(size, size)`.
        squarings: More where the two leading eigenvalues may be very close and the value must be exact all the same.
    """
    with torch.no_grad():
        power = matrix.double()
        tiny = torch.finfo(power.dtype).tiny
        for _ in range(squarings):
            power = power / power.abs().amax().clamp_min(tiny)
            power = power @ power
        lengths = power.norm(dim=0)
        longest = lengths.argmax()
        direction = power[:, longest] / lengths[longest].clamp_min(tiny)
    stretched: Tensor = matrix @ direction.to(matrix)
    return stretched.square().sum()


def _gram(weight: Tensor) -> Tensor:
    return weight.T @ weight - torch.eye(len(weight), device=weight.device, dtype=weight.dtype)


def _matrix(layer: nn.Conv2d | nn.Conv3d) -> Tensor:
    """Return the weights of a convolution of kernel 1, `(outputs, inputs)`, a view."""
    return layer.weight.flatten(1)


def _through(layer: str, adaptor: FeatureAdaptor) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        if output.shape[1] != adaptor.map.in_channels:
            raise InputError(
                f"The layer {layer!r} has {output.shape[1]} channels, but its adaptor is for {adaptor.map.in_channels}."
            )
        adapted: Tensor = adaptor(output)
        return adapted

    return hook
