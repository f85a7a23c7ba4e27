"""Signal equations: what a pulse sequence makes of a tissue's proton density and relaxation times.

All pulses are ideal and on resonance, spoiling is perfect, and blood stands still. Times are in ms, angles in degrees.
Signals are magnitudes in the steady state, relative to fully relaxed water: 1 is the most there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp
from typing import ClassVar

from scantune.errors import InputError
from scantune.simulate.pulses import PulseSequence, Sequence, entry, is_number, require_flip, require_times
from scantune.simulate.tissues import Relaxation

_UNSATURATED = 1e6  # ms; a repetition time after which everything has recovered


@dataclass(frozen=True)
class SpinEcho(PulseSequence):
    """90 - 180 - echo. Turbo spin echo too, with its effective echo time."""

    tr: float
    """Repetition time."""
    te: float
    """Echo time; of the echo in the middle of k-space for turbo spin echo."""

    def __post_init__(self) -> None:
        require_times("spin-echo", tr=self.tr, te=self.te)

    def magnetisation(self, tissue: Relaxation) -> float:
        """Compute saturation recovery, with the part of it that the 180 degree pulse turns over."""
        recovered = 1 - 2 * exp(-(self.tr - self.te / 2) / tissue.t1) + exp(-self.tr / tissue.t1)
        return recovered * exp(-self.te / tissue.t2)


@dataclass(frozen=True)
class SpoiledGradientEcho(PulseSequence):
    """FLASH, SPGR, T1-FFE: R. R. Ernst and W. A. Anderson, Rev. Sci. Instrum. 37 (1966) 93-102."""

    kind: ClassVar[str] = "spoiled-gradient-echo"

    tr: float
    """Repetition time."""
    te: float
    """Echo time."""
    flip: float
    """Flip angle."""

    def __post_init__(self) -> None:
        require_times(self.kind, tr=self.tr, te=self.te)
        require_flip(self.kind, self.flip)

    def magnetisation(self, tissue: Relaxation) -> float:
        """Compute Ernst's steady state with T2* decay."""
        e1, angle = exp(-self.tr / tissue.t1), math.radians(self.flip)
        return math.sin(angle) * (1 - e1) / (1 - e1 * math.cos(angle)) * exp(-self.te / tissue.t2_star)


FLOWING = ("CSF", "spinal CSF", "blood")
"""Tissues that move through a slice between two pulses."""


@dataclass(frozen=True)
class InflowGradientEcho(SpoiledGradientEcho):
    """A spoiled gradient echo of one slice, or of a slab, into which fluids flow that no pulse has met.

    Such fluid has its full magnetisation, so that it is bright however long its T1 is (D. G. Nishimura, Magn. Reson.
    Med. 14 (1990) 194-222). The part that stays is in the steady state.
    """

    kind: ClassVar[str] = "inflow-gradient-echo"

    inflow: float
    """Part of the fluid that is fresh at each pulse, from 0 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.inflow) or not 0 <= self.inflow <= 1:
            raise InputError(
                f"inflow of the sequence {self.kind} must be from 0 to 1, but is {self.inflow!r}. Correct it."
            )

    def signals(self, tissues: Iterable[str], field: float) -> dict[str, float]:
        """Return the signal of each tissue, and the mean of its two parts for a fluid that flows."""
        found = super().signals(tissues, field)
        fresh = SpoiledGradientEcho(tr=_UNSATURATED, te=self.te, flip=self.flip)
        for name in found.keys() & set(FLOWING):
            found[name] += self.inflow * (fresh.signals((name,), field)[name] - found[name])
        return found


@dataclass(frozen=True)
class Mprage(PulseSequence):
    """Inversion, a train of spoiled gradient echoes, recovery: over and over.

    J. P. Mugler and J. R. Brookeman, Magn. Reson. Med. 15 (1990) 152-157.
    """

    tr: float
    """Time from one inversion to the next."""
    ti: float
    """Time from the inversion to the middle of the train, where the middle of k-space is read. Protocols that
    count to its start have a TI shorter by half the train."""
    te: float
    """Echo time within the train."""
    flip: float
    """Flip angle of the pulses in the train."""
    echo_spacing: float
    """Time between two pulses of the train."""
    echoes: int
    """Pulses per train."""

    def __post_init__(self) -> None:
        require_times("mprage", tr=self.tr, ti=self.ti)
        require_times("mprage", echo_spacing=self.echo_spacing, te=self.te)
        require_flip("mprage", self.flip)
        if not is_number(self.echoes) or self.echoes < 1 or self.echoes != int(self.echoes):
            raise InputError(
                f"echoes of the sequence mprage must be a whole number from 1, but is {self.echoes!r}. Correct it."
            )
        if self._train_start < 0 or self._train_end > self.tr:
            raise InputError(
                f"The train of the sequence mprage, {self.echoes} echoes with their middle at ti, must lie between one "
                f"inversion and the next, 0 to {self.tr:g} ms, but lasts from {self._train_start:g} to "
                f"{self._train_end:g} ms. Change ti (it counts to the middle), echo_spacing, echoes or tr."
            )

    def magnetisation(self, tissue: Relaxation) -> float:
        """Compute the magnetisation that the pulse in the middle of the train turns over, with T2* decay."""
        angle = math.radians(self.flip)
        # A cycle is an affine map of the magnetisation before the inversion: two points fix the map, and what it leaves
        # unchanged is the steady state.
        from_zero, from_one = self._cycle(0.0, tissue), self._cycle(1.0, tissue)
        steady = from_zero / (1 + from_zero - from_one)
        return self._at_centre(steady, tissue) * math.sin(angle) * exp(-self.te / tissue.t2_star)

    @property
    def _before(self) -> int:
        """Number of pulses before the one in the middle of the train."""
        return self.echoes // 2

    @property
    def _train_start(self) -> float:
        return self.ti - self._before * self.echo_spacing

    @property
    def _train_end(self) -> float:
        return self._train_start + self.echoes * self.echo_spacing

    def _at_centre(self, before_inversion: float, tissue: Relaxation) -> float:
        """Return the longitudinal magnetisation just before the pulse in the middle of the train."""
        first = _recover(-before_inversion, self._train_start, tissue.t1)
        return self._pulses(first, self._before, tissue)

    def _cycle(self, before_inversion: float, tissue: Relaxation) -> float:
        """Return the longitudinal magnetisation just before the next inversion."""
        centre = self._at_centre(before_inversion, tissue)
        end = self._pulses(centre, self.echoes - self._before, tissue)
        return _recover(end, self.tr - self._train_end, tissue.t1)

    def _pulses(self, magnetisation: float, count: int, tissue: Relaxation) -> float:
        """Sum the geometric series of longitudinal magnetisation after pulses that are each followed by recovery."""
        e1 = exp(-self.echo_spacing / tissue.t1)
        factor = math.cos(math.radians(self.flip)) * e1
        steady = (1 - e1) / (1 - factor)
        return steady + (magnetisation - steady) * factor**count


@dataclass(frozen=True)
class Flair(PulseSequence):
    """180 - TI - 90 - 180 - echo: inversion recovery (turbo) spin echo, the magnitude.

    The refocusing pulses of a turbo train after the effective echo are left out: they delay the recovery, so that
    scanners null CSF at a slightly shorter TI than this equation.
    """

    tr: float
    """Time from one inversion to the next."""
    ti: float
    """Time from the inversion to the 90 degree pulse."""
    te: float
    """Echo time; of the echo in the middle of k-space for turbo spin echo."""

    def __post_init__(self) -> None:
        require_times("flair", tr=self.tr, ti=self.ti)
        require_times("flair", tr=self.tr, te=self.te)
        if self.ti + self.te >= self.tr:
            raise InputError(
                f"ti and te of the sequence flair must together be shorter than its tr, {self.tr:g} ms, but are "
                f"{self.ti:g} and {self.te:g} ms. Shorten ti or te, or lengthen tr."
            )

    def magnetisation(self, tissue: Relaxation) -> float:
        """Compute inversion recovery from a steady state that the echo's 180 degree pulse has lowered."""
        t1 = tissue.t1
        recovered = 1 - 2 * exp(-self.ti / t1) + 2 * exp(-(self.tr - self.te / 2) / t1) - exp(-self.tr / t1)
        return recovered * exp(-self.te / tissue.t2)


@dataclass(frozen=True)
class BalancedSsfp(PulseSequence):
    """TrueFISP, FIESTA, bFFE, on resonance with alternating pulses: the sequence of cardiac cine scans."""

    tr: float
    """Repetition time."""
    te: float
    """Echo time, about half the repetition time."""
    flip: float
    """Flip angle."""

    def __post_init__(self) -> None:
        require_times("balanced-ssfp", tr=self.tr, te=self.te)
        require_flip("balanced-ssfp", self.flip)

    def magnetisation(self, tissue: Relaxation) -> float:
        """Compute the steady state after the pulse with T2 decay; dephasing by T2* is refocused near TR/2."""
        e1, e2, angle = exp(-self.tr / tissue.t1), exp(-self.tr / tissue.t2), math.radians(self.flip)
        after_pulse = math.sin(angle) * (1 - e1) / (1 - (e1 - e2) * math.cos(angle) - e1 * e2)
        return after_pulse * exp(-self.te / tissue.t2)


@dataclass(frozen=True)
class Given(Sequence):
    """A contrast that is simply stated."""

    values: Mapping[str, float]
    """Signal by tissue, any names."""

    def __post_init__(self) -> None:
        for name, value in self.values.items():
            if not is_number(value) or value < 0:
                raise InputError(
                    f"The value of {name} in the sequence given must be a number from 0, but is {value!r}. Correct it."
                )

    def signals(self, tissues: Iterable[str], field: float) -> dict[str, float]:  # noqa: ARG002
        """Return the stated values, at every field strength.

        Raises:
            InputError: No value is stated for a tissue.
        """
        return {name: float(entry(self.values, name, "in the values of the sequence given")) for name in tissues}


SEQUENCES: dict[str, type[Sequence]] = {
    "spin-echo": SpinEcho,
    "spoiled-gradient-echo": SpoiledGradientEcho,
    "inflow-gradient-echo": InflowGradientEcho,
    "mprage": Mprage,
    "flair": Flair,
    "balanced-ssfp": BalancedSsfp,
    "given": Given,
}


def _recover(magnetisation: float, time: float, t1: float) -> float:
    return 1 + (magnetisation - 1) * exp(-time / t1)
