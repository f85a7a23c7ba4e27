"""A folder of simulated scans, each under a name made from everything that decides what it looks like."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from scantune.scans.case import Case
from scantune.scans.files import write_whole

VERSION = 1
"""Version of the simulated scans: raise it when a change of the code makes any of them look different beyond rounding.

Caches, benchmarks and manifests know simulated scans, and the networks trained on them, by it."""

_TEXTS = ("name", "subject", "site", "split")


@dataclass(frozen=True)
class Cache:
    """Scans that need not be simulated again.

    Attributes:
        folder: Where they lie; made when needed.
    """

    folder: Path

    def get(self, key: tuple[object, ...], make: Callable[[], Case]) -> Case:
        """Read the scan that belongs to a key, or make and store it.

        Args:
            key: Everything that decides what the scan looks like, but for the simulator itself. The device is no part
                of it: random numbers are drawn on the CPU, so all devices give the same scan up to rounding.
            make: Simulates it.

        Raises:
            InputError: The folder takes no files.
        """
        text = "\x1f".join([str(VERSION), *map(str, key)])
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npz"
        try:
            return _read(path)
        except (OSError, EOFError, ValueError, KeyError, BadZipFile):  # not there, or damaged
            case = make()
            _write(path, case)
            return case


def _write(path: Path, case: Case) -> None:
    assert case.reference is not None  # simulated scans have one
    arrays: dict[str, Any] = {"image": case.image, "affine": case.affine, "reference": case.reference}
    arrays |= {key: np.array(getattr(case, key)) for key in _TEXTS}
    write_whole(path, lambda temporary: np.savez(temporary, **arrays))


def _read(path: Path) -> Case:
    with np.load(path, allow_pickle=False) as arrays:
        texts: dict[str, Any] = {key: str(arrays[key]) for key in _TEXTS}
        return Case(image=arrays["image"], affine=arrays["affine"], reference=arrays["reference"], **texts)
