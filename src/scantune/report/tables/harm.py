"""What adaptation costs: whom it makes worse, by how much, and how often the guard stepped in."""

import math
from collections.abc import Sequence

from scantune.report.scores import Scored, SiteColumn
from scantune.report.statistics import RunKey, person_changes
from scantune.report.study import BASELINE, SUPERVISED, Study
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section, signed

HARM_HEADINGS = (
    "method", "people", "scans", "mean change", "worst site", "worst scan", "people worse", "rolled back", "seconds",
)  # fmt: skip


def harm_table(study: Study) -> ReportTable | None:
    """Every method against the strong baseline, per cohort and tier, over all its sites, in-domain ones included."""
    groups: dict[str, list[SiteColumn]] = {}
    for column in study.scores.columns:
        groups.setdefault(column.group, []).append(column)
    sections = []
    for group, columns in groups.items():
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
            "and training run. People worse: whose mean score fell. Rolled back: runs that the guard refused; the "
            "source prediction stands for them. Seconds: median per scan.",
        ),
    )


def _row(study: Study, columns: Sequence[SiteColumn], method: str) -> tuple[Cell, ...] | None:
    scans: list[float] = []
    people: list[float] = []
    sites: list[float] = []
    runs: list[Scored] = []
    for column in columns:
        before, after = study.scores.dice(column, study.against), study.scores.dice(column, method)
        changes = list(person_changes(before, after).values())
        if changes:
            people += changes
            sites.append(_mean(changes))
        scans += _scans(before, after)
        runs += [score for run, score in study.scores.cells.get((column, method), {}).items() if run in before]
    if not people:
        return None
    told = [run.decision for run in runs if run.decision]
    rolled_back = f"{sum(one == 'rolled back' for one in told)} of {len(told)}" if told else NO_SCORE
    seconds = sorted(run.seconds for run in runs if not math.isnan(run.seconds))
    worse = sum(change < 0 for change in people)
    return (
        Cell(str(len(people))),
        Cell(str(len(scans))),
        Cell(signed(_mean(people))),
        Cell(signed(min(sites))),
        Cell(signed(min(scans))),
        Cell(f"{worse} ({worse / len(people):.0%})"),
        Cell(rolled_back),
        Cell(f"{_median(seconds):.3g}" if seconds else NO_SCORE),
    )


def _scans(before: dict[RunKey, float], after: dict[RunKey, float]) -> list[float]:
    return [score - before[run] for run, score in after.items() if run in before]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _median(ordered: Sequence[float]) -> float:
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
