"""Tables of a report, by name; each is made of a study, where it has what the table shows."""

from scantune.report.tables.autoencoders import autoencoder_table
from scantune.report.tables.base import Cell, ReportTable, Section, TableBuilder
from scantune.report.tables.comparisons import comparison_table
from scantune.report.tables.densities import density_table
from scantune.report.tables.domain import in_domain_table
from scantune.report.tables.harm import harm_table
from scantune.report.tables.losses import loss_table
from scantune.report.tables.methods import method_table
from scantune.report.tables.registration import registration_table
from scantune.report.tables.variants import variant_table
from scantune.report.tables.weights import weight_table

__all__ = ["TABLES", "Cell", "ReportTable", "Section", "TableBuilder"]

TABLES: dict[str, TableBuilder] = {
    "methods": method_table,
    "in-domain": in_domain_table,
    "registration": registration_table,
    "lambda": weight_table,
    "density": density_table,
    "ae-variants": autoencoder_table,
    "ae-losses": loss_table,
    "variants": variant_table,
    "harm": harm_table,
    "tests": comparison_table,
}
"""In the order of the report."""
