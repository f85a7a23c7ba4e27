"""The command `demo`: adaptation to simulated scans of other scanners."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import arg

from scantune.cli.adapt import Display
from scantune.cli.console import console, duration, say

if TYPE_CHECKING:
    from scantune.demo import DemoScan


@dataclass(frozen=True)
class Demo:
    """Show what adaptation does, on simulated scans of other scanners."""

    out: Annotated[Path, arg(metavar="FOLDER")] = Path("demo")
    """Where to write index.html, a page and a figure per scan, and demo.csv with the scores."""
    model: Annotated[tuple[str, ...], arg(metavar="MODEL ...", help_behavior_hint="(default: brain spine)")] = (
        "brain",
        "spine",
    )
    """Model files of brain tissues or spinal cords, or names of models that come with scantune."""
    centres: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="(default: all)")] = ()
    """The simulated centres and changes of brightness to adapt to, such as pd-3T or gamma-0."""
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the preset's)")] = None
    """The number of steps per scan."""
    device: Annotated[str, arg(metavar="auto|cpu|cuda")] = "auto"
    """Where to compute; auto uses a GPU if there is one."""

    def run(self) -> int:
        """Adapt to all scans, then show the scores."""
        from scantune.demo import demo, summary

        with DemoDisplay(console(stderr=True)) as display:
            scans = demo(
                self.model, self.out, centres=self.centres, steps=self.steps, device=self.device, observer=display
            )
        screen = console()
        screen.print(demo_table(scans))
        for sentence in summary(scans):
            say(screen, sentence)
        say(
            screen,
            f"Open {self.out / 'index.html'} in a browser to see all scans before and after, beside the truth.",
        )
        say(
            screen,
            "For your own T1-weighted scan without the skull: scantune adapt my_T1.nii.gz --model brain --out out",
        )
        return 0


class DemoDisplay(Display):
    """Progress of the demo; without a terminal, a line per scan."""

    def __init__(self, to: Console) -> None:
        super().__init__(to)
        self.status.update("Loading the models")


def demo_table(scans: "Sequence[DemoScan]") -> Table:
    """Lay out the scores of the demo's scans, grouped by what was done about them."""
    from scantune.demo import by_outcome

    caption = (
        "The scans are simulated, so the truth is known. Dice: mean over structures.\n"
        "Verdict: how scantune judges the segmentation without the truth."
    )
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left", pad_edge=False)
    table.add_column("Model, scanner", overflow="fold")
    for title in ("Dice", "Verdict"):
        table.add_column(title, no_wrap=True)
    table.add_column("Time", justify="right", no_wrap=True)
    for words, found in by_outcome(scans):
        table.add_row(Text(words.heading, style="bold"))
        for scan in found:
            adapted, gain = bool(scan.result.trace), scan.dice_after - scan.dice_before
            dice = f"{scan.dice_before:.2f} -> {scan.dice_after:.2f}" if adapted else f"{scan.dice_before:.2f}"
            table.add_row(
                f"  {scan.title}",
                Text(dice, style="" if abs(gain) < 0.005 else "green" if gain > 0 else "red"),
                " -> ".join(scan.verdicts) or "-",
                duration(scan.result.seconds),
                end_section=scan is found[-1],
            )
    return table
