"""Figures of a report, by name; each is made of a study, where it has what the figure shows."""

from scantune.report.figures.along import along_the_way
from scantune.report.figures.base import Builder, save
from scantune.report.figures.changes import changes
from scantune.report.figures.losses import losses
from scantune.report.figures.people import people

__all__ = ["FIGURES", "Builder", "save"]

FIGURES: dict[str, Builder] = {
    "people": people,
    "changes": changes,
    "along": along_the_way,
    "ae-losses": losses,
}
"""In the order of the report. The figure of densities is made of a model and a scan instead (`densities.py`)."""
