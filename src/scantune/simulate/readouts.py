"""Readouts: how the signal of a slice becomes a magnitude image of finite resolution, with noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from scantune.simulate.fields import gaussian_blur

_FWHM = 2 * math.sqrt(2 * math.log(2))  # full width at half maximum of a Gaussian of unit deviation
_SOFT_EDGE = 0.15  # share of k-space, at its edge, over which scanners' filters let the signal fall


class Readout(ABC):
    """The way from signal to image."""

    @abstractmethod
    def resolve(self, signal: Tensor, inside: Tensor, around: float, edge: float) -> Tensor:
        """Reduce the signal to the resolution that was acquired.

        Args:
            signal: Signal `(slices, height, width)`; 0 where `inside` is 0.
            inside: Share of a voxel that is not stripped away, of the same shape.
            around: Signal of what was stripped away.
            edge: Acquired voxel edge over the image's.
        """

    @abstractmethod
    def noise(self, shape: torch.Size, edge: float, rng: np.random.Generator, like: Tensor) -> Tensor:
        """Draw noise of unit deviation in both receiver channels `(2, slices, height, width)`."""


class Blurred(Readout):
    """A Gaussian point spread function; beyond the border of what is kept lies more of the same, not darkness."""

    def resolve(self, signal: Tensor, inside: Tensor, around: float, edge: float) -> Tensor:  # noqa: ARG002
        """Blur in plane; the acquired edge is the full width at half maximum."""
        sigma = edge / _FWHM
        blurred = gaussian_blur(torch.stack([signal, inside]), (0.0, sigma, sigma))
        return blurred[0] / blurred[1].clamp_min(1e-6) * inside

    def noise(self, shape: torch.Size, edge: float, rng: np.random.Generator, like: Tensor) -> Tensor:  # noqa: ARG002
        """Draw white noise."""
        return torch.from_numpy(rng.standard_normal((2, *shape), dtype=np.float32)).to(like.device)


class Truncated(Readout):
    """K-space as far as it was acquired: edges ring, and the noise of interpolated images is as coarse as they are."""

    def resolve(self, signal: Tensor, inside: Tensor, around: float, edge: float) -> Tensor:
        """Cut off the frequencies that were not acquired; around what was stripped lies `around`."""
        return _filtered(signal + around * (1 - inside), edge)

    def noise(self, shape: torch.Size, edge: float, rng: np.random.Generator, like: Tensor) -> Tensor:
        """Draw noise that is white in the acquired part of k-space."""
        rows, columns = (_window(size, edge) for size in shape[-2:])
        kept = float(rows.square().mean() * columns.square().mean())
        spectrum = circular_normal(rng, shape, like.device) * (rows[:, None] * columns / math.sqrt(kept)).to(
            like.device
        )
        return torch.view_as_real(torch.fft.ifft2(spectrum, norm="ortho")).movedim(-1, 0)


READOUTS: dict[str, Readout] = {"blurred": Blurred(), "truncated": Truncated()}


def circular_normal(rng: np.random.Generator, shape: Sequence[int], device: torch.device) -> Tensor:
    """Draw complex numbers whose real and imaginary parts are independent normal deviates, complex64.

    Four random bytes each are turned into a radius and an angle on the device: drawing normal deviates on the CPU takes
    as long as all the rest of a scan takes on a GPU. No part is beyond 4.9, which one deviate in a million would be.
    """
    number = math.prod(shape)
    bits = rng.integers(0, 2**64, math.ceil(number / 2), dtype=np.uint64).astype("<u8", copy=False).view("<i2")
    radius, angle = torch.from_numpy(bits[: 2 * number]).to(device).view(*shape, 2).unbind(-1)
    # from -2**15 ... 2**15 - 1 to the middles of as many steps from 0 to 1
    share = (radius.float() + (2**15 + 0.5)) / 2**16
    return torch.polar(share.log_().mul_(-2).sqrt_(), angle.float() * (math.pi / 2**15))


def _filtered(images: Tensor, edge: float) -> Tensor:
    """Filter images `(..., height, width)` to the frequencies of voxels `edge` times as large."""
    height, width = images.shape[-2:]
    rows, columns = _window(height, edge), _window(width, edge)[: width // 2 + 1]
    spectrum = torch.fft.rfft2(images) * (rows[:, None] * columns).to(images.device)
    kept: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return kept


def _window(size: int, edge: float) -> Tensor:
    """Return the weight of each frequency `(size,)`: 1, 0, and a raised cosine in between."""
    frequency = torch.fft.fftfreq(size).abs() * 2 * edge  # 1 is the highest that was acquired
    fall = ((1 - frequency) / _SOFT_EDGE).clamp(0, 1)
    return 0.5 - 0.5 * torch.cos(math.pi * fall)
