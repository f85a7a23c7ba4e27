"""What `scantune adapt` and `scantune demo` show: progress with the time left, and what became of each scan."""

import math
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from scantune.adaptation.outcomes import Outcome, ScanObserver
from scantune.cli.console import ScanBar, duration, say

if TYPE_CHECKING:
    pass

STYLES = {"kept": "green", "skipped": "cyan", "rolled back": "yellow", "failed": "red"}


class Display(ScanBar, ScanObserver):
    """Shows a run over scans: how long it will take, a bar with the time left, and what went wrong."""

    def __init__(self, to: Console) -> None:
        super().__init__(to, "Loading the model", "{task.fields[done]}")
        self.estimated = False
        self.marks: dict[str, list[float]] = {}
        self.reached: dict[str, float] = {}
        self.done = self.scans = self.at_once = 0

    def begin(self, names: Sequence[str], at_once: int = 1) -> None:
        """Start the bar."""
        self.status.stop()
        self.scans, self.at_once = len(names), at_once
        if names:
            self.bar = self.progress.add_task("", total=len(names), done=0)
        if names and self.console.is_terminal:
            self.progress.start()

    def start(self, name: str) -> None:
        """Name the scan."""
        self.marks[name], self.reached[name] = [time.perf_counter()], 0.0
        self._move(name)

    def step(self, name: str, step: int, steps: int) -> None:
        """Move the bar; after the first steps, tell how long the run will take."""
        marks = self.marks[name]
        marks.append(time.perf_counter())
        self.reached[name] = step / steps
        self._move(f"{name}, step {step} of {steps}")
        if step == min(4, steps):
            self._estimate(expected_seconds(marks, steps))

    def end(self, outcome: Outcome) -> None:
        """Count the scan, and tell at once when it failed."""
        self.done += 1
        begun = self.marks.pop(outcome.name)[0]
        del self.reached[outcome.name]
        self.progress.update(self.bar, completed=self.done + sum(self.reached.values()), done=self.done)
        if self.done < self.scans:
            self._estimate(time.perf_counter() - begun)
        if outcome.status == "failed" and self.scans > 1:
            say(self.console, f"{outcome.name} failed.", style="red")

    def _move(self, where: str) -> None:
        others = f", and {len(self.reached) - 1} more" if len(self.reached) > 1 else ""
        self.progress.update(self.bar, completed=self.done + sum(self.reached.values()), description=where + others)

    def remark(self, sentence: str) -> None:
        """Tell it."""
        say(self.console, sentence, style="yellow")

    def _estimate(self, each: float) -> None:
        """Tell how long the run will take, from the seconds of one scan."""
        if not self.estimated:
            scans = "1 scan" if self.scans == 1 else f"{self.scans} scans"
            side_by_side = f", {self.at_once} at once" if self.at_once > 1 else ""
            seconds = each * math.ceil(self.scans / self.at_once)
            say(
                self.console,
                f"{scans} to adapt to{side_by_side}: about {duration(seconds)}, measured on the first steps.",
            )
        self.estimated = True


def expected_seconds(marks: Sequence[float], steps: int) -> float:
    """Return the time that a scan will take.

    Args:
        marks: When the scan was begun, and when each of its first steps was done, in seconds.
        steps: How many steps there will be.
    """
    first = marks[1] - marks[0]
    each = (marks[-1] - marks[1]) / (len(marks) - 2) if len(marks) > 2 else first
    return first + (steps - 1) * each


def outcome_table(outcomes: Iterable[Outcome]) -> Table:
    """Lay out what became of each scan."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("Scan", overflow="fold")
    for title in ("Energy in nats", "It was", "Decision"):
        table.add_column(title, no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for outcome in outcomes:
        entry = outcome.entry
        decision = str(entry["decision"])
        before, after = entry.get("energy_before"), entry.get("energy_after")
        table.add_row(
            outcome.name,
            "-" if before is None or after is None else f"{before:.4f} -> {after:.4f}",
            str(entry.get("reading_before", "-")),
            Text(decision, style=STYLES.get(decision, "")),
            _time(outcome),
        )
    return table


def _time(outcome: Outcome) -> str:
    if outcome.status == "already done":
        return "earlier run"
    return f"{outcome.entry['seconds']:.1f} s" if "seconds" in outcome.entry else "-"
