"""The contract of a kind of input: how one is made from a seed, and what the product must do with it."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from scantune.errors import InputError

ACCEPTED, REFUSED = "accepted", "refused"
"""What may become of an input: a correct result, or a sentence."""

Item = TypeVar("Item")


class Fault(Exception):  # noqa: N818
    """The product did what it never should: a wrong result, a refusal without a sentence, a half-written file."""


class Kind(ABC):
    """A kind of input.

    Args:
        folder: Where files that all inputs share may be kept.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def attempt(self, rng: random.Random, folder: Path) -> str:
        """Makes one input in an empty folder, and gives it to the product.

        Args:
            rng: Decides everything about the input.
            folder: Where its files go.

        Returns:
            `ACCEPTED` or `REFUSED`.

        Raises:
            Fault: The product did something wrong. Any other exception is a fault too.
        """


def require(holds: object, what: str) -> None:
    """Check what must hold of the product.

    Raises:
        Fault: It does not.
    """
    if not holds:
        raise Fault(what)


def refused(error: InputError) -> str:
    """`REFUSED`, after a look at whether the refusal is a sentence for people."""
    words = str(error)
    require(len(words.split()) >= 5, f"a refusal of less than a sentence: {words!r}")
    require("Traceback" not in words and len(words) < 4000, f"a refusal nobody will read: {words[:500]!r}")
    return REFUSED


def chance(rng: random.Random, share: float) -> bool:
    """True in a share of all inputs."""
    return rng.random() < share


def some(rng: random.Random, items: Sequence[Item], most: int) -> list[Item]:
    """One or more of the items, up to a number."""
    return rng.sample(items, rng.randint(1, min(most, len(items))))
