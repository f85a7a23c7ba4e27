"""Data sets: adapters that find a data set's files and give cases."""

from collections.abc import Callable
from typing import Any

from scantune.datasets import folder

DATASETS: dict[str, Callable[..., list[Any]]] = {"folder": folder.pairs}

__all__ = ["DATASETS", "folder"]
