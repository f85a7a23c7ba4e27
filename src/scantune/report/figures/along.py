"""Dice and energy along the adaptation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scantune.report.figures.base import draw_line, figure_style, legend_below, light_grid, line_styles
from scantune.report.scores import SiteColumn, by_cohort
from scantune.report.study import Study, is_variant, mean_along

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DICE, ENERGY = "dice", "cnn"
QUANTITY_LABELS = {DICE: "Dice", ENERGY: "energy, nats"}
METHODS_PER_ROW = 4
"""Methods beside each other, at most."""

Curves = dict[str, dict[SiteColumn, dict[int, float]]]
"""A quantity by step, in each column, by method."""


def trace_figures(study: Study) -> "dict[str, Figure]":
    """Draw one figure per cohort and tier: Dice above, energy below, a panel per method and a line per site."""
    figures = {}
    for name, columns in by_cohort(study.scores.columns).items():
        methods = [method for method in study.scores.methods if not is_variant(method)]
        curves = {key: curves_of(study, columns, key, methods) for key in QUANTITY_LABELS}
        if any(curves.values()):
            figures[name] = _figure(name, columns, {key: found for key, found in curves.items() if found})
    return figures


def curves_of(study: Study, columns: Sequence[SiteColumn], name: str, methods: Sequence[str]) -> Curves:
    """Return a quantity by step for each method that has it at two steps or more in some column."""
    curves: Curves = {}
    for method in methods:
        found = {column: mean_along(study.traces(column, method), name) for column in columns}
        kept = {column: steps for column, steps in found.items() if len(steps) > 1}
        if kept:
            curves[method] = kept
    return curves


def last_step(curves: Curves) -> int:
    """Return the last of all steps."""
    return max(max(steps) for found in curves.values() for steps in found.values())


def _figure(name: str, columns: Sequence[SiteColumn], curves: dict[str, Curves]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(method for found in curves.values() for method in found))
    looks = line_styles(columns)
    blocks = -(-len(methods) // METHODS_PER_ROW)
    across, down = -(-len(methods) // blocks), len(curves) * blocks
    last = max(map(last_step, curves.values()))
    with figure_style():
        figure = Figure(figsize=(max(3.0 * across, 5.0), 2.2 * down + 1.0), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False)
        for panel in panels.flat:
            panel.set_axis_off()
        for row, (key, found) in enumerate(curves.items()):
            drawn: list[Axes] = []
            for method, lines in found.items():
                block, place = divmod(methods.index(method), across)
                panel = panels[len(curves) * block + row, place]
                drawn.append(_draw(panel, lines, looks, drawn[0] if drawn else None))
                panel.set_title(method if key == next(one for one in curves if method in curves[one]) else "")
                panel.set_ylabel(QUANTITY_LABELS[key] if place == 0 or len(drawn) == 1 else "")
                panel.set_xlabel("step" if key == [*curves][-1] else "")
                steps_axis(panel, last)
        figure.suptitle(f"{name}: along the adaptation", fontsize=12)
        there = dict.fromkeys(c for key in curves.values() for found in key.values() for c in found)
        legend_below(figure, [Line2D([], [], label=column.site, **looks[column]) for column in there])
    return figure


def _draw(
    panel: "Axes",
    curves: dict[SiteColumn, dict[int, float]],
    looks: dict[SiteColumn, dict[str, str]],
    like: "Axes | None",
) -> "Axes":
    """Draw a line per site, on the scale of another panel."""
    panel.set_axis_on()
    if like is not None:
        panel.sharey(like)
    for number, (column, steps) in enumerate(curves.items()):
        draw_line(panel, steps, looks[column], number)
    return panel


def steps_axis(panel: "Axes", last: int) -> None:
    """Set up the axis of steps, logarithmic with a place for 0 if there are many."""
    from matplotlib.ticker import StrMethodFormatter

    if last > 50:
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xticks([at for at in (0, 1, 10, 100, 1000, 10_000) if at <= last])
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.minorticks_off()
        panel.set_xlim(-0.15, last * 1.3)
    else:
        panel.set_xlim(-0.03 * last, 1.03 * last)
    light_grid(panel)
