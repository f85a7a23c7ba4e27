"""The paper's table of autoencoder variants: Dice along the adaptation."""

from scantune.report.scores import SiteColumn
from scantune.report.study import Study, mean_along
from scantune.report.tables.base import NO_SCORE, UNFINISHED_NOTE, Cell, ReportTable, Section, dice_row, site_groups

EPOCHS_SHOWN = (0, 10, 100, 1000)
"""Steps of the `paper` preset that the paper's table shows."""


def autoencoder_table(study: Study) -> ReportTable | None:
    """Return Dice of `ae` and its variants at several epochs of their runs, from traces that hold Dice."""
    columns, curves = dice_along(study)
    if not columns:
        return None
    sections = []
    for method, by_column in curves.items():
        notes = [_progress(study, column, method) for column in columns]
        rows = tuple(
            (f"epoch {epoch}", tuple(_cell(one.get(epoch), note) for one, note in zip(by_column, notes, strict=True)))
            for epoch in EPOCHS_SHOWN
            if any(epoch in one for one in by_column)
        )
        sections.append(Section(method, rows))
    unfinished = [UNFINISHED_NOTE] if any(c.note for s in sections for _, found in s.rows for c in found) else []
    strong = Section("", ((study.against, dice_row(study, columns, study.against)),))
    return ReportTable(
        "Variants of the autoencoder method along the adaptation",
        ("after", *(column.site for column in columns)),
        (strong, *(section for section in sections if section.rows)),
        ("Mean Dice over people at an epoch of the run, whichever epoch was chosen in the end.", *unfinished),
        site_groups(study, columns),
    )


def dice_along(study: Study) -> tuple[list[SiteColumn], dict[str, list[dict[int, float]]]]:
    """Return the columns with traces that hold Dice, and the Dice by step in each of them, by method."""
    methods = [name for name in study.scores.methods if name.split(", ")[0] == "ae"]
    found = {
        name: {column: mean_along(study.traces(column, name), "dice") for column in study.scores.columns}
        for name in methods
    }
    columns = [column for column in study.scores.columns if any(found[name][column] for name in methods)]
    kept = {name: [found[name][column] for column in columns] for name in methods}
    return columns, {name: by_column for name, by_column in kept.items() if any(by_column)}


def _progress(study: Study, column: SiteColumn, method: str) -> str:
    """Return how many of all runs have a trace; an empty text if all do."""
    done, every = len(study.traces(column, method)), len(study.scores.runs.get(column, ()))
    return "" if done == every else f"{done} of {every}"


def _cell(dice: float | None, note: str) -> Cell:
    return Cell(NO_SCORE) if dice is None else Cell(f"{dice:.3f}", note=note)
