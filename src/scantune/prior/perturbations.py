"""Perturbations: small changes of a scan that should not change its prediction."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Perturbation:
    """A small change of a scan, and the way back for its prediction.

    Args:
        there: Changes images `(slices, channels, *spatial)`.
        back: Puts the prediction of changed images back in place, along the same last axes.
    """

    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]

    def change(self, images: Tensor, channels: int | None = None) -> Tensor:
        """Return changed images `(slices, channels, *spatial)`.

        Args:
            images: The images.
            channels: Number of image channels; None for all. Others stay as they are.
        """
        if channels is None:
            return self.there(images)
        return torch.cat([self.there(images[:, :channels]), images[:, channels:]], 1)


def _mirror(values: Tensor) -> Tensor:
    """Mirror the last axis."""
    return values.flip(-1)


def _keep(values: Tensor) -> Tensor:
    """Return values as they are."""
    return values


MOVED_PIXELS = 3
"""Pixels by which a scan is moved; odd, so that pooling layers see it on another grid."""


def _move(values: Tensor) -> Tensor:
    """Move the last two axes forth."""
    return values.roll((MOVED_PIXELS, MOVED_PIXELS), (-2, -1))


def _move_back(values: Tensor) -> Tensor:
    """Move the last two axes back."""
    return values.roll((-MOVED_PIXELS, -MOVED_PIXELS), (-2, -1))


UNCHANGED = Perturbation(_keep, _keep)
"""The scan as it is."""

PERTURBATIONS: dict[str, Perturbation] = {
    "mirrored": Perturbation(_mirror, _mirror),
    "darker": Perturbation(lambda images: 0.9 * images, _keep),
    "brighter": Perturbation(lambda images: 1.1 * images, _keep),
    "moved": Perturbation(_move, _move_back),
}
"""Perturbations by name."""

SELECTING = ("moved",)
"""Perturbations by which stages of an adaptation are compared."""

SHOWING = ("moved", "mirrored")
"""Perturbations behind the estimate that is shown; the second has not been used to choose a stage."""
