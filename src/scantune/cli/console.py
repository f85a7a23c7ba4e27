"""Output that commands share: sentences, a progress bar over scans, times, numbers and lists of files."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.control import Control
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from scantune.cli.exits import printable

PROGRESS_INTERVAL = 20
"""Seconds between two lines of progress if there is no terminal to draw a bar in."""


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that prints file names as they are, brackets and numbers included, but no escape codes in them.

    Args:
        stderr: Whether to print on standard error.
        quiet: Whether to print nothing.
    """
    made = Console(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)
    made.push_render_hook(_PrintableText())
    return made


class _PrintableText(RenderHook):
    """A hook that replaces control characters in all that is printed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap what is printed, but not the control codes of a progress bar."""
        return [each if isinstance(each, Control) else _Printable(each) for each in renderables]


@dataclass(frozen=True)
class _Printable:
    """Something to print, with its control characters replaced."""

    content: ConsoleRenderable

    def __rich_console__(self, to: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in to.render(self.content, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def say(to: Console, sentence: str, style: str = "") -> None:
    """Print a sentence as one line, so that a terminal wraps it and a script can search it."""
    to.print(Text(sentence, style=style), soft_wrap=True)


class ScanBar:
    """A progress bar over scans, after a status line; nothing is drawn without a terminal.

    Args:
        to: The console to draw on.
        first: Status before the first scan.
        counted: Format of the number of finished scans.
    """

    def __init__(self, to: Console, first: str, counted: str = "{task.completed}") -> None:
        self.console = to
        self.status = to.status(first)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn(f"{counted}/{{task.total}} scans"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=to,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.status.stop()
        if self.console.is_terminal:
            self.progress.stop()


class ScanProgress(ScanBar):
    """Progress of a task that takes one scan after the other; without a terminal, a line at times."""

    def __init__(self, to: Console, first: str) -> None:
        super().__init__(to, first)
        self.task = self.progress.add_task("")
        self.last_line = time.monotonic()

    def update(self, done: int, scans: int, name: str) -> None:
        """Move the bar; without a terminal, print a line at most every 20 seconds."""
        self.status.stop()
        self.progress.update(self.task, completed=done, total=scans, description=printable(name))
        if self.console.is_terminal and scans and not done:
            self.progress.start()
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line > PROGRESS_INTERVAL:
            self.last_line = now
            say(self.console, f"{done} of {scans}: {name}")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Format a time in the unit that fits its length."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def number(value: float, digits: int) -> str:
    """Format a number to a number of decimals; NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def listed(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
