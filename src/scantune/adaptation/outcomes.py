"""What became of a scan in a run over many, and who is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scantune.scans.manifest import ManifestEntry


@dataclass(frozen=True)
class Outcome:
    """What became of one scan in this run.

    Attributes:
        name: The scan.
        status: `already done` is the work of an earlier run.
        entry: What the manifest tells: decision, reason, energies, volumes, outputs, ...
    """

    name: str
    status: Literal["done", "already done", "failed"]
    entry: ManifestEntry

    @property
    def is_bad_input(self) -> bool:
        """Whether the scan itself is to blame for the failure."""
        return self.status == "failed" and "traceback" not in self.entry


class ScanObserver:
    """Looks on while scans are adapted; this one does nothing."""

    def begin(self, names: Sequence[str], at_once: int = 1) -> None:
        """Learn which scans are about to be adapted, those already done left out, and how many at once."""

    def start(self, name: str) -> None:
        """Learn that the work on a scan begins."""

    def step(self, name: str, step: int, steps: int) -> None:
        """Learn that a step of a scan is done."""

    def end(self, outcome: Outcome) -> None:
        """Learn what became of a scan."""

    def remark(self, sentence: str) -> None:
        """Learn of something that concerns no scan alone and hinders none."""
