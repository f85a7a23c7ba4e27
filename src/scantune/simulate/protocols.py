"""Protocol files: the centres that come with scantune, and those that users write, in the same form.

A file has one table per centre; `centres/*.toml` are the examples to start from. Times are in ms, angles in
degrees, lengths in mm. In place of a value there may be a range or a choice of values (`varied.py`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.simulate.acquisition import Protocol
from scantune.simulate.coils import COILS
from scantune.simulate.sequences import SEQUENCES
from scantune.simulate.varied import Varied, extremes, read_varied, usual, vary

Kind = TypeVar("Kind")

_ABOUT = ("vendor", "scanner", "source", "assumed", "splits")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Centre:
    """One centre of a cohort.

    Attributes:
        protocol: How it scans; the middle of what varies.
        splits: Number of subjects in each of its splits.
        vendor: Who made the scanner.
        scanner: Its model.
        source: Where the protocol is published.
        assumed: Settings that are not published and were chosen to be plausible.
        varied: Settings that are drawn anew for every person.
    """

    protocol: Protocol
    splits: Mapping[str, int]
    vendor: str = ""
    scanner: str = ""
    source: str = ""
    assumed: tuple[str, ...] = field(default=())
    varied: Varied = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Everything that decides how its scans look: scans and finished jobs are found by this text."""
        return f"{self.protocol!r} varied {self.varied!r}" if self.varied else repr(self.protocol)

    def protocol_of(self, rng: np.random.Generator) -> Protocol:
        """Draw how it scans one person."""
        return vary(self.protocol, self.varied, rng) if self.varied else self.protocol


def bundled_centres(cohort: str) -> dict[str, Centre]:
    """Return the centres of a cohort that come with scantune; the first is the one to train at."""
    text = (resources.files("scantune.simulate") / "centres" / f"{cohort}.toml").read_text(encoding="utf-8")
    return centres_from_toml(text, f"{cohort}.toml")


def read_centres(path: str | Path) -> dict[str, Centre]:
    """Read a user's protocol file.

    Raises:
        InputError: The file is not there, is not TOML, or says something that cannot be.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} must be a protocol file, but cannot be read ({error}). Check the path.") from error
    return centres_from_toml(text, str(path))


def centres_from_toml(text: str, where: str) -> dict[str, Centre]:
    """Parse the centres of a protocol file's text.

    Raises:
        InputError: As `read_centres`.
    """
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not a valid TOML file: {error}.") from error
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise InputError(f"{where} must hold one table per centre, such as [my-scanner]; put every setting in a table.")
    return {name: _centre(name, table, f"[{name}] of {where}") for name, table in tables.items()}


def _centre(name: str, table: Mapping[str, Any], where: str) -> Centre:
    if "sequence" not in table:
        raise InputError(
            f'{where} must say how it scans: sequence = {{ kind = "spin-echo", tr = 4000.0, te = 100.0 }}, say.'
        )
    if "name" in table:
        raise InputError(f"{where} must not have the setting name: a centre is called what its table is called.")
    settings: dict[str, Any] = {key: value for key, value in table.items() if key not in _ABOUT}
    varied = read_varied(settings, where)
    protocol = _protocol(name, usual(settings, varied), where)
    for extreme in extremes(settings, varied):
        _protocol(name, extreme, where)  # refuses what cannot be before anyone is scanned
    about = {key: str(table[key]) for key in ("vendor", "scanner", "source") if key in table}
    splits = _splits(table.get("splits", {"test": 10}), where)
    assumed = _assumed(table.get("assumed", []), where)
    return Centre(protocol, splits, assumed=assumed, varied=varied, **about)


def _protocol(name: str, table: Mapping[str, Any], where: str) -> Protocol:
    """Create a protocol from a table without ranges."""
    settings = {"name": name, **table, "sequence": _member(SEQUENCES, table["sequence"], f"sequence in {where}")}
    if "coil" in table:
        settings["coil"] = _member(COILS, table["coil"], f"coil in {where}")
    return settings_from_table(Protocol, settings, where)


def _member(family: Mapping[str, type[Kind]], table: Any, where: str) -> Kind:
    """Create a member of a family from a table whose `kind` names it."""
    kind = table.get("kind") if isinstance(table, dict) else None
    if not isinstance(kind, str) or kind not in family:
        raise InputError(f"The {where} must have a kind out of {', '.join(family)}, got {kind!r}.")
    return settings_from_table(
        family[kind], {key: value for key, value in table.items() if key != "kind"}, f"the {where}"
    )


def _splits(table: Any, where: str) -> dict[str, int]:
    fine = isinstance(table, dict) and table and all(type(n) is int and n >= 0 for n in table.values())
    if not fine or set(table) - set(_SPLITS):
        raise InputError(f"The splits in {where} must be numbers of people, such as {{ test = 10 }}, got {table}.")
    return dict(table)


def _assumed(names: Any, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f'In {where}, assumed must be a list of settings, such as ["snr", "coil.side"], got {names!r}.'
        )
    return tuple(names)
