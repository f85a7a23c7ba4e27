"""What the command line shows: progress with the time left, tables, and sentences."""

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from scantune.batch import Observer, Outcome

if TYPE_CHECKING:
    from scantune.demo import Showing
    from scantune.evaluate import Summary
    from scantune.train import Progress as TrainingProgress

STYLES = {"kept": "green", "skipped": "cyan", "rolled back": "yellow", "failed": "red"}


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


class Display(ScanBar, Observer):
    """Shows a run over scans: how long it will take, a bar with the time left, and what went wrong."""

    def __init__(self, to: Console) -> None:
        super().__init__(to, "Loading the model", "{task.fields[done]}")
        self.estimated = False
        self.marks: list[float] = []
        self.done = self.scans = 0

    def begin(self, names: Sequence[str]) -> None:
        """Start the bar."""
        self.status.stop()
        self.scans = len(names)
        if names:
            self.bar = self.progress.add_task("", total=len(names), done=0)
        if names and self.console.is_terminal:
            self.progress.start()

    def start(self, name: str) -> None:
        """Name the scan."""
        self.marks = [time.perf_counter()]
        self.name = name
        self.progress.update(self.bar, description=name)

    def step(self, step: int, steps: int) -> None:
        """Move the bar; after the first steps, tell how long the run will take."""
        self.marks.append(time.perf_counter())
        where = f"{self.name}, step {step} of {steps}"
        self.progress.update(self.bar, completed=self.done + step / steps, description=where)
        if step == min(4, steps):
            self._estimate(expected_seconds(self.marks, steps) * self.scans)

    def end(self, outcome: Outcome) -> None:
        """Count the scan, and tell at once when it failed."""
        self.done += 1
        self.progress.update(self.bar, completed=self.done, done=self.done)
        if self.done < self.scans:
            self._estimate((time.perf_counter() - self.marks[0]) * self.scans)
        if outcome.status == "failed" and self.scans > 1:
            say(self.console, f"{outcome.name} failed.", style="red")

    def remark(self, sentence: str) -> None:
        """Tell it."""
        say(self.console, sentence, style="yellow")

    def _estimate(self, seconds: float) -> None:
        if not self.estimated:
            scans = "1 scan" if self.scans == 1 else f"{self.scans} scans"
            say(self.console, f"{scans} to adapt to: about {duration(seconds)}, measured on the first steps.")
        self.estimated = True


class DemoDisplay(Display):
    """Shows the demo's run; where there is no terminal to draw a bar in, a line per scan."""

    def __init__(self, to: Console) -> None:
        super().__init__(to)
        self.status.update("Loading the model and the atlas")

    def end(self, outcome: Outcome) -> None:
        """Count the scan."""
        super().end(outcome)
        if not self.console.is_terminal:
            say(self.console, f"{self.done} of {self.scans}: {outcome.name}, {duration(outcome.entry['seconds'])}")


def expected_seconds(marks: Sequence[float], steps: int) -> float:
    """Return the time that a scan will take.

    Args:
        marks: When the scan was begun, and when each of its first steps was done, in seconds.
        steps: How many steps there will be.
    """
    first = marks[1] - marks[0]
    each = (marks[-1] - marks[1]) / (len(marks) - 2) if len(marks) > 2 else first
    return first + (steps - 1) * each


def duration(seconds: float) -> str:
    """Say a time as people do."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


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


def summary_table(summaries: "Sequence[Summary]") -> Table:
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


def demo_table(showings: "Sequence[Showing]") -> Table:
    """Lay out how the scans of the demo were segmented; the first, from the training site, is not adapted to."""
    structures = ", ".join(showings[0].before)
    caption = (
        f"Simulated scans, so the truth is known. Dice: mean of {structures}.\n"
        "Energy: how far the network's features are from those of its training scans.\n"
        "The first scan is from the scanner that the network was trained for."
    )
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    table.add_column("Centre", overflow="fold")
    for title in ("Dice", "Energy in nats", "Decision"):
        table.add_column(title, no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for showing in showings:
        result, gain = showing.result, showing.dice_after - showing.dice_before
        adapted = bool(result.trace)
        table.add_row(
            showing.centre,
            Text(
                _change(showing.dice_before, showing.dice_after, 3, adapted),
                style="" if abs(gain) < 0.005 else "green" if gain > 0 else "red",
            ),
            _change(result.energy_before, result.energy_after, 4, adapted),
            Text(result.decision.action, style=STYLES[result.decision.action]) if adapted else "not adapted",
            f"{result.seconds:.1f} s" if adapted else "-",
            end_section=not adapted,
        )
    return table


def _change(before: float | None, after: float | None, digits: int, adapted: bool) -> str:
    if before is None or after is None:
        return "-"
    return f"{before:.{digits}f} -> {after:.{digits}f}" if adapted else f"{before:.{digits}f}"


def _time(outcome: Outcome) -> str:
    if outcome.status == "already done":
        return "earlier run"
    return f"{outcome.entry['seconds']:.1f} s" if "seconds" in outcome.entry else "-"


def number(value: float, digits: int) -> str:
    """Return a number with so many decimals; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def listed(paths: Sequence[Path], most: int = 5) -> str:
    """Return the first file names, and how many more there are."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(path.name for path in paths[:most]) + more


class TrainingDisplay:
    """Shows a training run: a bar with loss, validation score and the time left, or a line now and then."""

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
        """Tells how many scans are ready to train on; where there is no terminal, at most every 20 seconds."""
        self.progress.update(self.task, score=f"{done} of {scans} scans prepared")
        now = time.monotonic()
        if not self.console.is_terminal and now - self.shown > 20:
            self.shown = now
            say(self.console, f"{done} of {scans} scans prepared: {name}")

    def update(self, at: "TrainingProgress") -> None:
        """Moves the bar; where there is no terminal to draw it in, prints a line at most every 20 seconds."""
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
