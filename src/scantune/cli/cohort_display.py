"""What the command line shows of a simulation: a bar with the time left, and what lies where in the end."""

import shlex
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from scantune.cli.console import ScanBar, say

if TYPE_CHECKING:
    from scantune.cohorts.write import CohortFiles

_QUIET = 20  # seconds between two lines where there is no terminal to draw a bar in


class SimulationDisplay(ScanBar):
    """Shows how far a simulation, or other work on one scan after the other, is."""

    def __init__(self, to: Console, first: str = "Loading the anatomy") -> None:
        super().__init__(to, first)
        self.task = self.progress.add_task("simulating")
        self.shown = time.monotonic()

    def update(self, done: int, scans: int, name: str) -> None:
        """Move the bar; where there is no terminal, print a line at most every 20 seconds."""
        self.status.stop()
        self.progress.update(self.task, completed=done, total=scans, description=name or "simulating")
        if self.console.is_terminal and scans and not done:
            self.progress.start()
        now = time.monotonic()
        if not self.console.is_terminal and now - self.shown > _QUIET:
            self.shown = now
            say(self.console, f"{done} of {scans}: {name}")


def show_cohort(to: Console, made: "CohortFiles") -> None:
    """Show what the folder holds, and what to type next."""
    to.print(cohort_table(made))
    kept = f", {made.kept} were there already" if made.kept else ""
    say(to, f"{made.simulated} scans simulated{kept}: a stress test, no substitute for real ones.")
    say(to, f"All lie in {made.folder}, described in manifest.json.")
    say(to, f"Look at {made.folder / 'contact.png'} first: a slice of each centre.")
    folder = shlex.quote(str(made.folder))
    if made.recipe is not None:
        say(to, f"Next: scantune train {folder}/{made.recipe.name} --out {folder}/model.safetensors")
    else:
        centre = made.centres[0]
        split = list(centre.scans)[-1]
        say(to, f"Next: scantune adapt {shlex.quote(str(made.folder / centre.name / split))} --model MODEL --out out")


def cohort_table(made: "CohortFiles") -> Table:
    """Lay out the centres of a cohort, and how many scans there are of each."""
    splits = list(dict.fromkeys(split for centre in made.centres for split in centre.scans))
    splits.sort(key=("train", "validation", "test").index)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Centre", overflow="fold")
    table.add_column("Scanner", overflow="fold")
    for split in splits:
        table.add_column(split.capitalize(), justify="right", no_wrap=True)
    for centre in made.centres:
        protocol = centre.record["protocol"]
        scanner = ", ".join(part for part in (centre.record["vendor"], f"{protocol['field']:g} T") if part)
        counts = [str(centre.scans.get(split, "-")) for split in splits]
        table.add_row(centre.name, f"{scanner}, {protocol['sequence']['kind']}", *counts)
    return table
