"""Settings that are drawn anew for every person: a protocol file gives a range or a choice in place of their value."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from scantune.errors import InputError
from scantune.simulate.pulses import is_number

Settings = TypeVar("Settings")


class Variation(ABC):
    """What a setting may be."""

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Any:
        """Draw the value of one person."""

    @abstractmethod
    def usual(self) -> Any:
        """Return the value that stands for all."""

    @abstractmethod
    def extremes(self) -> tuple[Any, ...]:
        """Return the values that must be possible, so that all others are."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return it as a protocol file has it."""


@dataclass(frozen=True)
class Between(Variation):
    """Any number of a range, each as likely as the others."""

    low: float
    high: float

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a number."""
        return float(rng.uniform(self.low, self.high))

    def usual(self) -> float:
        """Return the middle."""
        return (self.low + self.high) / 2

    def extremes(self) -> tuple[float, float]:
        """Return both ends."""
        return self.low, self.high

    def record(self) -> dict[str, Any]:
        """Return the ends by name."""
        return {"from": self.low, "to": self.high}


@dataclass(frozen=True)
class OneOf(Variation):
    """One of a few values, each as likely as the others."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw a value."""
        return self.values[rng.integers(len(self.values))]

    def usual(self) -> Any:
        """Return the first."""
        return self.values[0]

    def extremes(self) -> tuple[Any, ...]:
        """Return all of them."""
        return self.values

    def record(self) -> dict[str, Any]:
        """Return the values under their name."""
        return {"one_of": list(self.values)}


Varied = Mapping[str, Any]
"""Variations by the names of their settings; those of a table within are a mapping of their own."""


def read_varied(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the variations in a table of a protocol file, in an order that does not depend on the file's.

    Args:
        table: The table.
        where: Its name, for messages.

    Raises:
        InputError: A range or a choice is none.
    """
    found: dict[str, Any] = {}
    for name, entry in sorted(table.items()):
        if not isinstance(entry, dict):
            continue
        if entry.keys() & {"from", "to", "one_of"}:
            found[name] = _variation(entry, f"{name} in {where}")
        elif inner := read_varied(entry, f"{name} in {where}"):
            found[name] = inner
    return found


def usual(table: Mapping[str, Any], varied: Varied) -> dict[str, Any]:
    """Return a table of a protocol file with the value that stands for all in place of each variation."""
    return _fixed(table, varied, lambda what: what.usual())


def extremes(table: Mapping[str, Any], varied: Varied) -> Iterator[dict[str, Any]]:
    """Yield a table of a protocol file with extreme values: all lowest, all highest, and every choice."""
    for number in range(max((len(each.extremes()) for each in _variations(varied)), default=0)):
        yield _fixed(table, varied, partial(_extreme, number))


def vary(settings: Settings, varied: Varied, rng: np.random.Generator) -> Settings:
    """Return settings, a dataclass or a mapping, as they are for one person."""
    changes: dict[str, Any] = {}
    for name, what in varied.items():
        inner = settings[name] if isinstance(settings, Mapping) else getattr(settings, name)
        changes[name] = what.draw(rng) if isinstance(what, Variation) else vary(inner, what, rng)
    if isinstance(settings, Mapping):
        return cast(Settings, {**settings, **changes})
    return cast(Settings, dataclasses.replace(cast(Any, settings), **changes))


def record(varied: Varied) -> dict[str, Any]:
    """Return variations as a protocol file has them."""
    return {name: what.record() if isinstance(what, Variation) else record(what) for name, what in varied.items()}


def _fixed(table: Mapping[str, Any], varied: Varied, choose: Callable[[Variation], Any]) -> dict[str, Any]:
    """Return a table with a value in place of each variation."""

    def value(name: str, entry: Any) -> Any:
        what = varied.get(name)
        if isinstance(what, Variation):
            return choose(what)
        return entry if what is None else _fixed(entry, what, choose)

    return {name: value(name, entry) for name, entry in table.items()}


def _extreme(number: int, what: Variation) -> Any:
    values = what.extremes()
    return values[number % len(values)]


def _variations(varied: Varied) -> Iterator[Variation]:
    """Yield all variations, those within tables too."""
    for what in varied.values():
        if isinstance(what, Variation):
            yield what
        else:
            yield from _variations(what)


def _variation(entry: Mapping[str, Any], where: str) -> Variation:
    values = entry.get("one_of")
    if set(entry) == {"one_of"} and isinstance(values, list) and values:
        return OneOf(tuple(values))
    low, high = entry.get("from"), entry.get("to")
    if set(entry) == {"from", "to"} and is_number(low) and is_number(high) and low <= high:  # type: ignore[operator]
        return Between(float(low), float(high))  # type: ignore[arg-type]
    raise InputError(
        f"The {where} must be a range such as {{ from = 1.0, to = 2.0 }} or a choice such as "
        f"{{ one_of = [1.5, 3.0] }}, but is {dict(entry)}. Correct it, or give one value."
    )
