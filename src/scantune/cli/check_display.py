"""What the command line shows of a check: what a data set holds, and what is wrong with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table

from scantune.cli.console import say

if TYPE_CHECKING:
    from scantune.check import CheckReport, Span

_MOST = 8  # labels or names that are told one by one


def show_report(to: Console, report: "CheckReport") -> None:
    """Show the groups, the labels, the problems and the notes."""
    from scantune.datasets.inspect import NOTES

    to.print(group_table(report))
    to.print(label_table(report))
    if report.hint:
        say(to, report.hint)
    for name, scans in report.notes.items():
        say(to, f"Note: {len(scans)} of {report.scans} scans {NOTES[name]} ({_listed(scans, 3)}).")
    if not report.problems:
        say(to, f"No problems in {report.scans} scans.", style="green")
        return
    problems = "1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems"
    say(to, f"{problems} in {report.scans} scans:", style="red")
    for name, reason in report.problems.items():
        say(to, f"  {name}: {reason}")


def group_table(report: "CheckReport") -> Table:
    """Lay out sites and splits."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Site", overflow="fold")
    table.add_column("Split")
    for title in ("People", "Scans"):
        table.add_column(title, justify="right")
    for title in ("Spacing in mm", "Size in voxels"):
        table.add_column(title, overflow="fold")
    for group in report.groups:
        counts = (str(group.people), str(group.scans))
        table.add_row(group.site or "-", group.split or "-", *counts, _spans(group.spacing), _spans(group.shape))
    return table


def label_table(report: "CheckReport") -> Table:
    """Lay out what the labels' shares of the voxels are, largest first."""
    names = {value: name for name, value in report.labels.items()} | {0: "background"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Site", overflow="fold")
    table.add_column("Split")
    table.add_column("Labels, with their share of the voxels", overflow="fold")
    for group in report.groups:
        values = sorted(group.labels, key=lambda value: -group.labels[value])
        told = [
            f"{value}{f' {names[value]}' if value in names else ''}: {100 * group.labels[value]:.3g}%"
            for value in values
        ]
        table.add_row(group.site or "-", group.split or "-", _listed(told, _MOST) or "none")
    return table


def _spans(spans: "tuple[Span, ...]") -> str:
    parts = [f"{low:.4g}" if low == high else f"{low:.4g}-{high:.4g}" for low, high in spans]
    return " x ".join(parts) or "-"


def _listed(words: Sequence[str], most: int) -> str:
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more
