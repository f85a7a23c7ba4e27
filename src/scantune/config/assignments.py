"""Assignments NAME=VALUE of a command line, read as tables of settings."""

import tomllib
from collections.abc import Sequence
from typing import Any, get_type_hints

from scantune.config.settings import fits
from scantune.errors import InputError


def table_from_assignments(kind: type[Any], words: Sequence[str], flag: str) -> dict[str, Any]:
    """Read words like `weight=0.5` as a table for `settings_from_table`: each value by the type of its setting.

    Args:
        kind: The settings dataclass.
        words: The assignments.
        flag: The flag that takes them, for messages.

    Raises:
        InputError: A word is no assignment, or a name occurs twice.
    """
    hints = get_type_hints(kind)
    table: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InputError(f"{flag} takes NAME=VALUE, such as learning_rate=1e-3, but got {word!r}.")
        if name in table:
            raise InputError(f"{flag} must name every setting once, but {name} comes twice.")
        table[name] = _read_word(value, hints.get(name, str))
    return table


def untyped_table_from_assignments(words: Sequence[str], flag: str) -> dict[str, Any]:
    """Read words like `seed=3`, `labels=*_seg.nii.gz` or `structures.GM=2` as a table without settings of its own.

    A value is read as TOML, or as text if it is not TOML. Names with dots make tables in the table.

    Args:
        words: The assignments.
        flag: The flag that takes them, for messages.

    Raises:
        InputError: A word is no assignment, or a name occurs twice.
    """
    table: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        *outer, last = name.split(".")
        if not (all([*outer, last]) and equals and value):
            raise InputError(f"{flag} takes NAME=VALUE, such as labels=*_seg.nii.gz, but got {word!r}.")
        inner = table
        for part in outer:
            inner = inner.setdefault(part, {})
        if not isinstance(inner, dict) or last in inner:
            raise InputError(f"{flag} must name every option once, but {name} comes twice.")
        try:
            inner[last] = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            inner[last] = value
    return table


def _read_word(word: str, hint: Any) -> Any:
    """Return a word in the type of its setting: text, a number, true or false; text if it is none of these."""
    if fits(word, hint):
        return word
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        try:
            value = read(word.lower())
        except (ValueError, KeyError):
            continue
        if fits(value, hint):
            return value
    return word
