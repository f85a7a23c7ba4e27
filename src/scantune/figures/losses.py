"""The autoencoders' losses beside the Dice, along the adaptation."""

from typing import TYPE_CHECKING

from scantune.figures.along import DICE, Curves, curves_of, mark_of, steps_axis
from scantune.figures.base import LINES, legend_below, style
from scantune.scoretable import Column
from scantune.study import Study
from scantune.tables.losses import LOSSES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def losses(study: Study) -> "dict[str, Figure]":
    """Losses relative to their start, and Dice, for `ae` and its variants; a panel per method."""
    methods = [name for name in study.scores.methods if name.split(", ")[0] == "ae"]
    columns = study.scores.columns
    dice = curves_of(study, columns, DICE, methods)
    if not dice:
        return {}
    lines = {name: curves_of(study, columns, name, methods) for name in LOSSES}
    return {"": _figure(dice, {name: found for name, found in lines.items() if found})}


def _figure(dice: Curves, lines: dict[str, Curves]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    colours = dict(zip((DICE, *LOSSES), ("#000000", *LINES), strict=False))
    with style():
        figure = Figure(figsize=(max(3.4 * len(dice), 5.0), 3.6), layout="constrained")
        panels = figure.subplots(1, len(dice), sharey=True, squeeze=False).flat
        for panel, method in zip(panels, dice, strict=True):
            for name, curves in {DICE: dice, **lines}.items():
                ratios = _relative(curves.get(method, {}))
                width = 2.6 if name == DICE else 1.6
                panel.plot(
                    [*ratios],
                    [*ratios.values()],
                    color=colours[name],
                    linewidth=width,
                    marker=mark_of(ratios),
                    markersize=3,
                )
            panel.set_title(method)
            panel.set_xlabel("step")
            steps_axis(panel, dice[method].values())
        panels[0].set_ylabel("relative to step 0")
        names = {DICE: "Dice", **{name: f"loss {name}" for name in lines}}
        legend_below(
            figure, [Line2D([], [], color=colours[n], linewidth=2, label=told) for n, told in names.items()], 6
        )
    return figure


def _relative(curves: dict[Column, dict[int, float]]) -> dict[int, float]:
    """The mean over sites of a quantity as a multiple of its start, at the steps that all sites have."""
    kept = [steps for steps in curves.values() if steps.get(0)]
    shared = sorted(set.intersection(*map(set, kept))) if kept else []
    return {step: sum(steps[step] / steps[0] for steps in kept) / len(kept) for step in shared}
