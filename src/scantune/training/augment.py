"""The strong baseline's augmentation: seven random transforms, batched on the training device.

Every transform of every sample is switched on independently, with the same probability. The four that move
pixels (elastic, translation, rotation, scaling) are composed into **one** sampling grid, so an image is
interpolated once instead of four times: repeated linear interpolation blurs, repeated nearest-neighbour
sampling frays label borders, and one pass costs a quarter of the memory traffic. Images are sampled linearly,
labels at the nearest pixel, so no label value is ever invented. Whatever comes from outside the image is 0,
and background in the labels; this holds for the elastic field too, where mirroring would paste a second copy
of anatomy at the border.

`Augmentation.draw` is all the randomness, `augment` all the arithmetic. Neither has a data-dependent
shape or waits for the device, so `augment` can be compiled and both can be captured in a CUDA graph.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from scantune.kernels import usable


@dataclass(frozen=True)
class Draw:
    """Random transforms of one batch; a transform that is off has its neutral value."""

    displacement: Tensor
    """`(batch, 2, height, width)` pixels along rows and columns; 0 is off."""
    translation: Tensor
    """`(batch, 2)` pixels along rows and columns; 0 is off."""
    degrees: Tensor
    """`(batch,)` rotation angle; 0 is off."""
    scale: Tensor
    """`(batch,)` magnification; 1 is off."""
    gamma: Tensor
    """`(batch,)` exponent; 1 is off."""
    brightness: Tensor
    """`(batch,)` offset; 0 is off."""
    noise: Tensor
    """`(batch, channels, height, width)` additive noise; 0 is off."""


@dataclass(frozen=True)
class Augmentation:
    """Stacked augmentation with the paper's ranges; all lengths are in pixels of the network's grid."""

    probability: float = 0.25
    """Chance of each transform of each sample."""
    elastic_sigma: float = 20.0
    """Standard deviation of the Gaussian that smooths the elastic field."""
    elastic_alpha: float = 1000.0
    """Factor on the smoothed noise; with sigma 20 the displacements have a deviation of about 8 pixels."""
    translation: float = 10.0
    """Largest shift along either axis."""
    rotation: float = 10.0
    """Largest angle in degrees, either way."""
    scaling: tuple[float, float] = (0.9, 1.1)
    """Smallest and largest magnification."""
    gamma: tuple[float, float] = (0.5, 2.0)
    """Smallest and largest exponent."""
    brightness: tuple[float, float] = (0.0, 0.1)
    """Smallest and largest offset."""
    noise: float = 0.1
    """Standard deviation of the additive Gaussian noise."""

    def __call__(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Augment a batch.

        Args:
            images: `(batch, channels, height, width)`.
            labels: `(batch, height, width)` integers.
            generator: the source of randomness, on the device of the images.

        Returns:
            New images and labels of the same shapes and types.
        """
        return augment(images, labels, self.draw(images, generator))

    def draw(self, images: Tensor, generator: torch.Generator) -> Draw:
        """Draw the transforms of a batch of images `(batch, channels, height, width)`."""
        batch, _, height, width = images.shape
        uniform = torch.rand(13, batch, generator=generator, device=images.device)
        on = uniform[:7] < self.probability
        # All numbers at once: on a GPU each operation is a wait, however little it does.
        low, span, neutral = _limits(self, images.device)
        numbers = torch.where(torch.cat([on[1:2], on[1:6]]), low + span * uniform[7:], neutral)
        field = torch.empty(batch, 2, height, width, device=images.device)
        field.uniform_(-1, 1, generator=generator)
        noise = torch.empty_like(images).normal_(generator=generator)
        return Draw(
            displacement=elastic_displacement(field, self.elastic_sigma, self.elastic_alpha * on[0]),
            translation=numbers[:2].T,
            degrees=numbers[2],
            scale=numbers[3],
            gamma=numbers[4],
            brightness=numbers[5],
            noise=noise * _per_sample(self.noise * on[6]),
        )


def augment(images: Tensor, labels: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    """Apply what was drawn: geometry first, then gamma, brightness and noise; nothing is clipped afterwards.

    Args:
        images: `(batch, channels, height, width)`.
        labels: `(batch, height, width)` integers.
        draw: the transforms of this batch.

    Returns:
        New images and labels of the same shapes and types.
    """
    if usable(images) and images.dtype == torch.float32:
        from scantune.kernels.triton.augmentation import changed

        affine = draw.translation, draw.degrees, draw.scale
        return changed(images, labels, draw.displacement, affine, (draw.gamma, draw.brightness), draw.noise)
    positions = source_positions(draw.displacement, draw.translation, draw.degrees, draw.scale)
    images, labels = resample(images, labels, positions)
    images = change_gamma(images, draw.gamma)
    return images + _per_sample(draw.brightness) + draw.noise, labels


def elastic_displacement(field: Tensor, sigma: float, alpha: Tensor | float) -> Tensor:
    """Smooth a field of per-pixel noise with a Gaussian and scale it to pixels.

    The Gaussian is cut at 4 sigma and mirrored at the border. Along each axis it is one matrix, so the
    smoothing is two matrix products: exact, and faster than a convolution of 161 taps.

    Args:
        field: `(batch, 2, height, width)`.
        sigma: standard deviation of the Gaussian in pixels.
        alpha: `(batch,)`, or one factor for all.

    Returns:
        `(batch, 2, height, width)` displacements in pixels.
    """
    height, width = field.shape[-2:]
    rows = _smoothing_matrix(height, sigma, field.device)
    columns = _smoothing_matrix(width, sigma, field.device)
    factor = _per_sample(alpha) if isinstance(alpha, Tensor) else alpha
    return factor * (rows @ field @ columns.T)


def source_positions(displacement: Tensor, translation: Tensor, degrees: Tensor, scale: Tensor) -> Tensor:
    """Return the source position of each output pixel; the elastic field acts first, then shift, rotation, scaling.

    Rotation and scaling are about the centre of the image; the signs are those of `scipy.ndimage.shift`,
    `rotate` and `zoom`. The elastic field is read at the output pixel rather than at the pixel's place before
    the affine part: a smoothed noise field looks the same everywhere and in every direction, so its
    statistics stay (but for its smoothing length, by the scale), and an interpolation of the field is saved.

    Args:
        displacement: `(batch, 2, height, width)` pixels.
        translation: `(batch, 2)` pixels.
        degrees: `(batch,)`.
        scale: `(batch,)`.

    Returns:
        `(batch, 2, height, width)` rows and columns, in pixels of the input.
    """
    height, width = displacement.shape[-2:]
    middle_row, middle_column = (height - 1) / 2, (width - 1) / 2
    rows = (torch.arange(height, device=displacement.device) - middle_row)[:, None]
    columns = torch.arange(width, device=displacement.device) - middle_column
    angle = torch.deg2rad(degrees)
    cosine, sine = (part[:, None, None] for part in (angle.cos() / scale, angle.sin() / scale))
    shift_row, shift_column = (part[:, None, None] for part in translation.unbind(1))
    source_rows = cosine * rows + sine * columns + (middle_row - shift_row)
    source_columns = cosine * columns - sine * rows + (middle_column - shift_column)
    return torch.stack((source_rows, source_columns), dim=1) + displacement


def resample(images: Tensor, labels: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Read images linearly and labels at the nearest pixel; 0 outside.

    Args:
        images: `(batch, channels, height, width)`.
        labels: `(batch, height, width)` integers, below 2**24 so that float32 holds them exactly.
        positions: `(batch, 2, height, width)` rows and columns, in pixels.

    Returns:
        New images and labels of the same shapes and types.
    """
    height, width = images.shape[-2:]
    rows, columns = positions.unbind(1)
    grid = torch.stack(((2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1), dim=-1)
    moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    moved_labels = F.grid_sample(
        labels[:, None].to(grid.dtype), grid, mode="nearest", padding_mode="zeros", align_corners=False
    )
    return moved, moved_labels[:, 0].to(labels.dtype)


def change_gamma(images: Tensor, gamma: Tensor) -> Tensor:
    """Raise images `(batch, channels, height, width)` to the power gamma `(batch,)`, negative values as 0.

    An exponent of 1 leaves the image as it is, negative values too.
    """
    exponent = _per_sample(gamma)
    return torch.where(exponent == 1, images, images.clamp(min=0) ** exponent)


@lru_cache(maxsize=8)
def _limits(settings: Augmentation, device: torch.device) -> Tensor:
    """Return lowest value, range and neutral value of shifts (rows, columns), angle, scale, gamma and brightness."""
    shift, turn = (-settings.translation, settings.translation), (-settings.rotation, settings.rotation)
    limits = (shift, shift, turn, settings.scaling, settings.gamma, settings.brightness)
    rows = [low for low, _ in limits], [high - low for low, high in limits], [0.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    return torch.tensor(rows, device=device).unsqueeze(2)


def _per_sample(values: Tensor) -> Tensor:
    return values[:, None, None, None]


@lru_cache(maxsize=8)
def _smoothing_matrix(size: int, sigma: float, device: torch.device) -> Tensor:
    """Return the Gaussian smoothing of a line of pixels, mirrored at its ends, as a matrix `(size, size)`."""
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    folded = (torch.arange(size)[:, None] + offsets) % (2 * size)
    folded = torch.where(folded < size, folded, 2 * size - 1 - folded)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, folded, (weights / weights.sum()).expand(size, -1))
    return matrix.float().to(device)
