"""What the source of training cases must offer."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal, Self

import torch

from scantune.backends import Backend, Prepared
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.training.cache import OnCase, ignore_progress
from scantune.training.held_out import HeldOutScan

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class CaseSource(ABC):
    """Labelled cases of the training site."""

    @abstractmethod
    def names(self) -> dict[str, int]:
        """Return the label value of each structure, by name; 0 is background."""

    @abstractmethod
    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Yield the cases of a split; each has a reference."""

    def stripped(self) -> bool:
        """Return whether everything outside the brain is 0 in all cases as they are read."""
        return False

    def prepared(
        self, split: Split, backend: Backend[Any], device: torch.device, on_case: OnCase = ignore_progress
    ) -> Iterator[tuple[str, Prepared]]:
        """Yield names and prepared volumes of a split's cases; `on_case` is called if their number is known."""
        del on_case
        for case in self.cases(split, device):
            yield case.name, backend.prepare(case)

    @property
    def cohort_name(self) -> str:
        """Return the name of the cohort or data set in score rows."""
        return "files"

    def training_site(self) -> str:
        """Return the site that networks are trained at; empty if it is not a single known site."""
        return ""

    def test_sites(self) -> list[str]:
        """Return every site with held-out scans, the training site first if it is known.

        Raises:
            InputError: The scans of the source cannot be listed.
        """
        raise self._not_listed()

    def test_scans(self, site: str) -> list[HeldOutScan]:  # noqa: ARG002
        """Return the held-out scans of a site, in an order that does not depend on the file system.

        Raises:
            InputError: The scans of the source cannot be listed.
        """
        raise self._not_listed()

    def at_site(self, site: str) -> "CaseSource":
        """Return the source with the training and validation scans of another site.

        Raises:
            InputError: The site has none, or they cannot be distinguished from those of other sites.
        """
        raise InputError(
            f"The scans of {site} cannot be selected for training: describe them as a data set with sites."
        )

    def identity(self, backend: Backend[Any]) -> str:  # noqa: ARG002
        """Return a hash of everything that decides how training and validation scans look, wherever they lie.

        Raises:
            InputError: Scans are missing or cannot be used.
        """
        raise self._not_listed()

    def folds(self) -> int:
        """Return the number of folds in which the people of the source take turns at training and testing."""
        return 1

    def in_fold(self, number: int) -> "CaseSource":  # noqa: ARG002
        """Return the source in a fold, counted from 1; sources with fewer folds begin again."""
        return self

    def with_cache(self, folder: str) -> Self:  # noqa: ARG002
        """Return the source with a folder for simulated scans, unless it names one or does not simulate."""
        return self

    def _not_listed(self) -> InputError:
        return InputError(f"An experiment needs scans that can be listed, got {type(self).__name__}.")


def digest(record: dict[str, Any]) -> str:
    """Return a hash of a record that JSON can hold."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()[:32]
