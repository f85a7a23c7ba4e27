"""Tables of one setting of a method: a row for each of its values, the best in bold."""

from collections.abc import Mapping

from scantune.report.study import Study
from scantune.report.tables.base import (
    UNFINISHED_NOTE,
    ReportTable,
    Section,
    dice_row,
    embolden,
    people_section,
    site_groups,
)


def setting_table(study: Study, title: str, setting: str, rows: Mapping[str, str], caption: str) -> ReportTable | None:
    """Return Dice by a setting, at the sites where every value was run at least once.

    Args:
        study: What to show.
        title: Of the table.
        setting: What differs between the rows.
        rows: The methods of the rows, by what they are called in the table.
        caption: A sentence for the caption.

    Returns:
        None where fewer than two values have a site in common.
    """
    here = {label: name for label, name in rows.items() if name in study.scores.methods}
    columns = [
        column
        for column in study.scores.columns
        if here and all((column, name) in study.scores.cells for name in here.values())
    ]
    if len(here) < 2 or not columns:
        return None
    section = Section("", embolden([(label, dice_row(study, columns, name)) for label, name in here.items()]))
    unfinished = any(cell.note for _, cells in section.rows for cell in cells)
    return ReportTable(
        title,
        (setting, *(column.site for column in columns)),
        (section, people_section(study, columns)),
        (
            "Mean Dice over people; the best of a column is in bold.",
            caption,
            *([UNFINISHED_NOTE] if unfinished else []),
        ),
        site_groups(study, columns),
    )
