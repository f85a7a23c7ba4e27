"""The autoencoders' losses beside the Dice, along the adaptation."""

from typing import TYPE_CHECKING

from scantune.report.figures.along import DICE, Curves, curves_of, last_step, steps_axis
from scantune.report.figures.base import PANELS_PER_ROW, draw_line, figure_style, legend_below, line_styles, panel_grid
from scantune.report.scores import SiteColumn
from scantune.report.study import Study
from scantune.report.tables.losses import AUTOENCODER_LOSSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def loss_figures(study: Study) -> "dict[str, Figure]":
    """Draw Dice and losses relative to their start for `ae` and its variants, with a panel per method."""
    methods = [name for name in study.scores.methods if name.split(", ")[0] == "ae"]
    columns = study.scores.columns
    dice = curves_of(study, columns, DICE, methods)
    if not dice:
        return {}
    lines = {name: curves_of(study, columns, name, methods) for name in AUTOENCODER_LOSSES}
    return {"": _figure(dice, {name: found for name, found in lines.items() if found})}


def _figure(dice: Curves, lines: dict[str, Curves]) -> "Figure":
    from matplotlib.lines import Line2D

    looks = {DICE: {"color": "#000000", "linewidth": 2.6, "marker": "o"}, **line_styles([*lines])}
    last = max(map(last_step, (dice, *lines.values())))
    with figure_style():
        figure, panels = panel_grid(len(dice), (3.4, 2.6), sharey=True)
        for place, (panel, method) in enumerate(zip(panels, dice, strict=True)):
            for number, (name, curves) in enumerate({DICE: dice, **lines}.items()):
                draw_line(panel, _relative(curves.get(method, {})), looks[name], number)
            panel.set_title(method)
            panel.set_ylabel("" if place % PANELS_PER_ROW else "relative to step 0")
            panel.set_xlabel("step" if place + PANELS_PER_ROW >= len(panels) else "")
            steps_axis(panel, last)
        figure.suptitle("Autoencoders' losses and Dice along the adaptation", fontsize=12)
        names = {DICE: "Dice", **{name: f"loss {name}" for name in lines}}
        legend_below(figure, [Line2D([], [], label=description, **looks[name]) for name, description in names.items()])
    return figure


def _relative(curves: dict[SiteColumn, dict[int, float]]) -> dict[int, float]:
    """Return the mean over sites of a quantity relative to its start, at the steps that all sites have."""
    kept = [steps for steps in curves.values() if steps.get(0)]
    shared = sorted(set.intersection(*map(set, kept))) if kept else []
    return {step: sum(steps[step] / steps[0] for steps in kept) / len(kept) for step in shared}
