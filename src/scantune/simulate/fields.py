"""Smooth random fields, and fields sampled at points given in mm: what every simulated variation rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_CELLS_PER_LENGTH = 2  # lattice points per correlation length; linear interpolation between them is then smooth enough


def smooth_noise(
    rng: np.random.Generator,
    channels: int,
    shape: Sequence[int],
    spacing: Sequence[float],
    length: float,
    device: torch.device,
) -> Tensor:
    """Draw independent Gaussian random fields of mean 0 and about unit variance.

    White noise is drawn on a coarse lattice on the CPU, so that every device sees the same field, blurred and
    interpolated linearly. The blur is what makes it Gaussian, so `length` must not be below the spacing in plane.

    Args:
        rng: Where the noise comes from.
        channels: Number of fields.
        shape: Voxels along the three axes.
        spacing: Voxel edges in mm along the three axes.
        length: Width (standard deviation) of the blurring kernel in mm.
        device: Where the fields are wanted.

    Returns:
        Fields `(channels, *shape)`, float32.
    """
    cells = [max(1, math.floor(length / _CELLS_PER_LENGTH / step)) for step in spacing]
    kernels = [_gaussian(length / step / cell) for step, cell in zip(spacing, cells, strict=True)]
    coarse = [math.ceil((size - 1) / cell) + 1 for size, cell in zip(shape, cells, strict=True)]
    padded = [size + len(kernel) - 1 for size, kernel in zip(coarse, kernels, strict=True)]
    field = _white(rng, (channels, *padded), device)
    for axis, kernel in enumerate(kernels, start=1):
        field = _convolve(field, kernel, axis) / math.sqrt(sum(weight**2 for weight in kernel))
    fine = [(size - 1) * cell + 1 for size, cell in zip(coarse, cells, strict=True)]
    field = F.interpolate(field[None], size=fine, mode="trilinear", align_corners=True)[0]
    return field[:, : shape[0], : shape[1], : shape[2]]


def gaussian_blur(volume: Tensor, sigmas: Sequence[float]) -> Tensor:
    """Blur `(channels, depth, height, width)` along three axes by `sigmas` voxels; zero beyond the border."""
    for axis, sigma in enumerate(sigmas, start=1):
        kernel = _gaussian(sigma)
        radius = len(kernel) // 2
        if radius:
            pad = [0] * 6
            pad[2 * (3 - axis)] = pad[2 * (3 - axis) + 1] = radius
            volume = _convolve(F.pad(volume, pad), kernel, axis)
    return volume


def sample_at(
    volume: Tensor,
    origin: Sequence[float],
    spacing: Sequence[float],
    points: Tensor,
    *,
    border: str = "zeros",
) -> Tensor:
    """Interpolate a volume linearly at points in space.

    Args:
        volume: Values `(channels, depth, height, width)`.
        origin: Position of the first voxel `(z, y, x)` in mm.
        spacing: Voxel edges `(z, y, x)` in mm.
        points: Positions `(depth', height', width', 3)`, each `(z, y, x)` in mm.
        border: What lies outside: `zeros`, or the nearest value (`border`).

    Returns:
        Values `(channels, depth', height', width')`.
    """
    start, step = points.new_tensor(origin), points.new_tensor(spacing)
    last = points.new_tensor([max(size - 1, 1) for size in volume.shape[1:]])
    unit = ((points - start) / step / last * 2 - 1).flip(-1)
    return F.grid_sample(volume[None], unit[None], padding_mode=border, align_corners=True)[0]


def lattice_points(
    shape: Sequence[int], spacing: Sequence[float], origin: Sequence[float], device: torch.device
) -> Tensor:
    """Return the positions `(depth, height, width, 3)` in mm, each `(z, y, x)`, of the points of a regular lattice."""
    axes = [
        start + step * torch.arange(size, dtype=torch.float32, device=device)
        for size, step, start in zip(shape, spacing, origin, strict=True)
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def lattice_axes(shape: Sequence[int], spacing: Sequence[float], origin: Sequence[float]) -> list[list[float]]:
    """Return the positions in mm of such points along each of the axes."""
    return [
        [start + step * place for place in range(size)]
        for size, step, start in zip(shape, spacing, origin, strict=True)
    ]


def _white(rng: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Draw uniform white noise of mean 0 and variance 1.

    Random bytes: ten times as fast to draw as normal deviates, and drawing is most of a GPU's simulation time.
    """
    values = np.frombuffer(rng.bytes(math.prod(shape)), dtype=np.uint8).reshape(shape).copy()
    return torch.from_numpy(values).to(device).float().sub_(127.5).div_(math.sqrt((256**2 - 1) / 12))


def _gaussian(sigma: float) -> list[float]:
    radius = math.ceil(3 * sigma) if sigma > 0.2 else 0
    weights = [math.exp(-0.5 * (tap / sigma) ** 2) if tap else 1.0 for tap in range(-radius, radius + 1)]
    total = sum(weights)
    return [weight / total for weight in weights]


def _convolve(volume: Tensor, kernel: list[float], axis: int) -> Tensor:
    """Convolve with a symmetric kernel along one axis, and return the valid part.

    Shifted sums: torch's own convolution is many times slower on a CPU for one channel in and out.
    """
    size = volume.shape[axis] - len(kernel) + 1
    total = volume.narrow(axis, 0, size) * kernel[0]
    for tap, weight in enumerate(kernel[1:], start=1):
        total.add_(volume.narrow(axis, tap, size), alpha=weight)
    return total
