"""The paper's Table 2: Dice of every method at every test site of every anatomy."""

from collections.abc import Sequence

from scantune.report.scores import SiteColumn
from scantune.report.study import BASELINE, STRONG_BASELINES, SUPERVISED, Study
from scantune.report.tables.base import (
    UNFINISHED_NOTE,
    ReportTable,
    Section,
    dice_row,
    embolden,
    people_section,
    site_groups,
    tests_sentence,
)

SEGMENTATION = "segmentation"


def method_table(study: Study) -> ReportTable | None:
    """Return Dice of segmentation at all sites except the training sites."""
    columns = study.columns(task=SEGMENTATION, training=False)
    if not columns:
        return None
    notes = in_domain_sentences(study, study.columns(task=SEGMENTATION, training=True))
    return sites_table(study, columns, "Dice at the test sites", notes)


def sites_table(study: Study, columns: Sequence[SiteColumn], title: str, notes: Sequence[str] = ()) -> ReportTable:
    """Return methods in the paper's four sections, with triangles against the strong baseline and the best in bold.

    Args:
        study: What to show.
        columns: Of the table.
        title: Of the table.
        notes: Sentences for the caption.
    """
    compared = study.adaptations(columns)
    strong = [study.against, *(name for name in STRONG_BASELINES if name != study.against)]
    sections = [
        _section(study, columns, "Supervised learning at the training site", [BASELINE]),
        _section(study, columns, "Domain generalisation", [name for name in strong if name != BASELINE]),
        Section(
            "Adaptation to each scan",
            embolden(
                [(name, dice_row(study, columns, name, study.comparisons_in(columns, name))) for name in compared]
            ),
        ),
        _section(study, columns, "Transfer learning with labels of the test site", [SUPERVISED]),
    ]
    shown = (*(section for section in sections if section.rows), people_section(study, columns))
    unfinished = any(cell.note for section in shown for _, cells in section.rows for cell in cells)
    return ReportTable(
        title,
        ("method", *(column.site for column in columns)),
        shown,
        (
            "Mean Dice over people, each averaged over scans and training runs first.",
            *([] if not compared else ["The best adaptation method of a column is in bold."]),
            *([] if not compared else [tests_sentence(study, study.comparisons_in(columns))]),
            *notes,
            *([UNFINISHED_NOTE] if unfinished else []),
        ),
        site_groups(study, columns),
    )


def _section(study: Study, columns: Sequence[SiteColumn], title: str, names: Sequence[str]) -> Section:
    here = [name for name in names if any((column, name) in study.scores.cells for column in columns)]
    return Section(title, tuple((name, dice_row(study, columns, name)) for name in here))


def in_domain_sentences(study: Study, columns: Sequence[SiteColumn]) -> list[str]:
    """Return sentences about both baselines at the training sites, as in the paper's caption."""
    sentences = []
    for name in (BASELINE, study.against):
        cells = zip(columns, dice_row(study, columns, name), strict=True)
        found = [f"{column.site} {cell.text}" for column, cell in cells if (column, name) in study.scores.cells]
        if found:
            sentences.append(f"At the training sites, {name}: {', '.join(found)}.")
    return sentences
