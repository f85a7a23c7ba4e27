"""What all commands show alike: sentences, a bar over scans, times, numbers and lists of files."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from scantune.evaluation.evaluate import EvaluationSummary


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints file names as they are, brackets and numbers included."""
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False)


def say(to: Console, sentence: str, style: str = "") -> None:
    """Print a sentence as one line, however long, so that a terminal wraps it and a script can search it."""
    to.print(Text(sentence, style=style), soft_wrap=True)


class ScanBar:
    """A bar over scans, after a word on what comes first; nothing is drawn where there is no terminal.

    Args:
        to: Where to draw.
        first: What is done before the first scan.
        counted: How the number of finished scans is written.
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


def duration(seconds: float) -> str:
    """Say a time as people do."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def summary_table(summaries: "Sequence[EvaluationSummary]") -> Table:
    """Lay out the means per structure; the method only where there is one."""
    named = any(summary.method for summary in summaries)
    caption = "HD95, ASD in mm. One only: in one volume, Dice 0. Left out: in neither."
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ["Method", "Structure"] if named else ["Structure"]:
        table.add_column(title, overflow="fold")
    for title in ("Dice", "HD95", "ASD", "Scans", "One only", "Left out"):
        table.add_column(title, justify="right")
    for summary in summaries:
        numbers = [number(summary.dice, 3), number(summary.hd95, 2), number(summary.asd, 2)]
        counts = [str(count) for count in (summary.scored, summary.one_sided, summary.left_out)]
        table.add_row(*([summary.method] if named else []), summary.structure, *numbers, *counts)
    return table


def number(value: float, digits: int) -> str:
    """Return a number with so many decimals; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def listed(paths: Sequence[Path], most: int = 5) -> str:
    """Return the first file names, and how many more there are."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(path.name for path in paths[:most]) + more
