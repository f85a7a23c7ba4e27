"""What the methods do where nothing has shifted: Dice at the sites that the networks were trained at."""

from scantune.report.study import Study
from scantune.report.tables.base import ReportTable
from scantune.report.tables.methods import SEGMENTATION, sites_table


def in_domain_table(study: Study) -> ReportTable | None:
    """Return the table of methods at the training sites."""
    columns = study.columns(task=SEGMENTATION, training=True)
    return sites_table(study, columns, "Dice at the training sites, without a shift") if columns else None
