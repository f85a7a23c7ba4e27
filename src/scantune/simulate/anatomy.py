"""The contract of an anatomy: a generator of people, each the true regions of a body on a scanner's grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import torch

from scantune.simulate.subject import FieldOfView, Region, Subject


class Anatomy(ABC):
    """A generator of subjects.

    Attributes:
        regions: The parts of the body it knows.
        labels: Label value of each structure; 0 is background.
        states: What one person is scanned in, such as phases of the heartbeat; one empty name where there is one.
    """

    regions: tuple[Region, ...]
    labels: Mapping[str, int]
    states: ClassVar[tuple[str, ...]] = ("",)

    @abstractmethod
    def subject(self, rng: np.random.Generator, view: FieldOfView, state: str = "") -> Subject:
        """Draw one person and lay the scanner's grid over them; deterministic by the state of `rng`.

        The same `rng` gives the same person in every one of the anatomy's states.
        """

    @abstractmethod
    def to(self, device: str | torch.device) -> Self:
        """Return the same anatomy on another device."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a fingerprint that distinguishes this anatomy from others, for the names of cached scans."""
