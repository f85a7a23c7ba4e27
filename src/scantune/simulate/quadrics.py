"""Solids for points given axis by axis: the cheap kin of `solids`, for bodies of many shapes.

Depths are right to first order near a surface; far outside of it they are too small by up to a half.
"""

from __future__ import annotations

import torch
from torch import Tensor

Place = tuple[float, float, float]
"""A position, or half axes, `(z, y, x)` in mm."""

Where = tuple[Tensor, Tensor, Tensor]
"""Coordinates z, y and x in mm of points, each `(depth, height, width)`."""


def ball(at: Where, middle: Place, half: Place) -> Tensor:
    """Depth below the surface of an ellipsoid."""
    z, y, x = ((axis - start).square_() for axis, start in zip(at, middle, strict=True))
    one, two, three = (1 / size**2 for size in half)
    slope = (z * one**2).add_(y, alpha=two**2).add_(x, alpha=three**2).sqrt_().mul_(2).clamp_min_(1e-2)
    return (1 - z.mul_(one).add_(y, alpha=two).add_(x, alpha=three)).div_(slope)


def oval(y: Tensor, x: Tensor, half: tuple[float, float]) -> Tensor:
    """Depth below the border of an ellipse about 0."""
    y, x = y.square(), x.square()
    one, two = (1 / size**2 for size in half)
    slope = (y * one**2).add_(x, alpha=two**2).sqrt_().mul_(2).clamp_min_(1e-2)
    return (1 - y.mul_(one).add_(x, alpha=two)).div_(slope)


def rod(at: Where, start: Place, end: Place, radius: float) -> Tensor:
    """Depth below the surface of a rod with round ends."""
    up, forward, right = (last - first for first, last in zip(start, end, strict=True))
    z, y, x = (axis - first for axis, first in zip(at, start, strict=True))
    share = (z * up).add_(y, alpha=forward).add_(x, alpha=right).div_(up**2 + forward**2 + right**2).clamp_(0, 1)
    return radius - distance((z.sub_(share, alpha=up), y.sub_(share, alpha=forward), x.sub_(share, alpha=right)))


def distance(at: Where, middle: Place = (0.0, 0.0, 0.0)) -> Tensor:
    """Distance from a place."""
    z, y, x = ((axis - start).square_() for axis, start in zip(at, middle, strict=True))
    return z.add_(y).add_(x).sqrt_()


def union(*parts: Tensor) -> Tensor:
    """Depth below the surface of several bodies together."""
    total = parts[0]
    for part in parts[1:]:
        total = torch.maximum(total, part)
    return total
