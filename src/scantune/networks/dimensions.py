"""The layers that differ between 2D and 3D, by number of dimensions."""

from dataclasses import dataclass

from torch import nn

from scantune.errors import InputError


@dataclass(frozen=True)
class LayerTypes:
    """The layer classes of one dimensionality, and the name of its linear interpolation."""

    convolution: type[nn.Conv2d] | type[nn.Conv3d]
    batch_norm: type[nn.BatchNorm2d] | type[nn.BatchNorm3d]
    max_pool: type[nn.MaxPool2d] | type[nn.MaxPool3d]
    linear: str


LAYER_TYPES: dict[int, LayerTypes] = {
    2: LayerTypes(nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, "bilinear"),
    3: LayerTypes(nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d, "trilinear"),
}


def layer_types(dimensions: int) -> LayerTypes:
    """Return the layer classes of 2D or 3D networks."""
    if dimensions not in LAYER_TYPES:
        raise InputError(f"dimensions must be 2 or 3, got {dimensions!r}.")
    return LAYER_TYPES[dimensions]
