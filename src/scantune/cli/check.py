"""The command `check`: the content of a data set, and its problems."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from scantune.cli.console import ScanProgress, console, counted, listed, say
from scantune.cli.exits import SOME_FAILED

if TYPE_CHECKING:
    from scantune.check import CheckReport, ValueRange

_MAX_LABELS = 8
"""Labels of a group that are listed one by one."""


@dataclass(frozen=True)
class Check:
    """Describe a data set and list its problems."""

    data: Annotated[str, Positional, arg(metavar="DATA")]
    """A folder of scans, a CSV file that lists them, or a recipe."""
    dataset: Annotated[str, arg(metavar="NAME", help_behavior_hint="(default: detected)")] = ""
    """The layout: folder, csv, bids, nnunet, decathlon, simulated, or a public data set."""
    options: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="(default: none)")] = ()
    """The layout's options, such as images=*_T1w.nii.gz labels=*_seg.nii.gz; docs/data.md lists them."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: none)")] = None
    """Where to write check.json, and contact.png with a slice of a scan of each site."""
    workers: Annotated[int | None, arg(metavar="COUNT", help_behavior_hint="(default: one per core)")] = None
    """The number of processes that read scans."""

    def run(self) -> int:
        """Check the data set, then show the report; return 3 if it has problems."""
        from scantune.check import check
        from scantune.config.assignments import untyped_table_from_assignments

        options = untyped_table_from_assignments(self.options, "--options")
        with ScanProgress(console(stderr=True), "Looking for scans") as display:
            report = check(self.data, self.dataset, options, out=self.out, workers=self.workers, on_scan=display.update)
        show_report(console(), report)
        if self.out is not None:
            say(console(), f"check.json and contact.png are in {self.out}")
        return SOME_FAILED if report.problems else 0


def show_report(to: Console, report: "CheckReport") -> None:
    """Print groups, labels, notes and problems."""
    from scantune.datasets.inspect import SCAN_NOTES

    to.print(group_table(report))
    to.print(label_table(report))
    if report.hint:
        say(to, report.hint)
    for name, scans in report.notes.items():
        say(to, f"Note: {len(scans)} of {report.scans} scans {SCAN_NOTES[name]} ({listed(scans, 3)}).")
    if not report.problems:
        say(to, f"No problems in {counted(report.scans, 'scan')}.", style="green")
        return
    problems = counted(len(report.problems), "problem")
    say(to, f"{problems} in {counted(report.scans, 'scan')}:", style="red")
    for name, reason in report.problems.items():
        say(to, f"  {name}: {reason}")


def group_table(report: "CheckReport") -> Table:
    """Lay out the scans of each site and split."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Site", overflow="fold")
    table.add_column("Split")
    for title in ("Subjects", "Scans"):
        table.add_column(title, justify="right")
    for title in ("Spacing in mm", "Size in voxels"):
        table.add_column(title, overflow="fold")
    for group in report.groups:
        counts = (str(group.people), str(group.scans))
        table.add_row(group.site or "-", group.split or "-", *counts, _spans(group.spacing), _spans(group.shape))
    return table


def label_table(report: "CheckReport") -> Table:
    """Lay out the labels of each site and split with their share of the voxels, largest first."""
    names = {value: name for name, value in report.labels.items()} | {0: "background"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Site", overflow="fold")
    table.add_column("Split")
    table.add_column("Labels, with their share of the voxels", overflow="fold")
    for group in report.groups:
        values = sorted(group.labels, key=lambda value: -group.labels[value])
        labels = [
            f"{value}{f' {names[value]}' if value in names else ''}: {100 * group.labels[value]:.3g}%"
            for value in values
        ]
        table.add_row(group.site or "-", group.split or "-", listed(labels, _MAX_LABELS) or "none")
    return table


def _spans(spans: "tuple[ValueRange, ...]") -> str:
    parts = [f"{low:.4g}" if low == high else f"{low:.4g}-{high:.4g}" for low, high in spans]
    return " x ".join(parts) or "-"
