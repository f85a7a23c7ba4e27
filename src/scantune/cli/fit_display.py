"""The display of a fit in a terminal."""

import time
from collections.abc import Callable
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from scantune.cli.console import PROGRESS_INTERVAL, duration, say

FIRST_ESTIMATE = 2.0
"""Seconds of work after which its time is estimated."""


class FitDisplay:
    """A bar for each part of a fit with its expected time, or lines of text outside a terminal."""

    def __init__(self, to: Console) -> None:
        self.console = to
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("left: {task.fields[left]}"),
            console=to,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.progress.stop()

    def part(self, title: str) -> Callable[[int, int], None]:
        """Return what takes the progress of a part: how much is done, and of how much."""
        part = _Part(self, title)
        return part.update


class _Part:
    """A part of a fit.

    Args:
        display: Where it is shown.
        title: What it does.
    """

    def __init__(self, display: FitDisplay, title: str) -> None:
        self.display, self.title = display, title
        self.started, self.shown = 0.0, 0.0
        self.task: TaskID | None = None

    def update(self, done: int, parts: int) -> None:
        """Announce the part with its expected time, and show its progress."""
        now = time.monotonic()
        if not done:
            self.started = now
            return
        expected = (now - self.started) * parts / done
        left = duration(expected * (1 - done / parts))
        progress, screen = self.display.progress, self.display.console
        if self.task is None:
            self.task = progress.add_task(self.title, total=parts, left=left)
        progress.update(self.task, completed=done, total=parts, left=left)
        if screen.is_terminal:
            return
        if not self.shown and (now - self.started > FIRST_ESTIMATE or done == parts):
            self.shown = now
            say(screen, f"{self.title}: about {duration(expected)}")
        elif self.shown and done < parts and now - self.shown > PROGRESS_INTERVAL:
            self.shown = now
            say(screen, f"{self.title}: {done / parts:.0%}, {left} left")
