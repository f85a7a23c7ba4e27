"""The command `demo`: adaptation to simulated scans of other scanners."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import arg

from scantune.adaptation.scan_run import Outcome
from scantune.cli.adapt import STYLES, Display
from scantune.cli.console import console, duration, say

if TYPE_CHECKING:
    from scantune.adaptation.result import Result
    from scantune.demo import DemoScan


@dataclass(frozen=True)
class Demo:
    """Show what adaptation does, on simulated scans of other scanners."""

    out: Annotated[Path, arg(metavar="FOLDER")] = Path("demo")
    """Gets index.html with a page per scan, a figure per scan, and demo.csv with the scores."""
    model: Annotated[str, arg(metavar="MODEL")] = "brain"
    """A model file of brain tissues, or the name of a model that comes with scantune: brain, brain-register."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """The simulated centres to adapt to, such as pd-3T."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of steps per scan."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto uses a GPU if there is one."""

    def run(self) -> int:
        """Adapt to all scans, then show the scores."""
        from scantune.demo import demo

        with DemoDisplay(console(stderr=True)) as display:
            scans = demo(
                self.model, self.out, centres=self.centres, steps=self.steps, device=self.device, observer=display
            )
        screen = console()
        screen.print(demo_table(scans))
        for scan in scans:
            if scan.result.decision.action == "unsolved":
                say(screen, f"{scan.centre} is unsolved: {scan.result.decision.reason}")
        say(screen, f"Open {self.out / 'index.html'} in a browser; figures and scores are beside it.")
        say(
            screen,
            "On your own T1-weighted scan (brain extracted): "
            f"scantune adapt my_T1.nii.gz --model {shlex.quote(self.model)} --out out",
        )
        return 0


class DemoDisplay(Display):
    """Progress of the demo; without a terminal, a line per scan."""

    def __init__(self, to: Console) -> None:
        super().__init__(to)
        self.status.update("Loading the model and the atlas")

    def end(self, outcome: Outcome) -> None:
        """Count the scan, and print its time if there is no bar."""
        super().end(outcome)
        if not self.console.is_terminal:
            say(self.console, f"{self.done} of {self.scans}: {outcome.name}, {duration(outcome.entry['seconds'])}")


def demo_table(scans: "Sequence[DemoScan]") -> Table:
    """Lay out the scores of the demo's scans. The first is from the training site, and not adapted."""
    structures = ", ".join(scans[0].before)
    assessed = any("verdict" in scan.result.facts for scan in scans)
    explained = (
        "Expected: the Dice that is estimated without the truth."
        if assessed
        else "Energy: how far the network's features are from those of its training scans."
    )
    caption = (
        f"Simulated scans, so the truth is known. Dice: mean of {structures}.\n"
        f"{explained}\n"
        "The first scan is from the scanner that the network was trained for."
    )
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    table.add_column("Centre", overflow="fold")
    for title in ("Dice", "Expected" if assessed else "Energy in nats", "Decision"):
        table.add_column(title, no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for scan in scans:
        result, gain = scan.result, scan.dice_after - scan.dice_before
        adapted = bool(result.trace)
        table.add_row(
            scan.centre,
            Text(
                _change(scan.dice_before, scan.dice_after, 3, adapted),
                style="" if abs(gain) < 0.005 else "green" if gain > 0 else "red",
            ),
            _expected(result)
            if "verdict" in result.facts
            else _change(result.energy_before, result.energy_after, 4, adapted),
            Text(result.decision.action, style=STYLES[result.decision.action])
            if adapted or assessed
            else "not adapted",
            f"{result.seconds:.1f} s" if adapted else "-",
            end_section=not adapted,
        )
    return table


def _expected(result: "Result") -> str:
    """Return the expected Dice before and after, which is unknown if the scan had failed and is not fine."""
    before, after = result.facts["expected_before"], result.facts["expected"]
    return f"{before:.2f} -> unknown" if after is None else _change(before, after, 2, bool(result.trace))


def _change(before: float | None, after: float | None, digits: int, adapted: bool) -> str:
    if before is None or after is None:
        return "-"
    return f"{before:.{digits}f} -> {after:.{digits}f}" if adapted else f"{before:.{digits}f}"
