"""Dice of every single person by every method, as the paper shows its registration results."""

from typing import TYPE_CHECKING

from scantune.report.figures.base import (
    FAINT,
    figure_style,
    legend_below,
    light_grid,
    method_styles,
    panel_grid,
)
from scantune.report.scores import SiteColumn, by_cohort
from scantune.report.statistics import person_means
from scantune.report.study import BASELINE, SUPERVISED, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD_SPREAD = 0.7
"""Share of a person's place over which the methods are spread."""


def people_figures(study: Study) -> "dict[str, Figure]":
    """Draw one figure per cohort and tier, one panel per site, with people in order of the strong baseline's score.

    What all are compared with is a bar behind the marks of the other methods.
    """
    return {name: _figure(study, name, columns) for name, columns in by_cohort(study.scores.columns).items()}


def _figure(study: Study, name: str, columns: list[SiteColumn]) -> "Figure":
    from matplotlib.lines import Line2D

    wanted = [study.against, BASELINE, *study.adaptations(columns), SUPERVISED]
    methods = [m for m in dict.fromkeys(wanted) if any((column, m) in study.scores.cells for column in columns)]
    look = method_styles(study, methods)
    with figure_style():
        figure, panels = panel_grid(len(columns), (4.4, 2.6))
        for panel, column in zip(panels, columns, strict=True):
            _draw(panel, study, column, look)
        figure.supylabel("Dice", fontsize=10)
        figure.suptitle(f"{name}: every person, in order of {study.against}; scales differ", fontsize=12)
        legend_below(
            figure,
            [
                Line2D([], [], color=colour, linewidth=2.5, label=method)
                if method == study.against
                else Line2D([], [], color=colour, marker=mark, linestyle="none", label=method)
                for method, (colour, mark) in look.items()
            ],
        )
    return figure


def _draw(panel: "Axes", study: Study, column: SiteColumn, look: dict[str, tuple[str, str]]) -> None:
    scores = {method: person_means(study.scores.dice(column, method)) for method in look}
    everyone = {person for found in scores.values() for person in found.index}
    bars = scores.pop(study.against).to_dict() if study.against in scores else {}
    order = {who: place for place, who in enumerate(sorted(everyone, key=lambda w: (bars.get(w, 2.0), str(w))))}
    if bars:
        ends = [[order[who] + side for who in bars] for side in (-0.42, 0.42)]
        panel.hlines(list(bars.values()), *ends, color=look[study.against][0], linewidth=1.8)
    for number, (method, found) in enumerate(scores.items()):
        aside = METHOD_SPREAD * ((number + 0.5) / len(scores) - 0.5)
        colour, mark = look[method]
        panel.plot(
            [order[who] + aside for who in found.index],
            found.to_numpy(),
            linestyle="none",
            marker=mark,
            color=colour,
            markersize=(5.0 if len(order) < 12 else 3.5) * (1.5 if mark == "*" else 1.0),
            markeredgewidth=0,
        )
    panel.set_title(f"{column.site}, n = {len(order)}")
    panel.set_xlim(-0.6, len(order) - 0.4)
    panel.set_xticks([])
    for place in range(0, len(order), 2):  # so that marks of neighbours are not taken for one person's
        panel.axvspan(place - 0.5, place + 0.5, color=FAINT, alpha=0.35, linewidth=0, zorder=0)
    light_grid(panel)
