"""How far each parameter moves the picture: the units in which steps are taken."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PROBES = 16
"""Random sums of pixels whose gradients the estimate is the mean square of."""

DAMPING = 0.1
"""Of the mean square of all parameters, added to each: what hardly matters may not move for nothing."""


def scales(picture: nn.Module, moving: Sequence[nn.Parameter], images: Tensor, seed: int = 0) -> Tensor | None:
    """Changes of the parameters that change the picture alike, `(parameters,)` in double precision.

    Bumps are narrow or wide, so that the same change of a weight means little in one channel and everything in the
    next. The square of a scale is the inverse of the mean square, over pixels, of the derivative of the picture by the
    parameter: that is the expected square of the gradient of the pixels' sum with random signs.

    Args:
        picture: What makes the picture, such as a normaliser; in single precision.
        moving: The parameters.
        images: Some slices `(slices, channels, *spatial)`.
        seed: Of the random signs.

    Returns:
        The scales, 1 in root mean square; None where a parameter has no part in the picture.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.enable_grad():
        made = picture(images)
    if not made.requires_grad:
        return None
    squares: Tensor | None = None
    for _ in range(PROBES):
        signs = torch.randint(2, made.shape, generator=generator).mul_(2).sub_(1).to(made)
        found = torch.autograd.grad(made, moving, signs, retain_graph=True, allow_unused=True)
        if any(part is None for part in found):
            return None
        each = torch.cat([part.flatten() for part in found if part is not None]).double().square()
        squares = each if squares is None else squares + each
    assert squares is not None
    if not bool(squares.mean() > 0) or not bool(torch.isfinite(squares).all()):
        return None
    scale = (squares + DAMPING * squares.mean()).rsqrt()
    return scale / scale.square().mean().sqrt()
