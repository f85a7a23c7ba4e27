"""Acquisition: a scanner's protocol turns the true tissue fractions of a subject into an image."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.anatomy import Subject
from scantune.simulate.fields import gaussian_blur, lattice_points, smooth_noise

_TEXTURE_LENGTHS = (1.5, 10.0)  # mm; grain, and slow differences such as between tracts
_COIL_BEHIND = (0.0, -100.0, 0.0)  # mm (z, y, x); a surface coil under the back of the head
_FWHM = 2 * math.sqrt(2 * math.log(2))  # full width at half maximum of a Gaussian of unit deviation


@dataclass(frozen=True)
class Protocol:
    """How a centre scans.

    Attributes:
        name: The centre.
        signal: Mean signal of each tissue, relative to each other.
        texture: Deviation of the signal within solid tissue, relative to the contrast of the two solid
            tissues that differ most.
        bias: Deviation of the logarithm of the smooth random gain.
        bias_length: Smoothness of that gain, in mm.
        surface_coil: Loss of log gain per 100 mm away from a coil at the back of the head.
        snr: Signal of the brightest tissue over the deviation of the noise in the two receiver channels.
        in_plane: Voxel edge in mm.
        resolution: In-plane width of the point spread function (full width at half maximum), in mm.
        thickness: Slice thickness in mm.
        gamma: Exponent of the intensity curve between scanner and archive.
        scale: Stored value of the brightest tissue.
        jitter: Deviation, from subject to subject, of each signal, relative to the range of the signals; the
            other settings vary by a few times as much.
    """

    name: str
    signal: Mapping[str, float]
    texture: float = 0.08
    bias: float = 0.06
    bias_length: float = 45.0
    surface_coil: float = 0.0
    snr: float = 40.0
    in_plane: float = 1.0
    resolution: float = 1.3
    thickness: float = 1.5
    gamma: float = 1.0
    scale: float = 1000.0
    jitter: float = 0.05

    def __post_init__(self) -> None:
        for field in ("snr", "in_plane", "resolution", "thickness", "gamma", "scale", "bias_length"):
            if not getattr(self, field) > 0:
                raise InputError(f"The {field} of protocol {self.name} must be above 0, but is {getattr(self, field)}.")
        if not self.signal or min(self.signal.values()) < 0 or max(self.signal.values()) == 0:
            raise InputError(f"The signals of protocol {self.name} must be 0 or more, and one of them above 0.")

    def jittered(self, rng: np.random.Generator) -> Protocol:
        """The protocol as it came out for one subject: no two sessions of a real scanner are quite alike."""
        spread = self.jitter * (max(self.signal.values()) - min(self.signal.values()))
        signal = {tissue: max(mean + spread * rng.standard_normal(), 0) for tissue, mean in self.signal.items()}
        factors = {"bias": 5, "snr": 3, "gamma": 1, "scale": 3}
        changes = {
            key: getattr(self, key) * math.exp(self.jitter * rate * rng.standard_normal())
            for key, rate in factors.items()
        }
        return dataclasses.replace(self, signal=signal, **changes)


def acquire(subject: Subject, protocol: Protocol, rng: np.random.Generator) -> Tensor:
    """Scan a subject.

    Args:
        subject: The true anatomy, on the protocol's grid.
        protocol: How to scan; exactly as given, without jitter.
        rng: Where texture, gain and noise come from.

    Returns:
        Image `(slices, height, width)`, float32, 0 outside the stripped brain.

    Raises:
        InputError: The protocol has no signal for one of the tissues.
    """
    missing = [tissue for tissue in subject.tissues if tissue not in protocol.signal]
    if missing:
        raise InputError(
            f"Protocol {protocol.name} must give a signal for {', '.join(missing)}, but knows only "
            f"{', '.join(protocol.signal)}. Add the missing ones."
        )
    inside = subject.fractions.sum(0)
    means = subject.fractions.new_tensor([protocol.signal[tissue] for tissue in subject.tissues])
    brightest = float(means.max())
    signal = torch.einsum("t,tshw->shw", means, subject.fractions)
    signal = signal + _texture(subject, protocol, means, rng)
    signal = _resolved(signal, inside, protocol) * _gain(subject, protocol, rng)
    signal = rician(signal, brightest / protocol.snr, rng)
    return protocol.scale * (signal / brightest) ** protocol.gamma * inside.round()


def rician(signal: Tensor, sigma: float, rng: np.random.Generator) -> Tensor:
    """Magnitude of a signal with Gaussian noise of deviation `sigma` in both receiver channels, same shape."""
    noise = rng.standard_normal((2, *signal.shape), dtype=np.float32)
    real, imaginary = (sigma * torch.from_numpy(noise)).to(signal.device)
    return torch.hypot(signal + real, imaginary)


def _texture(subject: Subject, protocol: Protocol, means: Tensor, rng: np.random.Generator) -> Tensor:
    """Differences `(slices, height, width)` within the solid tissues.

    They come from what also sets the tissues apart (myelin, iron, water), so they scale with the contrast.
    """
    solid = subject.fractions[1:].sum(0)
    contrast = float(means[1:].max() - means[1:].min())
    fields = [
        smooth_noise(rng, 1, solid.shape, subject.spacing, length, solid.device)[0] for length in _TEXTURE_LENGTHS
    ]
    return torch.stack(fields).sum(0) * solid * (protocol.texture * contrast / math.sqrt(len(fields)))


def _resolved(signal: Tensor, inside: Tensor, protocol: Protocol) -> Tensor:
    """Blur in plane by the point spread function; beyond the border lies more of the same, not darkness."""
    sigma = protocol.resolution / _FWHM / protocol.in_plane
    blurred = gaussian_blur(torch.stack([signal, inside]), (0.0, sigma, sigma))
    return blurred[0] / blurred[1].clamp_min(1e-6) * inside


def _gain(subject: Subject, protocol: Protocol, rng: np.random.Generator) -> Tensor:
    """Receiver gain `(slices, height, width)`, about 1 in the middle of the field of view."""
    shape = subject.fractions.shape[1:]
    device = subject.fractions.device
    gain = protocol.bias * smooth_noise(rng, 1, shape, subject.spacing, protocol.bias_length, device)[0]
    coil = torch.tensor(_COIL_BEHIND, device=device) + torch.from_numpy(rng.normal(0.0, 15.0, 3).astype(np.float32)).to(
        device
    )
    points = lattice_points(shape, subject.spacing, subject.origin, device)
    distance = (points - coil).norm(dim=-1)
    return torch.exp(gain - protocol.surface_coil * (distance / 100.0 - 1.0))
