"""The paper's table of registration: all sites, the training site first."""

from scantune.report.study import REGISTRATION, Study
from scantune.report.tables.base import ReportTable
from scantune.report.tables.methods import sites_table


def registration_table(study: Study) -> ReportTable | None:
    """As the table of methods; the corrected level counts the methods that register (two in the paper)."""
    columns = study.columns(task=REGISTRATION, training=True) + study.columns(task=REGISTRATION, training=False)
    return sites_table(study, columns, "Dice after registration with an atlas") if columns else None
