"""Mean change of Dice by every adaptation method at every site, with its interval and every person behind it."""

from typing import TYPE_CHECKING

from scantune.report.figures.base import FAINT, INK, figure_style, light_grid, method_styles, panel_grid
from scantune.report.scores import SiteColumn, by_cohort
from scantune.report.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINEAR_UP_TO = 0.05
"""Up to this change the axis is linear, beyond it logarithmic: harm can be a hundred times as large as a gain."""

CHANGE_TICKS = (-0.5, -0.2, -0.05, 0.0, 0.05, 0.2, 0.5)


def change_figures(study: Study) -> "dict[str, Figure]":
    """Draw one figure per cohort and tier with a panel per site; none if nothing was adapted."""
    adapted = [column for column in study.scores.columns if _compared(study, column)]
    return {name: _figure(study, name, columns) for name, columns in by_cohort(adapted).items()}


def _compared(study: Study, column: SiteColumn) -> list[str]:
    return [method for method in study.adaptations([column]) if (column, method) in study.comparisons]


def _figure(study: Study, name: str, columns: list[SiteColumn]) -> "Figure":
    methods = study.adaptations(columns)
    with figure_style():
        figure, panels = panel_grid(len(columns), (3.6, 0.26 * len(methods) + 0.7), sharex=True, sharey=True)
        for panel, column in zip(panels, columns, strict=True):
            _draw(panel, study, column, methods)
        low, high = panels[0].get_xlim()
        ticks = [tick for tick in CHANGE_TICKS if min(low, -LINEAR_UP_TO) <= tick <= max(high, LINEAR_UP_TO)]
        for panel in panels:
            panel.set_xticks(ticks, labels=[f"{tick:+g}" if tick else "0" for tick in ticks])
            panel.minorticks_off()
        figure.suptitle(f"{name}: change of Dice against {study.against}", fontsize=12)
        explained = f"mean, 95 % interval, a stroke per person; the axis is linear up to {LINEAR_UP_TO}"
        figure.supxlabel(explained, fontsize=9)
    return figure


def _draw(panel: "Axes", study: Study, column: SiteColumn, methods: list[str]) -> None:
    look = method_styles(study, methods)
    for method in _compared(study, column):
        place = methods.index(method)
        comparison = study.comparisons[column, method]
        colour, mark = look[method]
        people = study.person_changes(column, method)
        panel.plot(people.to_numpy(), [place] * len(people), "|", color=colour, alpha=0.6, markersize=8)
        panel.plot([comparison.low, comparison.high], [place, place], color=colour, linewidth=2)
        panel.plot([comparison.mean], [place], mark, color=colour, markersize=7, markeredgecolor="white")
    panel.axvline(0, color=INK, linewidth=1, zorder=1)
    panel.set_xscale("symlog", linthresh=LINEAR_UP_TO, linscale=1.0)
    panel.set_yticks(range(len(methods)), labels=methods)
    panel.set_ylim(len(methods) - 0.4, -0.6)
    panel.set_title(f"{column.site}, n = {study.people(column)}")
    panel.tick_params(axis="y", length=0)
    panel.spines["left"].set_color(FAINT)
    light_grid(panel, "x")
