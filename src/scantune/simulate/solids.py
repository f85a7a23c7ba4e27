"""Simple bodies as depths: positive inside, negative outside, in mm near the surface.

Points are given axis by axis, as their coordinates z, y and x in mm, each `(depth, height, width)`: on so many points
that is several times as fast as one tensor of positions. Depths have the shape of a coordinate.

Each round body comes in two forms, alike near the surface. The first is a distance along its axes everywhere; the
other (`quadric`, `conic`) is too large inside and too small outside, by up to a half.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Place = tuple[float, float, float]
"""A position, or half axes, `(z, y, x)` in mm."""

Where = tuple[Tensor, Tensor, Tensor]
"""Coordinates z, y and x in mm of points, each `(depth, height, width)`."""


def ellipsoid(at: Where, middle: Place, half: Place) -> Tensor:
    """Return the depth below the surface of an ellipsoid."""
    places = [(axis - start) / size for axis, start, size in zip(at, middle, half, strict=True)]
    radius = (places[0].square() + places[1].square() + places[2].square()).clamp_min_(1e-8).sqrt_()
    slopes = [place.div_(size).square_() for place, size in zip(places, half, strict=True)]
    # |f| / |grad f| is the distance to first order, for f = 1 - radius; undefined in the very middle
    return (1 - radius) * radius / (slopes[0] + slopes[1] + slopes[2]).clamp_min_(1e-10).sqrt_()


def ellipse(y: Tensor, x: Tensor, half: Sequence[Tensor | float]) -> Tensor:
    """Return the depth below the border of an ellipse about 0."""
    a, b = y / half[0], x / half[1]
    radius = torch.hypot(a, b).clamp_min_(1e-4)
    return (1 - radius) * radius / torch.hypot(a / half[0], b / half[1]).clamp_min_(1e-5)


def superellipse(y: Tensor, x: Tensor, half: Sequence[float], power: float) -> Tensor:
    """Return the depth below the border of |y/a|^p + |x/b|^p = 1: the higher the power, the closer to a rectangle."""
    scaled = torch.stack([y.abs() / half[0], x.abs() / half[1]])
    radius = scaled.pow(power).sum(0).pow(1 / power).clamp_min(1e-4)
    share = (scaled / radius).pow(power - 1)
    slope = torch.hypot(share[0] / half[0], share[1] / half[1])
    # it is nowhere as flat, but undefined in the very middle
    return (1 - radius) / slope.clamp_min(0.5 / max(half))


def quadric(at: Where, middle: Place, half: Place) -> Tensor:
    """Return the depth below the surface of the ellipsoid of an equation."""
    z, y, x = ((axis - start).square_() for axis, start in zip(at, middle, strict=True))
    one, two, three = (1 / size**2 for size in half)
    slope = (z * one**2).add_(y, alpha=two**2).add_(x, alpha=three**2).sqrt_().mul_(2).clamp_min_(1e-2)
    return (1 - z.mul_(one).add_(y, alpha=two).add_(x, alpha=three)).div_(slope)


def conic(y: Tensor, x: Tensor, half: tuple[float, float]) -> Tensor:
    """Return the depth below the border of the ellipse about 0 of an equation."""
    y, x = y.square(), x.square()
    one, two = (1 / size**2 for size in half)
    slope = (y * one**2).add_(x, alpha=two**2).sqrt_().mul_(2).clamp_min_(1e-2)
    return (1 - y.mul_(one).add_(x, alpha=two)).div_(slope)


def rod(at: Where, start: Place, end: Place, radius: float) -> Tensor:
    """Return the depth below the surface of a rod with round ends."""
    up, forward, right = (last - first for first, last in zip(start, end, strict=True))
    z, y, x = (axis - first for axis, first in zip(at, start, strict=True))
    share = (z * up).add_(y, alpha=forward).add_(x, alpha=right).div_(up**2 + forward**2 + right**2).clamp_(0, 1)
    return radius - distance((z.sub_(share, alpha=up), y.sub_(share, alpha=forward), x.sub_(share, alpha=right)))


def wedge(
    y: Tensor,
    x: Tensor,
    ends: Sequence[tuple[float, Tensor | float]],
    radii: tuple[Tensor | float, Tensor | float],
) -> Tensor:
    """Return the depth below the border of a stroke whose round ends `(y, x)` have their own radii."""
    (start_y, start_x), (end_y, end_x) = ends
    run_y, run_x = end_y - start_y, end_x - start_x
    along = ((y - start_y) * run_y + (x - start_x) * run_x).div_(run_y**2 + run_x**2).clamp_(0, 1)
    radius = radii[0] + along * (radii[1] - radii[0])
    return radius - torch.hypot(y - start_y - along * run_y, x - start_x - along * run_x)


def distance(at: Where, middle: Place = (0.0, 0.0, 0.0)) -> Tensor:
    """Return the distance from a place."""
    z, y, x = ((axis - start).square_() for axis, start in zip(at, middle, strict=True))
    return z.add_(y).add_(x).sqrt_()


def union(*parts: Tensor) -> Tensor:
    """Return the depth below the surface of several bodies together."""
    total = parts[0]
    for part in parts[1:]:
        total = torch.maximum(total, part)
    return total


def smooth_max(one: Tensor, other: Tensor, blend: float) -> Tensor:
    """Unite two bodies, with the seam rounded over about `blend` mm."""
    gap = (one - other).abs_().neg_().add_(blend).clamp_min_(0).div_(blend)
    return torch.maximum(one, other).add_(gap.square_(), alpha=blend / 4)


def smooth_min(one: Tensor, other: Tensor, blend: float) -> Tensor:
    """Intersect two bodies, with a rounded edge."""
    gap = (one - other).abs_().neg_().add_(blend).clamp_min_(0).div_(blend)
    return torch.minimum(one, other).sub_(gap.square_(), alpha=blend / 4)
