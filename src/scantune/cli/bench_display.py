"""What a running benchmark shows: jobs done, running and failed, the time left, and the means at the end."""

import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scantune.benchmark.engines import JobOutcome
from scantune.benchmark.jobs import Job
from scantune.benchmark.run import BenchObserver
from scantune.benchmark.store import Store
from scantune.cli.console import duration, number, say
from scantune.evaluation.rows import MEAN, ScoreRow

SECONDS_BETWEEN_LINES = 60.0
"""Seconds between two lines where there is no terminal to draw in."""


class BenchDisplay(BenchObserver):
    """A line of counts with the running jobs under it; where there is no terminal, a line now and then."""

    def __init__(self, to: Console) -> None:
        self.console = to
        self.live = Live(console=to, refresh_per_second=4, transient=True)
        self.waiting: dict[str, Job] = {}
        self.running: dict[str, tuple[Job, float]] = {}
        self.took: dict[str, list[float]] = defaultdict(list)
        self.done = self.before = self.failed = 0
        self.said = time.monotonic()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def begin(self, jobs: Sequence[Job], done: int) -> None:
        """Count the jobs."""
        self.waiting, self.before = {job.key: job for job in jobs}, done

    def start(self, job: Job) -> None:
        """Move a job to the running ones."""
        self.running[job.key] = (self.waiting.pop(job.key), time.monotonic())

    def end(self, job: Job, ended: JobOutcome) -> None:
        """Count a job, and print at once that it failed."""
        _, since = self.running.pop(job.key)
        if ended.reason:
            self.failed += 1
            say(self.console, f"{job.title} failed: {ended.reason}", style="red")
        else:
            self.done += 1
            self.took[job.kind].append(time.monotonic() - since)

    def tick(self, store: Store) -> None:
        """Refresh the display, or print a line when it is time."""
        if self.console.is_terminal:
            self.live.update(Group(Text(self.line()), *self._jobs(store)))
        elif time.monotonic() - self.said > SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            say(self.console, self.line())

    def line(self) -> str:
        """Return the counts and the time left."""
        left = self.seconds_left()
        counts = f"{self.done + self.before} done, {len(self.running)} running, {len(self.waiting)} to do"
        return f"{counts}, {self.failed} failed; left: {'-' if left is None else duration(left)}"

    def seconds_left(self) -> float | None:
        """Estimate the time left from finished jobs of the same kind; None if a kind has no finished job."""
        left = [job.kind for job in self.waiting.values()] + [job.kind for job, _ in self.running.values()]
        if any(kind not in self.took for kind in left):
            return None
        passed = sum(time.monotonic() - since for _, since in self.running.values())
        work = sum(fmean(self.took[kind]) for kind in left) - passed
        return max(work, 0.0) / max(len(self.running), 1)

    def _jobs(self, store: Store) -> list[Text]:
        progress = store.progress()
        lines = []
        for key, (job, since) in list(self.running.items())[:20]:
            at = progress.get(key, {})
            steps = f", {at['done']} of {at['steps']}" if at.get("steps") else ""
            lines.append(Text(f"  {job.title}{steps}, {duration(time.monotonic() - since)}", style="dim"))
        return lines


def bench_table(rows: Sequence[ScoreRow], score: str) -> Table:
    """Return the mean Dice over people by row and centre. Scans of a person and training runs are averaged first."""
    structure = score if any(row.structure == score for row in rows) else MEAN
    people: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.structure == structure and row.dice == row.dice:
            people[row.method, row.site][row.subject].append(row.dice)
    sites = list(dict.fromkeys(row.site for row in rows))
    table = Table(box=box.SIMPLE_HEAD, caption=f"Dice, {structure}; mean over subjects.", caption_justify="left")
    table.add_column("", overflow="fold")
    for site in sites:
        table.add_column(site, justify="right")
    for method in dict.fromkeys(row.method for row in rows):
        found = [people.get((method, site), {}) for site in sites]
        table.add_row(method, *(number(fmean(map(fmean, one.values())), 3) if one else "-" for one in found))
    return table
