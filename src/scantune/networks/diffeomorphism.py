"""Deformations: flows along stationary velocity fields, warping, and how well-behaved a deformation is.

A field has a channel per axis, in pixels, in the order of the axes: `(slices, dimensions, *spatial)`. A displacement u
says that the pixel at x is taken from x + u(x).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

SQUARINGS = 7
"""Of `integrate`: the flow is followed in 2 ** 7 steps."""


def warp(images: Tensor, displacement: Tensor) -> Tensor:
    """Interpolate images `(slices, channels, *spatial)` at x + u(x); border values continue outside."""
    size = images.shape[2:]
    axes = [torch.arange(length, device=images.device, dtype=displacement.dtype) for length in size]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij")) + displacement
    # Made on the device: a copy of numbers from the host would have it wait.
    scales = torch.stack([displacement.new_full((), 2 / max(length - 1, 1)) for length in size])
    scale = scales.view(-1, *[1] * len(size))
    # grid_sample wants the last axis first.
    grid = (places * scale - 1).flip(1).movedim(1, -1)
    return F.grid_sample(images, grid.to(images.dtype), mode="bilinear", padding_mode="border", align_corners=True)


def integrate(velocity: Tensor, squarings: int = SQUARINGS) -> Tensor:
    """Return exp(v), the displacement along a stationary velocity field for unit time, by scaling and squaring.

    The first short step is a midpoint step, so that halving it divides its error by four.

    Args:
        velocity: `(slices, dimensions, *spatial)` in pixels.
        squarings: How often the short step is composed with itself.
    """
    short = velocity / 2**squarings
    displacement = warp(short, short / 2)
    for _ in range(squarings):
        displacement = displacement + warp(displacement, displacement)
    return displacement


def spatial_gradients(field: Tensor) -> Tensor:
    """Return central differences of a field `(slices, channels, *spatial)` along each axis, one-sided at borders.

    Returns:
        `(slices, channels, axes, *spatial)`; 0 along an axis of one pixel.
    """
    parts = [
        torch.gradient(field, dim=axis)[0] if field.shape[axis] > 1 else torch.zeros_like(field)
        for axis in range(2, field.ndim)
    ]
    return torch.stack(parts, dim=2)


def jacobian_determinant(displacement: Tensor) -> Tensor:
    """Return the Jacobian determinant of x + u(x), `(slices, *spatial)`: not above 0 at folds."""
    jacobian = spatial_gradients(displacement).movedim((1, 2), (-2, -1))
    determinant: Tensor = torch.linalg.det(jacobian + torch.eye(displacement.shape[1]).to(displacement))
    return determinant


def folding_share(displacement: Tensor) -> float:
    """Return the share of pixels at which a deformation folds."""
    return float((jacobian_determinant(displacement) <= 0).float().mean())


def roughness(field: Tensor) -> Tensor:
    """Return the mean over pixels of a field's squared gradients, a scalar; 0 for a shift of everything."""
    return spatial_gradients(field).square().sum((1, 2)).mean()


def local_correlation(one: Tensor, other: Tensor, window: int = 9, floor: float = 1e-4) -> Tensor:
    """Return the squared correlation (0 to 1) of images `(slices, 1, *spatial)` in a window about each pixel.

    Where one of them hardly varies (a variance below `floor`), the correlation tends to 0.
    """
    pool = F.avg_pool2d if one.ndim == 4 else F.avg_pool3d

    def mean(values: Tensor) -> Tensor:
        return pool(values, window, stride=1, padding=window // 2, count_include_pad=False)

    first, second = mean(one), mean(other)
    covariance = mean(one * other) - first * second
    variances = [(mean(x * x) - m * m).clamp_min(0) + floor for x, m in ((one, first), (other, second))]
    return covariance.square() / (variances[0] * variances[1])
