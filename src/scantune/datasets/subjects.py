"""People on scans, by file names, and splits that keep the scans of a person together."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Sequence
from typing import TypeVar

from scantune.datasets.base import ScanEntry
from scantune.errors import InputError

SPLITS = ("train", "validation", "test")

_BIDS = re.compile(r"(?:^|[_/])(sub-[A-Za-z0-9]+)")
_SESSION = re.compile(r"_ses|Ses\d|_run")

AnyEntry = TypeVar("AnyEntry", bound=ScanEntry)


def find_subject(name: str, rule: str = "", file: str = "") -> str:
    """Return the person on a scan.

    Args:
        name: Name of the scan.
        rule: Regular expression that is searched for in the name. Its first group, or the whole match without
            groups, is the person. Without a rule, the person is `sub-LABEL` if the name of the file or else of the
            scan has it, and otherwise the part before the first `_ses`, `_run`, or `Ses` with a digit.
            `sub-12Ses1`, `sub-12_ses-2_T1w` and `sub-12_run-1_T1w` are all of `sub-12`.
        file: Name of the file, without its extension.

    Raises:
        InputError: The rule does not match the name.
    """
    if rule:
        found = re.search(rule, name)
        if not found or not (person := found[1] if found.re.groups else found[0]):
            raise InputError(f"The rule person = {rule!r} must fit the name of every scan, but does not fit {name}.")
        return str(person)
    bids = _BIDS.search(file) or _BIDS.search(name)
    whole = bids[1] if bids else name
    return _SESSION.split(whole)[0] or whole


def assign_splits(entries: Sequence[AnyEntry], validation: float, test: float = 0.0, seed: int = 0) -> list[AnyEntry]:
    """Give each entry a split, by person. Entries that have one keep it.

    The people of each site are taken in order of name, or in an order that a seed above 0 decides (the same on every
    machine), and put aside at regular intervals. People at two sites count at the first. If no entry is for validation,
    those for training are divided too.

    Args:
        entries: Entries in any order, which is kept.
        validation: Share of the people put aside for validation: at least one of each site that has someone left for
            training, and at least one of all.
        test: Share of the people put aside for testing, at least one likewise.
        seed: Seed of the order of people. 0 keeps the order of names.
    """
    fixed = {"validation", "test"} if all(entry.split != "validation" for entry in entries) else set(SPLITS)
    site: dict[str, str] = {}
    for entry in sorted(entries, key=lambda entry: (entry.subject, entry.site)):
        if entry.split not in fixed:
            site.setdefault(entry.subject, entry.site)
    people = sorted(site, key=lambda person: (site[person], _rank(person, seed), person))
    aside: dict[str, str] = {}
    for one in dict.fromkeys(site.values()):
        here = [person for person in people if site[person] == one]
        aside |= _with_each(here, _every(here, validation, test), validation, test)
    aside = _with_each(people, aside, validation, test)
    return [
        entry if entry.split in fixed else dataclasses.replace(entry, split=aside.get(entry.subject, "train"))
        for entry in entries
    ]


def subjects_in_two_splits(entries: Sequence[ScanEntry]) -> dict[str, list[str]]:
    """Return the splits of everyone who is in more than one."""
    splits: dict[str, set[str]] = {}
    for entry in entries:
        splits.setdefault(entry.subject, set()).add(entry.split)
    return {person: sorted(splits[person]) for person in sorted(splits) if len(splits[person]) > 1}


def _rank(person: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{person}".encode()).hexdigest() if seed else ""


def _every(people: Sequence[str], validation: float, test: float) -> dict[str, str]:
    """Return the split of the people who are put aside at regular intervals of the list."""
    both = validation + test
    chosen = [person for n, person in enumerate(people) if _steps(n, both)]
    return {person: "test" if _steps(n, test / both) else "validation" for n, person in enumerate(chosen)}


def _with_each(people: Sequence[str], aside: dict[str, str], validation: float, test: float) -> dict[str, str]:
    """Return the people put aside, with the last of the others for each empty split if one can be spared."""
    for split, share in (("validation", validation), ("test", test)):
        left = [person for person in people if person not in aside]
        if share and split not in aside.values() and len(left) > 1:
            aside = aside | {left[-1]: split}
    return aside


def _steps(number: int, share: float) -> bool:
    """Return whether a whole number lies between a number of shares and one more, where 3 shares of 1/3 are one."""
    return math.floor(round((number + 1) * share, 9)) > math.floor(round(number * share, 9))
