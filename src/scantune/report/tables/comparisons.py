"""Every test that was made: the numbers behind the triangles."""

from scantune.report.scores import SiteColumn
from scantune.report.statistics import Comparison, bonferroni
from scantune.report.study import REGISTRATION, Study
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section, p_text, signed

COMPARISON_HEADINGS = (
    "site, method",
    "people",
    "mean change",
    "95 % interval",
    "p",
    "corrected p",
    "smallest p",
    "people worse",
)


def comparison_table(study: Study) -> ReportTable | None:
    """Return one section per cohort and tier, one row per site and method."""
    sections: dict[str, list[tuple[str, tuple[Cell, ...]]]] = {}
    for (column, method), comparison in study.comparisons.items():
        cells = _cells(comparison, corrections(study, column, method))
        sections.setdefault(column.group, []).append((f"{column.site}, {method}", cells))
    if not sections:
        return None
    return ReportTable(
        f"Paired permutation tests against {study.against}",
        COMPARISON_HEADINGS,
        tuple(Section(title, tuple(rows)) for title, rows in sections.items()),
        (
            "Two-sided, over people; mean change of Dice with its bootstrap interval. Corrected p: times the number of "
            "compared methods (Bonferroni), for adaptation methods. Smallest p: the least that is possible with as "
            "many people as changed at all. People worse: whose mean score fell.",
        ),
    )


def corrections(study: Study, column: SiteColumn, method: str) -> int | None:
    """Return the number of comparisons that a test is corrected for; None for methods that do not adapt."""
    training = (column in study.columns(training=True)) if column.cohort != REGISTRATION else None
    task = REGISTRATION if column.cohort == REGISTRATION else ""
    columns = study.columns(task=task, training=training)
    return study.comparisons_in(columns, method) if method in study.adaptations(columns) else None


def _cells(one: Comparison, count: int | None) -> tuple[Cell, ...]:
    corrected = NO_SCORE if count is None else p_text(float(bonferroni(one.p, count)))
    interval = NO_SCORE if one.people < 2 else f"{signed(one.low)} to {signed(one.high)}"
    worse = round(one.worse * one.people)
    texts = (
        str(one.people),
        signed(one.mean),
        interval,
        p_text(one.p),
        corrected,
        p_text(one.smallest_p),
        f"{worse} ({one.worse:.0%})",
    )
    return tuple(Cell(text) for text in texts)
