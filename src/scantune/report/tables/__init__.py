"""Tables of a report, by name; each is made of a study, where it has what the table shows."""

from scantune.report.tables.autoencoders import autoencoders
from scantune.report.tables.base import Builder, Cell, Section, Table
from scantune.report.tables.comparisons import comparisons
from scantune.report.tables.densities import densities
from scantune.report.tables.domain import domain
from scantune.report.tables.harm import harm
from scantune.report.tables.losses import losses
from scantune.report.tables.methods import methods
from scantune.report.tables.registration import registration
from scantune.report.tables.variants import variants
from scantune.report.tables.weights import weights

__all__ = ["TABLES", "Builder", "Cell", "Section", "Table"]

TABLES: dict[str, Builder] = {
    "methods": methods,
    "in-domain": domain,
    "registration": registration,
    "lambda": weights,
    "density": densities,
    "ae-variants": autoencoders,
    "ae-losses": losses,
    "variants": variants,
    "harm": harm,
    "tests": comparisons,
}
"""In the order of the report."""
