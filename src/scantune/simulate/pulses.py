"""What all pulse sequences share: the contract, and the checks of their times and angles."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeVar

from scantune.errors import InputError
from scantune.simulate.tissues import TISSUES, Relaxation, Tissue

T = TypeVar("T")


class Sequence(ABC):
    """A way to give tissues their signals."""

    @abstractmethod
    def signals(self, tissues: Iterable[str], field: float) -> dict[str, float]:
        """Return the signal of each tissue by name, at a field strength in tesla.

        Raises:
            InputError: A tissue is unknown, or its relaxation times are at this field strength.
        """


class PulseSequence(Sequence):
    """A sequence whose signal follows from proton density and relaxation times."""

    def signals(self, tissues: Iterable[str], field: float) -> dict[str, float]:
        """Return the signal of each tissue of `TISSUES` by name, at a field strength in tesla."""
        return {name: self.signal(entry(TISSUES, name, "in the table of tissues"), field) for name in tissues}

    def signal(self, tissue: Tissue, field: float) -> float:
        """Return the signal of a tissue at a field strength in tesla.

        Raises:
            InputError: The relaxation times are not known at this field strength.
        """
        return tissue.density * abs(self.magnetisation(tissue.relaxation(field)))

    @abstractmethod
    def magnetisation(self, tissue: Relaxation) -> float:
        """Return the transverse magnetisation at the echo relative to equilibrium; its sign gives the phase."""


def entry(table: Mapping[str, T], tissue: str, where: str) -> T:
    """Return the value of a tissue in a table.

    Raises:
        InputError: It says nothing.
    """
    if tissue not in table:
        raise InputError(f"The tissue {tissue!r} is not {where}. There are: {', '.join(table)}. Choose one of these.")
    return table[tissue]


def is_number(value: object) -> bool:
    """Return True if a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def require_times(sequence: str, **times: float) -> None:
    """Refuse times that are not positive, and a second one that is not shorter than the first."""
    for field, time in times.items():
        if not is_number(time) or time <= 0:
            raise InputError(
                f"{field} of the sequence {sequence} must be a positive number of ms, but is {time!r}. Correct it."
            )
    (longer, most), *rest = times.items()
    for field, time in rest:
        if time >= most:
            raise InputError(
                f"{field} of the sequence {sequence} must be shorter than its {longer}, {most:g} ms, but is {time:g} "
                f"ms. Shorten {field} or lengthen {longer}."
            )


def require_flip(sequence: str, flip: float) -> None:
    """Refuse angles that turn nothing, or all the way and more."""
    if not is_number(flip) or not 0 < flip < 180:
        raise InputError(
            f"flip of the sequence {sequence} must be an angle between 0 and 180 degrees, but is {flip!r}. Correct it."
        )
