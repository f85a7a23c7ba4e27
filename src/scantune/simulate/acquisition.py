"""Acquisition: a scanner's protocol turns the true anatomy of a subject into an image."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.simulate.coils import Coil, CoilBody, Endorectal
from scantune.simulate.fields import lattice_points, smooth_noise
from scantune.simulate.pulses import Sequence
from scantune.simulate.readouts import READOUTS
from scantune.simulate.subject import FieldOfView, Subject

_TEXTURE_LENGTHS = (1.5, 10.0)  # mm; grain, and slow differences such as between tracts
_JITTERED = {"bias": 5, "snr": 3, "gamma": 1, "scale": 3}  # how many times the jitter these settings vary by
_FATTY = ("fat", "marrow")  # tissues that fat suppression reaches
_LATER = ("border", "ghosts", "fat")  # settings that version 0.1 did not have
_GHOSTS_APART = (0.1, 0.4)  # shares of the field of view by which ghosts are shifted


@dataclass(frozen=True)
class Protocol:
    """How a centre scans.

    Attributes:
        name: The centre.
        sequence: What gives the tissues their contrast.
        field: Field strength in tesla.
        coil: What receives the signal.
        readout: A name of `READOUTS`.
        fov: Field of view, back to front and left to right, in mm.
        in_plane: Voxel edge of the image in mm.
        resolution: Voxel edge as acquired (or full width at half maximum of the point spread function), in mm.
        thickness: Slice thickness in mm.
        gap: Gap between slices in mm; None spreads the slices over the anatomy.
        slices: Number of slices.
        slice_edges: Share of the thickness over which the slice profile falls off at either side.
        texture: Deviation of the signal within textured regions, relative to the contrast of the two that differ most.
        bias: Deviation of the logarithm of the smooth random gain.
        bias_length: Smoothness of that gain, in mm.
        snr: Signal of the brightest tissue over the deviation of the noise in the two receiver channels.
        gamma: Exponent of the intensity curve between scanner and archive.
        scale: Stored value of the brightest tissue.
        jitter: Deviation, from subject to subject, of each signal, relative to the range of the signals; the
            other settings vary by a few times as much.
        border: Width in mm over which tissues blend into each other, of anatomies that are drawn from shapes; never
            less than a voxel's edge.
        ghosts: Strength of the ghosts that periodic movement leaves from back to front, relative to the picture.
        fat: Factor of the signal of fat and marrow; below 1 they are suppressed.
    """

    name: str
    sequence: Sequence
    field: float = 3.0
    coil: Coil = dataclasses.field(default_factory=CoilBody)
    readout: str = "truncated"
    fov: tuple[float, float] = (208.0, 176.0)
    in_plane: float = 1.0
    resolution: float = 1.3
    thickness: float = 1.5
    gap: float | None = None
    slices: int = 16
    slice_edges: float = 0.0
    texture: float = 0.08
    bias: float = 0.06
    bias_length: float = 45.0
    snr: float = 40.0
    gamma: float = 1.0
    scale: float = 1000.0
    jitter: float = 0.05
    border: float = 0.0
    ghosts: float = 0.0
    fat: float = 1.0

    def __post_init__(self) -> None:
        for name in ("field", "snr", "in_plane", "resolution", "thickness", "gamma", "scale", "bias_length"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"The {name} of protocol {self.name} must be above 0, but is {getattr(self, name)}.")
        for name in ("gap", "slice_edges", "texture", "bias", "jitter", "border", "ghosts", "fat"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise InputError(f"The {name} of protocol {self.name} must be 0 or more, but is {getattr(self, name)}.")
        if self.slice_edges > 1:
            raise InputError(f"The slice_edges of protocol {self.name} must be 1 or less, but is {self.slice_edges}.")
        if self.slices < 1:
            raise InputError(f"Protocol {self.name} must have at least 1 slice, but has {self.slices}.")
        if not all(8 * self.in_plane <= edge < math.inf for edge in self.fov):
            raise InputError(
                f"The fov of protocol {self.name} must be its height and width in mm, at least 8 voxels each, "
                f"but is {self.fov} at {self.in_plane} mm."
            )
        if self.readout not in READOUTS:
            raise InputError(
                f"The readout of protocol {self.name} must be one of {', '.join(READOUTS)}, but is {self.readout!r}."
            )

    def __repr__(self) -> str:
        """Return the settings, without later ones at their defaults: scans and finished jobs are found by this text."""
        shown = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name not in _LATER or getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def view(self, slices: int | None = None) -> FieldOfView:
        """Return the field of view that says where its voxels lie.

        Args:
            slices: Number of slices, to be spread evenly over the anatomy; None lays the protocol's own.
        """
        return FieldOfView(
            slices=self.slices if slices is None else slices,
            height=self.fov[0],
            width=self.fov[1],
            in_plane=self.in_plane,
            thickness=self.thickness,
            spacing=None if self.gap is None or slices is not None else self.thickness + self.gap,
            edges=self.slice_edges,
            endorectal=isinstance(self.coil, Endorectal),
            border=self.border,
        )

    def session(self, tissues: tuple[str, ...], rng: np.random.Generator) -> Session:
        """Draw the protocol as it came out for one subject: no two sessions of a scanner are quite alike.

        Raises:
            InputError: The sequence gives none of the tissues a signal, or does not know one.
        """
        means = self.sequence.signals(tissues, self.field)
        means = {tissue: mean * (self.fat if tissue in _FATTY else 1.0) for tissue, mean in means.items()}
        if not max(means.values()) > 0:
            raise InputError(f"Protocol {self.name} must give one of the tissues a signal above 0, but gives none.")
        spread = self.jitter * (max(means.values()) - min(means.values()))
        signals = {tissue: max(mean + spread * rng.standard_normal(), 0.0) for tissue, mean in means.items()}
        changes = {
            key: getattr(self, key) * math.exp(self.jitter * rate * rng.standard_normal())
            for key, rate in _JITTERED.items()
        }
        return Session(dataclasses.replace(self, **changes), signals)


@dataclass(frozen=True)
class Session:
    """One examination: a protocol, and the signals that it gave the tissues.

    Attributes:
        protocol: How it was scanned.
        signals: Mean signal of each tissue.
    """

    protocol: Protocol
    signals: Mapping[str, float]


def acquire(subject: Subject, session: Session, rng: np.random.Generator) -> Tensor:
    """Scan a subject.

    Args:
        subject: The true anatomy, on the protocol's grid.
        session: How to scan.
        rng: Where texture, gain and noise come from.

    Returns:
        Image `(slices, height, width)`, float32, 0 where something was stripped away.
    """
    protocol = session.protocol
    readout = READOUTS[protocol.readout]
    inside = subject.fractions.sum(0)
    # on the host, in single precision: nothing here should make a GPU wait
    means = torch.tensor([session.signals[region.tissue] for region in subject.regions])
    brightest = float(means.max())
    signal = torch.einsum("t,tshw->shw", means.to(inside.device), subject.fractions)
    signal = signal + _texture(subject, protocol, means, rng)
    around = session.signals.get(subject.around, 0.0)
    edge = protocol.resolution / protocol.in_plane
    signal = readout.resolve(signal, inside, around, edge) * _gain(subject, protocol, rng)
    noise = readout.noise(signal.shape, edge, rng, signal)
    signal = _with_ghosts(signal, protocol.ghosts, rng) if protocol.ghosts else signal
    image = rician(signal, noise * (brightest / protocol.snr))
    image = protocol.scale * (image / brightest) ** protocol.gamma
    return image * inside.round() if subject.around else image


def _with_ghosts(signal: Tensor, strength: float, rng: np.random.Generator) -> Tensor:
    """Return a signal `(slices, height, width)` with the ghosts of a periodic movement.

    A movement that comes back while the lines of k-space are read makes them stronger and weaker in turn. This adds two
    copies of the picture, shifted to either side (M. L. Wood and R. M. Henkelman, Med. Phys. 12 (1985) 143-151).
    """
    height = signal.shape[-2]
    shift, start = (rng.uniform(*ends, (len(signal), 1)) for ends in (_GHOSTS_APART, (0.0, 2 * math.pi)))
    swing = 1 + strength * np.cos(2 * math.pi * shift * height * np.fft.fftfreq(height) + start)
    lines = torch.from_numpy(swing.astype(np.float32)).to(signal.device)
    ghosted: Tensor = torch.fft.ifft(torch.fft.fft(signal, dim=-2) * lines[:, :, None], dim=-2)
    return ghosted.abs()


def rician(signal: Tensor, noise: Tensor) -> Tensor:
    """Return the magnitude `(...)` of a signal with noise `(2, ...)` in the two receiver channels."""
    return torch.hypot(signal + noise[0], noise[1])


def _texture(subject: Subject, protocol: Protocol, means: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the differences `(slices, height, width)` within the textured regions.

    They come from what also sets the tissues apart (myelin, iron, water), so they scale with the contrast.
    """
    strengths = torch.tensor([region.texture for region in subject.regions])
    grainy = torch.einsum("t,tshw->shw", strengths.to(subject.fractions.device), subject.fractions)
    contrast = float(means[strengths > 0].max() - means[strengths > 0].min()) if (strengths > 0).any() else 0.0
    fields = [
        smooth_noise(rng, 1, grainy.shape, subject.spacing, length, grainy.device)[0] for length in _TEXTURE_LENGTHS
    ]
    return torch.stack(fields).sum(0) * grainy * (protocol.texture * contrast / math.sqrt(len(fields)))


def _gain(subject: Subject, protocol: Protocol, rng: np.random.Generator) -> Tensor:
    """Return the receiver gain `(slices, height, width)`."""
    shape = subject.fractions.shape[1:]
    device = subject.fractions.device
    bias = protocol.bias * smooth_noise(rng, 1, shape, subject.spacing, protocol.bias_length, device)[0]
    points = lattice_points(shape, subject.spacing, subject.origin, device)
    return torch.exp(bias) * protocol.coil.gain(points, subject.landmarks, rng)
