"""Dice and energy along the adaptation."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scantune.figures.base import LINES, by_cohort, legend_below, light_grid, style
from scantune.scoretable import Column
from scantune.study import Study, along, is_variant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DICE, ENERGY = "dice", "cnn"
DASHES = ("-", "--", "-.", ":")

Curves = dict[str, dict[Column, dict[int, float]]]
"""A quantity by step, in each column, by method."""


def along_the_way(study: Study) -> "dict[str, Figure]":
    """One figure per cohort and tier: Dice above, energy below, a panel per method and a line per site."""
    figures = {}
    for name, columns in by_cohort(study.scores.columns).items():
        methods = [method for method in study.scores.methods if not is_variant(method)]
        curves = {key: curves_of(study, columns, key, methods) for key in (DICE, ENERGY)}
        if any(curves.values()):
            figures[name] = _figure(name, columns, curves)
    return figures


def curves_of(study: Study, columns: Sequence[Column], name: str, methods: Sequence[str]) -> Curves:
    """Of the methods that have a quantity at two steps or more somewhere."""
    curves: Curves = {}
    for method in methods:
        found = {column: along(study.traces(column, method), name) for column in columns}
        kept = {column: steps for column, steps in found.items() if len(steps) > 1}
        if kept:
            curves[method] = kept
    return curves


def _figure(name: str, columns: Sequence[Column], curves: dict[str, Curves]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    methods = list(dict.fromkeys(method for key in (DICE, ENERGY) for method in curves[key]))
    shown = {DICE: "Dice", ENERGY: "energy, nats"}
    rows = [key for key in (DICE, ENERGY) if curves[key]]
    looks = dict(zip(columns, itertools.cycle(itertools.product(DASHES, LINES))))
    with style():
        figure = Figure(figsize=(max(2.6 * len(methods), 5.0), 2.4 * len(rows) + 1.0), layout="constrained")
        panels = figure.subplots(len(rows), len(methods), sharey="row", squeeze=False)
        for row, key in enumerate(rows):
            for place, method in enumerate(methods):
                panel = panels[row, place]
                found = curves[key].get(method, {})
                for column, steps in found.items():
                    dash, colour = looks[column]
                    panel.plot([*steps], [*steps.values()], dash, color=colour, marker=mark_of(steps), markersize=3)
                if found:
                    steps_axis(panel, found.values())
                else:
                    panel.set_axis_off()
            first = panels[row, next(place for place, method in enumerate(methods) if method in curves[key])]
            first.set_ylabel(shown[key])
            first.tick_params(labelleft=True)
        for place, method in enumerate(methods):
            panels[0, place].set_title(method)
            shown_rows = [row for row, key in enumerate(rows) if method in curves[key]]
            panels[shown_rows[-1], place].set_xlabel("step")
        figure.suptitle(f"{name}: along the adaptation", fontsize=12)
        there = dict.fromkeys(column for key in rows for found in curves[key].values() for column in found)
        legend_below(
            figure, [Line2D([], [], color=looks[c][1], linestyle=looks[c][0], marker="o", label=c.site) for c in there]
        )
    return figure


def mark_of(steps: Mapping[int, float]) -> str:
    """Points where there are few."""
    return "o" if len(steps) <= 30 else ""


def steps_axis(panel: "Axes", curves: Iterable[dict[int, float]]) -> None:
    """Steps on a logarithmic axis that has a place for 0, where there are many."""
    from matplotlib.ticker import StrMethodFormatter

    last = max((max(steps) for steps in curves), default=0)
    if last > 50:
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xticks([at for at in (0, 1, 10, 100, 1000, 10_000) if at <= last])
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.minorticks_off()
    light_grid(panel)
