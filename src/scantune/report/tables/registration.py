"""The paper's table of registration: all sites, the training site first."""

from scantune.report.study import REGISTRATION, Study
from scantune.report.tables.base import ReportTable
from scantune.report.tables.methods import sites_table


def registration_table(study: Study) -> ReportTable | None:
    """Return the table of methods for registration; the corrected level counts the methods that register."""
    columns = study.columns(task=REGISTRATION, training=True) + study.columns(task=REGISTRATION, training=False)
    return sites_table(study, columns, "Dice after registration with an atlas") if columns else None
