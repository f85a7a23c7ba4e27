"""Simple bodies as depths: positive inside, negative outside, in mm near the surface.

Everything takes points `(depth, height, width, 3)`, each `(z, y, x)` in mm, and gives `(depth, height, width)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def ellipsoid(points: Tensor, centre: Sequence[float], radii: Sequence[float], turn: Tensor | None = None) -> Tensor:
    """Depth below the surface of an ellipsoid, to first order in the distance.

    Args:
        points: Where.
        centre: Its middle `(z, y, x)`.
        radii: Half axes `(z, y, x)`.
        turn: Rotation `(3, 3)` from the body's axes to the ellipsoid's; None for none.
    """
    away = points - points.new_tensor(centre)
    if turn is not None:
        away = away @ turn.to(away).T
    scaled = away / points.new_tensor(radii)
    radius = scaled.norm(dim=-1)
    # |f| / |grad f| is the distance to first order, for f = 1 - radius
    slope = (scaled / points.new_tensor(radii)).norm(dim=-1) / radius.clamp_min(1e-4)
    # it is nowhere flatter, but undefined in the very middle
    depth: Tensor = (1 - radius) / slope.clamp_min(1 / max(radii))
    return depth


def tube(
    points: Tensor, radii: Sequence[float], centre: Callable[[Tensor], tuple[Tensor, Tensor]], power: float = 2.0
) -> Tensor:
    """Depth below the surface of a tube that runs along z.

    Args:
        points: Where.
        radii: Half axes `(y, x)` of its cross-section.
        centre: Its middle `(y, x)` at heights z.
        power: 2 for ellipses; higher ones are closer to rectangles.
    """
    y, x = centre(points[..., 0])
    return superellipse(points[..., 1] - y, points[..., 2] - x, radii, power)


def superellipse(y: Tensor, x: Tensor, radii: Sequence[float], power: float = 2.0) -> Tensor:
    """Depth below the border of |y/a|^p + |x/b|^p = 1, exact on the axes, to first order elsewhere."""
    scaled = torch.stack([y.abs() / radii[0], x.abs() / radii[1]])
    radius = scaled.pow(power).sum(0).pow(1 / power).clamp_min(1e-4)
    share = (scaled / radius).pow(power - 1)
    slope = torch.hypot(share[0] / radii[0], share[1] / radii[1])
    # it is nowhere as flat, but undefined in the very middle
    return (1 - radius) / slope.clamp_min(0.5 / max(radii))


def smooth_max(one: Tensor, other: Tensor, blend: float) -> Tensor:
    """Union of two bodies whose seam is rounded over about `blend` mm."""
    gap = (blend - (one - other).abs()).clamp_min(0) / blend
    return torch.maximum(one, other) + gap.square() * (blend / 4)


def smooth_min(one: Tensor, other: Tensor, blend: float) -> Tensor:
    """What two bodies share, with a rounded edge."""
    return -smooth_max(-one, -other, blend)
