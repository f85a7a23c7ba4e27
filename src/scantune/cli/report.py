"""The command `report`: tables, figures and a page of score rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from scantune.cli.console import console, counted, say
from scantune.errors import InputError


@dataclass(frozen=True)
class Report:
    """Write tables with paired tests, figures and a page from scores."""

    scores: Annotated[tuple[Path, ...], Positional, arg(metavar="DIR [DIR ...]", help_behavior_hint="")]
    """Folders of scantune bench, finished or not, or files of scores (CSV)."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: report in DIR)")] = None
    """Where to write report.md, tables (Markdown, LaTeX), figures (PNG, SVG) and comparisons.csv."""
    against: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="(default: strong baseline)")] = None
    """The method to test all others against."""
    structure: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: the experiment's)")] = None
    """The structure to score: a label, mean (over all), or whole (all as one)."""
    model: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: none)")] = None
    """With --scan, add a figure that compares the densities of the model's features with Gaussians."""
    scan: Annotated[Path | None, arg(metavar="SCAN", help_behavior_hint="(default: none)")] = None
    """The scan for that figure, such as one of the training site."""

    def run(self) -> int:
        """Write the report, then print its path."""
        if (self.model is None) != (self.scan is None):
            raise InputError("The figure of densities needs --model and --scan. Give both or neither.")
        from scantune.report.write import report

        densities = None if self.model is None or self.scan is None else (self.model, self.scan)
        with console(stderr=True).status("Reporting") as status:
            made = report(
                self.scores,
                self.out,
                against=self.against,
                structure=self.structure,
                densities=densities,
                on_part=lambda part: status.update(f"Reporting: {part}"),
            )
        say(
            console(),
            f"{counted(len(made.tables), 'table')} and {counted(len(made.figures), 'figure')} "
            f"of {counted(made.study.scores.rows, 'row')}: {made.page}",
        )
        return 0
