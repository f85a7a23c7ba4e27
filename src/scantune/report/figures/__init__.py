"""Figures of a report, by name; each is made of a study, where it has what the figure shows."""

from scantune.report.figures.along import trace_figures
from scantune.report.figures.base import FigureBuilder, save_png_and_svg
from scantune.report.figures.changes import change_figures
from scantune.report.figures.losses import loss_figures
from scantune.report.figures.people import people_figures

__all__ = ["FIGURES", "FigureBuilder", "save_png_and_svg"]

FIGURES: dict[str, FigureBuilder] = {
    "people": people_figures,
    "changes": change_figures,
    "along": trace_figures,
    "ae-losses": loss_figures,
}
"""In the order of the report. The figure of densities is made of a model and a scan instead (`densities.py`)."""
