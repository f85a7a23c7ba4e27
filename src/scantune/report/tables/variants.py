"""Variants of methods (`foe-cnn-pca, guard`) beside the methods they are variants of."""

from scantune.report.study import Study
from scantune.report.tables.base import (
    UNFINISHED_NOTE,
    ReportTable,
    Section,
    dice_row,
    people_section,
    site_groups,
    tests_sentence,
)


def variant_table(study: Study) -> ReportTable | None:
    """Return one section per method. Tests are corrected for all tested rows of the table."""
    names = study.variants()
    if not names:
        return None
    columns = [c for c in study.scores.columns if any((c, name) in study.scores.cells for name in names)]
    bases = list(dict.fromkeys(name.split(", ")[0] for name in names))
    families = {
        base: [name for name in (base, *study.variants(base)) if name in study.scores.methods] for base in bases
    }
    compared = sum(name != study.against for family in families.values() for name in family)
    sections = [
        Section(base, tuple((name, dice_row(study, columns, name, compared)) for name in family))
        for base, family in families.items()
    ]
    strong = Section("", ((study.against, dice_row(study, columns, study.against)),))
    return ReportTable(
        "Variants of the methods",
        ("method", *(column.site for column in columns)),
        (strong, *sections, people_section(study, columns)),
        (
            "Mean Dice over people.",
            tests_sentence(study, compared),
            *([UNFINISHED_NOTE] if any(cell.note for s in sections for _, cells in s.rows for cell in cells) else []),
        ),
        site_groups(study, columns),
    )
