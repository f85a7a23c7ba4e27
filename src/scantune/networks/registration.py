"""The registration network: an atlas is bent to fit a scan, slice by slice, and brings its labels along.

x -> N_phi -> z; z and the atlas -> U-Net -> stationary velocity -> scaling and squaring -> warped atlas.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scantune.networks.adaptable import AdaptableNetwork, block_means
from scantune.networks.diffeomorphism import SQUARINGS, integrate, warp
from scantune.networks.dimensions import layer_types
from scantune.networks.normalizer import Normalizer
from scantune.networks.unet import UNet


@dataclass(frozen=True)
class AtlasShape:
    """The size of an atlas, and the heights of its slices in mm."""

    heights: int
    """Slices, from the lowest upwards."""
    rows: int
    """Of each slice."""
    columns: int
    """Of each slice."""
    lowest: float = 0.0
    """Height of the first slice in mm."""
    step: float = 1.0
    """Distance of the slices in mm."""


class AtlasSlices(nn.Module):
    """An atlas image and its labels, kept as bytes, looked up by height.

    Args:
        shape: Their size.
        classes: Labels, background included.
    """

    image: Tensor
    labels: Tensor

    def __init__(self, shape: AtlasShape, classes: int) -> None:
        super().__init__()
        self.shape, self.classes = shape, classes
        size = (shape.heights, shape.rows, shape.columns)
        self.register_buffer("image", torch.zeros(size, dtype=torch.uint8))
        self.register_buffer("labels", torch.zeros(size, dtype=torch.uint8))

    def fill(self, image: Tensor, labels: Tensor) -> None:
        """Store an image `(heights, rows, columns)` in [0, 1], and its labels."""
        self.image.copy_((255 * image).round())
        self.labels.copy_(labels)

    def forward(self, heights: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Interpolate the atlas linearly at heights in mm; beyond its ends the outermost slices continue.

        Args:
            heights: `(slices,)`, or `(slices, depth)` for volumes.
            size: Rows and columns that are wanted; the atlas is padded or cropped about its middle.

        Returns:
            Image `(slices, 1, *spatial)`, and label probabilities `(slices, classes, *spatial)`.
        """
        place = ((heights.float() - self.shape.lowest) / self.shape.step).clamp(0, self.shape.heights - 1)
        low = place.floor().long().clamp(max=max(self.shape.heights - 2, 0))
        high = (low + 1).clamp(max=self.shape.heights - 1)
        share = (place - low)[..., None, None].unsqueeze(1)
        margins = centring_margins((self.shape.rows, self.shape.columns), size)

        def image(index: Tensor) -> Tensor:
            return F.pad(self.image[index].float() / 255, margins).unsqueeze(1)

        def labels(index: Tensor) -> Tensor:
            return F.one_hot(F.pad(self.labels[index], margins).long(), self.classes).movedim(-1, 1).float()

        return torch.lerp(image(low), image(high), share), torch.lerp(labels(low), labels(high), share)


def centring_margins(size: Sequence[int], wanted: Sequence[int]) -> tuple[int, int, int, int]:
    """Return left, right, top and bottom margins, negative to crop, that change rows and columns to another size."""
    (rows, columns), (height, width) = size, wanted
    top, left = (height - rows) // 2, (width - columns) // 2
    return left, width - columns - left, top, height - rows - top


class RegistrationNetwork(nn.Module):
    """S_theta of registration: from a normalised image and its slices' heights to the warped atlas.

    Args:
        shape: The size of the atlas.
        classes: Its labels, background included.
        channels: Channels of the image.
        width: Channels of the first level of the U-Net.
        shrink: Image and velocities live on a grid this many times coarser than the scan, and so does the U-Net.
        squarings: See `integrate`.
        dimensions: 2, slice by slice, or 3.
    """

    def __init__(
        self,
        shape: AtlasShape,
        classes: int = 3,
        channels: int = 1,
        width: int = 16,
        shrink: int = 1,
        squarings: int = SQUARINGS,
        dimensions: int = 2,
    ) -> None:
        super().__init__()
        self.atlas = AtlasSlices(shape, classes)
        self.unet = UNet(channels + 1, dimensions, width, dimensions=dimensions)
        self.shrink, self.squarings, self.linear = shrink, squarings, layer_types(dimensions).linear
        # Training starts close to no deformation at all.
        nn.init.normal_(self.unet.classify.weight, 0, 1e-3)

    def forward(self, z: Tensor, heights: Tensor, correction: Tensor | None = None) -> dict[str, Tensor]:
        """Bend the atlas to fit the images.

        Args:
            z: Normalised images `(slices, channels, *coarse)`.
            heights: The same for all pixels of a slice, in mm, `(slices, 1, *spatial)`; of the output size.
            correction: Added to the velocity, `(slices, dimensions, *coarse)`.

        Returns:
            `out`, label probabilities `(slices, classes, *spatial)`; `velocity` on the coarse grid, in its pixels;
            `displacement` in pixels of the scan; the `warped` atlas image; the normalised image as it came, `fixed`.
        """
        size = heights.shape[2:]
        image, labels = self.atlas(heights[:, 0, ..., 0, 0], size[-2:])
        velocity = self.unet(torch.cat([z, block_means(image, self.shrink).to(z)], dim=1))
        # Half precision would not do for places of pixels.
        with torch.autocast(z.device.type, enabled=False):
            velocity = velocity.float() if correction is None else velocity.float() + correction
            displacement = self._fine(integrate(velocity, self.squarings), size)
            warped = warp(torch.cat([labels, image], dim=1), displacement)
        return {
            "out": warped[:, :-1],
            "velocity": velocity,
            "displacement": displacement,
            "warped": warped[:, -1:],
            "fixed": z.detach().float(),
        }

    def coarse_size(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return the size of the grid of velocities, for images of a size."""
        return tuple(-(-length // self.shrink) for length in size)

    def _fine(self, displacement: Tensor, size: Sequence[int]) -> Tensor:
        if self.shrink == 1:
            return displacement
        whole = [length * self.shrink for length in displacement.shape[2:]]
        fine = self.shrink * F.interpolate(displacement, size=whole, mode=self.linear, align_corners=False)
        for axis, length in enumerate(size, start=2):
            fine = fine.narrow(axis, 0, length)
        return fine


def registration_network(
    heights: int,
    rows: int,
    columns: int,
    lowest: float = 0.0,
    step: float = 1.0,
    classes: int = 3,
    width: int = 16,
    shrink: int = 1,
    squarings: int = SQUARINGS,
    dimensions: int = 2,
) -> AdaptableNetwork:
    """Build N_phi and the registration network, untrained, with an empty atlas."""
    shape = AtlasShape(heights, rows, columns, lowest, step)
    task = RegistrationNetwork(shape, classes, 1, width, shrink, squarings, dimensions)
    return AdaptableNetwork(Normalizer(1, dimensions=dimensions), task, channels=1, shrink=shrink)


class CorrectedNetwork(AdaptableNetwork):
    """A registration network whose velocities are corrected, scan slice by scan slice; it starts without a correction.

    Args:
        network: Its parts are shared, not copied; the task network is a `RegistrationNetwork`.
        images: The scan that the corrections are for, `(slices, channels, *spatial)`, heights last. A height
            identifies its slice.
    """

    known: Tensor

    def __init__(self, network: AdaptableNetwork, images: Tensor) -> None:
        super().__init__(network.normalizer, network.task, network.channels, network.shrink)
        assert isinstance(network.task, RegistrationNetwork)
        size = network.task.coarse_size(images.shape[2:])
        self.correction = nn.Parameter(images.new_zeros(len(images), len(size), *size))
        self.register_buffer("known", _height(images))
        self.train(network.training)

    def beside(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return heights, and the corrections of their slices."""
        own = (_height(x)[:, None] - self.known).abs().argmin(1)
        return (*super().beside(x), self.correction[own])


def _height(images: Tensor) -> Tensor:
    """Return a number for each slice (for a volume its lowest height), `(slices,)`."""
    return images[:, -1].flatten(1)[:, 0]
