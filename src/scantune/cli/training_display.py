"""The display of a training run in a terminal."""

import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from scantune.cli.console import duration, say

if TYPE_CHECKING:
    from scantune.training.trainer import TrainingProgress


class TrainingDisplay:
    """A bar with loss, validation score and the time left, or lines of text outside a terminal."""

    def __init__(self, to: Console, iterations: int) -> None:
        self.console = to
        self.progress = Progress(
            TextColumn("training"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}  loss {task.fields[loss]}  {task.fields[score]}"),
            TimeElapsedColumn(),
            TextColumn("left: {task.fields[left]}"),
            console=to,
        )
        self.task = self.progress.add_task("", total=iterations, loss="-", score="", left="-")
        self.shown, self.remark = time.monotonic(), ""

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def prepare(self, done: int, scans: int, name: str) -> None:
        """Show how many scans are prepared; outside a terminal at most every 20 seconds."""
        self.progress.update(self.task, score=f"{done} of {scans} scans prepared")
        now = time.monotonic()
        if not self.console.is_terminal and now - self.shown > 20:
            self.shown = now
            say(self.console, f"{done} of {scans} scans prepared: {name}")

    def update(self, at: "TrainingProgress") -> None:
        """Move the bar; outside a terminal print a line at most every 20 seconds."""
        if at.remark != self.remark:
            self.remark = at.remark
            say(self.console, f"Steps are not replayed as a CUDA graph, which is slower: {at.remark}.")
        score = f"{at.score_name} {'-' if at.score is None else format(at.score, '.3f')}"
        left = duration(at.seconds_left)
        self.progress.update(self.task, completed=at.iteration, loss=f"{at.loss:.3f}", score=score, left=left)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.shown > 20:
            self.shown = now
            say(self.console, f"{at.iteration}/{at.iterations}  loss {at.loss:.3f}  {score}  left {left}")
