"""Tables of a report, by name; each is made of a study, where it has what the table shows."""

from scantune.tables.autoencoders import autoencoders
from scantune.tables.base import Builder, Cell, Section, Table
from scantune.tables.comparisons import comparisons
from scantune.tables.densities import densities
from scantune.tables.domain import domain
from scantune.tables.harm import harm
from scantune.tables.losses import losses
from scantune.tables.methods import methods
from scantune.tables.registration import registration
from scantune.tables.variants import variants
from scantune.tables.weights import weights

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
