"""The commands about results: score segmentations, report what a benchmark found, tell what is in a model file."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from scantune.cli.exits import SOME_FAILED, complain
from scantune.errors import InputError


@dataclass(frozen=True)
class Report:
    """Turn score rows into tables with paired tests, figures and a page about them."""

    scores: Annotated[tuple[Path, ...], Positional, arg(metavar="DIR [DIR ...]", help_behavior_hint="")]
    """Folders that scantune bench wrote, finished or not, or score files (CSV)."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: report in DIR)")] = None
    """Gets report.md, tables (Markdown, LaTeX), figures (PNG, SVG) and comparisons.csv."""
    against: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="(default: strong baseline)")] = None
    """What every method is tested against."""
    structure: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: the experiment's)")] = None
    """The structure to score: a label, mean (over all), or whole (all as one)."""
    model: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="(default: none)")] = None
    """With --scan, adds a figure of the densities of the model's features against Gaussians."""
    scan: Annotated[Path | None, arg(metavar="SCAN", help_behavior_hint="(default: none)")] = None
    """The scan that the figure of densities is about, such as one of the training site."""

    def run(self) -> int:
        """Make the report, then say where it is."""
        if (self.model is None) != (self.scan is None):
            raise InputError("The figure of densities needs both --model and --scan; give the other one, too.")
        from scantune.cli import console as terminal
        from scantune.report.write import report

        densities = None if self.model is None or self.scan is None else (self.model, self.scan)
        with terminal.console(stderr=True).status("Reporting") as status:
            made = report(
                self.scores,
                self.out,
                against=self.against,
                structure=self.structure,
                densities=densities,
                on_part=lambda part: status.update(f"Reporting: {part}"),
            )
        terminal.say(
            terminal.console(),
            f"{len(made.tables)} tables and {len(made.figures)} figures of {made.study.scores.rows} rows: {made.page}",
        )
        return 0


@dataclass(frozen=True)
class Evaluate:
    """Score segmentations against references: Dice, HD95, surface distance, volume."""

    predictions: Annotated[Path, Positional, arg(metavar="PRED")]
    """A segmentation, or a folder of them, such as one that scantune adapt wrote."""
    references: Annotated[Path, Positional, arg(metavar="REF")]
    """The reference, or a folder: NAME_seg.nii.gz is compared with NAME.nii.gz or NAME_labels.nii.gz, ..."""
    out: Annotated[Path | None, arg(metavar="FILE.csv", help_behavior_hint="(default: none)")] = None
    """Where to write the scores, one line per scan and structure."""
    labels: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Structures and their values: csf=1 gm=2 wm=3. By default those of PRED's manifest, or every value."""

    def run(self) -> int:
        """Score all pairs, then show the means."""
        structures = parse_labels(self.labels)
        from scantune.cli import console as terminal
        from scantune.evaluation.evaluate import evaluate

        errors = terminal.console(stderr=True)
        with errors.status("Scoring") as status:
            evaluation = evaluate(
                self.predictions,
                self.references,
                structures=structures,
                out=self.out,
                on_pair=lambda done, pairs: status.update(f"Scoring: {done} of {pairs} done"),
            )
        screen = terminal.console()
        screen.print(terminal.summary_table(evaluation.summary()))
        if self.out is not None:
            terminal.say(screen, f"All scores are in {self.out}")
        alone = evaluation.matches
        for what, files in (("reference", alone.lone_predictions), ("prediction", alone.lone_references)):
            if files:
                terminal.say(errors, f"Without a {what}, not scored: {terminal.listed(files)}")
        if not evaluation.failures:
            return 0
        complain(f"{len(evaluation.failures)} of {len(alone.pairs)} pairs could not be scored.")
        for name, sentence in evaluation.failures.items():
            print(f"  {name}: {sentence}", file=sys.stderr)
        return SOME_FAILED


@dataclass(frozen=True)
class Info:
    """Tell what is in a model file."""

    model: Annotated[str, Positional, arg(metavar="MODEL")]
    """A model file, or the name of a model that comes with scantune, such as brain."""

    def run(self) -> int:
        """Print the description."""
        from scantune.model.model import load

        print(load(self.model).describe())
        return 0


def parse_labels(words: Sequence[str]) -> dict[str, int] | None:
    """Read structures from words like `gm=2`; None where there are none.

    Raises:
        InputError: A word is something else, or a name or value comes twice.
    """
    structures: dict[str, int] = {}
    for word in words:
        name, _, value = word.rpartition("=")
        if not name or not value.isdecimal():
            raise InputError(f"--labels takes NAME=VALUE with a whole number, such as gm=2, but got {word!r}.")
        if name in structures or int(value) in structures.values():
            raise InputError(f"--labels must name every structure and every value once, but {word!r} is a repetition.")
        structures[name] = int(value)
    return structures or None
