"""The contract of a table: rows of cells in sections, however it is written down; and columns of Dice by site."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scantune.report.scores import SiteColumn
from scantune.report.statistics import Comparison, smallest_p
from scantune.report.study import Study

SIGNIFICANCE_LEVEL = 0.05

Mark = Literal["", "better", "surely better", "worse", "surely worse"]
"""Better or worse than what is compared with, at p < 0.05; surely: at p < 0.05 over the number of comparisons."""

NO_SCORE = "–"  # noqa: RUF001
"""Of a cell without a score."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table; `note` follows the number in brackets."""

    text: str
    bold: bool = False
    mark: Mark = ""
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Rows under a title. A row has a label and cells."""

    title: str
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class ReportTable:
    """A table.

    Attributes:
        title: What it shows.
        head: Names of the columns; the first is of the labels.
        sections: The rows.
        caption: Sentences that say how to read it.
        groups: Titles over several columns each, with their number, from the second column on; empty for none.
    """

    title: str
    head: tuple[str, ...]
    sections: tuple[Section, ...]
    caption: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()


TableBuilder = Callable[[Study], ReportTable | None]
"""Makes a table of a study; None where the study has nothing for it."""


def mark(comparison: Comparison | None, comparisons: int) -> Mark:
    """Return the paper's triangle of a comparison, one of a number of comparisons."""
    if comparison is None or not comparison.p < SIGNIFICANCE_LEVEL:
        return ""
    if comparison.p < SIGNIFICANCE_LEVEL / comparisons:
        return "surely better" if comparison.mean > 0 else "surely worse"
    return "better" if comparison.mean > 0 else "worse"


def dice_row(study: Study, columns: Sequence[SiteColumn], method: str, comparisons: int = 0) -> tuple[Cell, ...]:
    """Return the mean Dice of a method in each column, marked by its tests if a number of comparisons is given."""
    return tuple(_dice(study, column, method, comparisons) for column in columns)


def _dice(study: Study, column: SiteColumn, method: str, comparisons: int) -> Cell:
    mean = study.mean(column, method)
    if math.isnan(mean):
        return Cell(NO_SCORE)
    done, all_runs = study.progress(column, method)
    note = "" if done == all_runs else f"{done} of {all_runs}"
    found = mark(study.comparisons.get((column, method)), comparisons) if comparisons else ""
    return Cell(f"{mean:.3f}", mark=found, note=note)


def embolden(rows: Sequence[tuple[str, tuple[Cell, ...]]]) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """Return the rows with the best of each column in bold, ties included. Unfinished cells do not compete."""
    if len(rows) < 2:
        return tuple(rows)
    best = [
        max((cell.text for cell in column if cell.text != NO_SCORE and not cell.note), key=float, default=None)
        for column in zip(*(cells for _, cells in rows), strict=True)
    ]
    return tuple(
        (
            label,
            tuple(
                replace(cell, bold=not cell.note and cell.text == top) for cell, top in zip(cells, best, strict=True)
            ),
        )
        for label, cells in rows
    )


def site_groups(study: Study, columns: Sequence[SiteColumn]) -> tuple[tuple[str, int], ...]:
    """Return the titles of the cohorts over their columns, with tier and whether the people are simulated."""
    return tuple(
        (title, len(list(same))) for title, same in itertools.groupby(columns, lambda column: _cohort(study, column))
    )


def _cohort(study: Study, column: SiteColumn) -> str:
    return f"{column.group} ({study.scores.data[column]})"


def people_section(study: Study, columns: Sequence[SiteColumn]) -> Section:
    """Return the number of people of each column, and the smallest p-value that they can give."""
    people = [study.people(column) for column in columns]
    return Section(
        "People",
        (
            ("number", tuple(Cell(str(number)) for number in people)),
            ("smallest p", tuple(Cell(p_text(smallest_p(number))) for number in people)),
        ),
    )


def p_text(p: float) -> str:
    """Return a p-value with two significant digits; never 0."""
    if math.isnan(p):
        return NO_SCORE
    return f"{p:.2g}" if p >= 1e-4 else f"{p:.0e}".replace("e-0", "e-")


def signed(value: float) -> str:
    """Return a change with its sign, unless it rounds to zero."""
    if math.isnan(value):
        return NO_SCORE
    return f"{value:+.3f}" if abs(value) >= 0.0005 else "0.000"


def tests_sentence(study: Study, comparisons: int) -> str:
    """Return the sentence about the tests behind the marks."""
    return (
        f"Marks: two-sided paired permutation tests over people against {study.against}; open triangles: p below "
        f"{SIGNIFICANCE_LEVEL}; filled ones: p below {SIGNIFICANCE_LEVEL}/{comparisons}, for {comparisons} "
        "comparisons; up is better."
    )


UNFINISHED_NOTE = "Brackets after a score: the finished runs of a cell that is not finished, and all its runs."
