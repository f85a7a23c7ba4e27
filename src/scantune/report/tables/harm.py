"""What adaptation costs: whom it makes worse, by how much, and how often the guard stepped in."""

from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from scantune.report.scores import SiteColumn, by_cohort
from scantune.report.statistics import person_means
from scantune.report.study import BASELINE, SUPERVISED, Study
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section, signed

HARM_HEADINGS = (
    "method", "people", "scans", "mean change", "worst site", "worst scan", "people worse", "unsolved", "seconds",
)  # fmt: skip


def harm_table(study: Study) -> ReportTable | None:
    """Return every method against the strong baseline, per cohort and tier, over all sites including in-domain ones."""
    sections = []
    for group, columns in by_cohort(study.scores.columns).items():
        methods = [*study.adaptations(columns), *study.variants()]
        rows = [(name, _row(study, columns, name)) for name in methods if name not in (BASELINE, SUPERVISED)]
        found = tuple((name, cells) for name, cells in rows if cells is not None)
        if found:
            sections.append(Section(group, found))
    if not sections:
        return None
    return ReportTable(
        f"Harm: changes of Dice against {study.against}",
        HARM_HEADINGS,
        tuple(sections),
        (
            "Mean change: over people. Worst site: the least mean change of any site. Worst scan: of any single scan "
            "and training run. People worse: whose mean score fell. Unsolved: runs in which no adaptation helped "
            "enough. Seconds: median per scan.",
        ),
    )


def _row(study: Study, columns: Sequence[SiteColumn], method: str) -> tuple[Cell, ...] | None:
    at_sites = [study.run_changes(column, method) for column in columns]
    people = [person_means(scans) for scans in at_sites if len(scans)]
    if not people:
        return None
    scans, everyone = pd.concat(at_sites), pd.concat(people)
    runs = pd.concat([_comparable_runs(study, column, method) for column in columns])
    decisions = runs["decision"][runs["decision"] != ""]
    rolled_back = f"{sum(decisions == 'unsolved')} of {len(decisions)}" if len(decisions) else NO_SCORE
    seconds = runs["seconds"].median()
    worse = int((everyone < 0).sum())
    return (
        Cell(str(len(everyone))),
        Cell(str(len(scans))),
        Cell(signed(fmean(everyone))),
        Cell(signed(min(map(fmean, people)))),
        Cell(signed(scans.min())),
        Cell(f"{worse} ({worse / len(everyone):.0%})"),
        Cell(rolled_back),
        Cell(NO_SCORE if pd.isna(seconds) else f"{seconds:.3g}"),
    )


def _comparable_runs(study: Study, column: SiteColumn, method: str) -> pd.DataFrame:
    """Return the runs of a method that the compared method has a score of."""
    runs = study.scores.cells.get((column, method), study.scores.frame[:0])
    return runs[runs.index.isin(study.scores.dice(column, study.against).index)]
