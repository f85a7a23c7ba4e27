"""The command `evaluate`: scores of segmentations against references."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich import box
from rich.table import Table
from tyro.conf import Positional, arg

from scantune.cli.console import console, listed, number, say
from scantune.cli.exits import SOME_FAILED, complain
from scantune.errors import InputError

if TYPE_CHECKING:
    from scantune.evaluation.evaluate import EvaluationSummary


@dataclass(frozen=True)
class Evaluate:
    """Score segmentations against references: Dice, HD95, surface distance, volume."""

    predictions: Annotated[Path, Positional, arg(metavar="PRED")]
    """A segmentation, or a folder of them, such as the output of scantune adapt."""
    references: Annotated[Path, Positional, arg(metavar="REF")]
    """The reference, or a folder: NAME_seg.nii.gz is compared with NAME.nii.gz or NAME_labels.nii.gz, ..."""
    reference: Annotated[str | None, arg(metavar="PATTERN.nii.gz", help_behavior_hint="(default: usual names)")] = None
    """How references are named, with {name} for the scan, such as '{name}_truth.nii.gz' or
    'sub/{name}/labels.nii.gz', and {structure} if each structure has a file."""
    out: Annotated[Path | None, arg(metavar="FILE.csv", help_behavior_hint="(default: none)")] = None
    """Where to write the scores, with a row per scan and structure."""
    labels: Annotated[tuple[str, ...], arg(metavar="NAME=VALUE ...", help_behavior_hint="")] = ()
    """Structures to score, and their values, such as csf=1 gm=2 wm=3; a structure of several values: core=1,3.
    (default: those of the manifest, else every value)"""

    def run(self) -> int:
        """Score all pairs, then print the means."""
        structures = parse_labels(self.labels)
        from scantune.evaluation.evaluate import evaluate

        errors = console(stderr=True)
        with errors.status("Scoring") as status:
            evaluation = evaluate(
                self.predictions,
                self.references,
                structures=structures,
                reference=self.reference,
                out=self.out,
                on_pair=lambda done, pairs: status.update(f"Scoring: {done} of {pairs} done"),
            )
        screen = console()
        screen.print(summary_table(evaluation.summary()))
        if self.out is not None:
            say(screen, f"All scores are in {self.out}")
        alone = evaluation.matches
        for what, files in (("reference", alone.lone_predictions), ("prediction", alone.lone_references)):
            if files:
                say(errors, f"Without a {what}, not scored: {listed([file.name for file in files])}")
        if not evaluation.failures:
            return 0
        complain(f"{len(evaluation.failures)} of {len(alone.pairs)} pairs could not be scored.")
        for name, sentence in evaluation.failures.items():
            print(f"  {name}: {sentence}", file=sys.stderr)
        return SOME_FAILED


def summary_table(summaries: "Sequence[EvaluationSummary]") -> Table:
    """Lay out the means per structure, with the method if any is known."""
    named = any(summary.method for summary in summaries)
    caption = "HD95, ASD in mm. In one: only one volume has the structure, Dice 0. In none: not scored."
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for title in ["Method", "Structure"] if named else ["Structure"]:
        table.add_column(title, overflow="fold")
    for title in ("Dice", "HD95", "ASD", "Scans", "In one", "In none"):
        table.add_column(title, justify="right")
    for summary in summaries:
        numbers = [number(summary.dice, 3), number(summary.hd95, 2), number(summary.asd, 2)]
        counts = [str(count) for count in (summary.scored, summary.one_sided, summary.left_out)]
        table.add_row(*([summary.method] if named else []), summary.structure, *numbers, *counts)
    return table


def parse_labels(words: Sequence[str]) -> dict[str, int | tuple[int, ...]] | None:
    """Read structures from words such as `gm=2` or `core=1,3`; return None if there are no words.

    Raises:
        InputError: A word has another form, or a name or the same values come twice.
    """
    structures: dict[str, int | tuple[int, ...]] = {}
    for word in words:
        name, _, listed = word.rpartition("=")
        values = listed.split(",")
        if not name or not all(map(str.isdecimal, values)):
            raise InputError(
                f"--labels takes NAME=VALUE with a whole number, such as gm=2, or several, as in core=1,3, but got "
                f"{word!r}."
            )
        found = tuple(map(int, values))
        structure = found[0] if len(found) == 1 else found
        if name in structures or structure in structures.values():
            raise InputError(f"--labels must name every structure and every value once, but {word!r} is a repetition.")
        structures[name] = structure
    return structures or None
