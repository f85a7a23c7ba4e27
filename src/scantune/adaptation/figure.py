"""Figures of results: a slice before and after adaptation, and the way between them.

Figures are made as objects, without a window or any global state of matplotlib's.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scantune.adaptation.result import Result
from scantune.backends import PreparedSlices
from scantune.errors import InputError
from scantune.plots.colours import ERROR_COLOUR, STRUCTURE_COLOURS, structure_colours
from scantune.plots.files import overlay_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUND, _INK, _FAINT = "black", "#f2f2f2", "#9aa3ad"
_PANEL = 2.6  # inches that an image panel is wide
_STYLE = {
    "font.size": 11.0,
    "axes.titlesize": 12.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.facecolor": _GROUND,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
}


def case_figure(
    result: Result, *, title: str, captions: Mapping[str, str] | None = None, floor: float | None = None
) -> "Figure":
    """Draw one slice of a scan, its segmentations before and after adaptation, and the trace of the adaptation.

    The slice is the one with the largest reference (largest prediction, where there is no reference), so that it
    does not depend on how well the adaptation went. With a reference, the lower row shows where the segmentations
    are wrong; without, what the adaptation changed.

    Args:
        result: Of a scan that was given as a file or case.
        title: Stands above everything.
        captions: Stand below the panels `Image`, `Reference`, `Before`, `After`, such as scores.
        floor: The least possible energy, from the prior.

    Raises:
        InputError: The scan was given as a tensor.
    """
    import matplotlib
    from matplotlib.figure import Figure

    picture, maps = shown_slice(result)
    colours = structure_colours(result.labels)
    columns = 1 + len(maps)
    with matplotlib.rc_context(_STYLE):
        aspect = pixel_aspect(result)
        tall = max(_PANEL * picture.shape[0] * aspect / picture.shape[1], 1.5)
        figure = Figure(figsize=(_PANEL * columns + 0.6, 2 * tall + 1.6), facecolor=_GROUND, layout="constrained")
        grid = figure.add_gridspec(2, columns)
        panels = [figure.add_subplot(grid[0, column]) for column in range(columns)]
        _show(panels[0], "Image", picture, aspect)
        _mark_sides(panels[0], result)
        for panel, (name, labels) in zip(panels[1:], maps.items(), strict=True):
            _show(panel, name, picture, aspect)
            overlay_labels(panel, labels, {result.labels[structure]: colour for structure, colour in colours.items()})
        for panel in panels:
            panel.set_xlabel((captions or {}).get(panel.get_title(), ""), fontsize=10)
        wrong = _differences(maps)
        for column, (name, where) in enumerate(wrong.items(), start=columns - len(wrong)):
            panel = figure.add_subplot(grid[1, column])
            _show(panel, name, 0.6 * picture, aspect)
            overlay_labels(panel, where, {1: ERROR_COLOUR})
        plot_trace(figure.add_subplot(grid[1, : columns - len(wrong)]), result, floor)
        figure.suptitle(title, fontsize=14)
        _legend(figure, colours | {"wrong" if "Reference" in maps else "changed": ERROR_COLOUR})
    return figure


def plot_trace(panel: "Axes", result: Result, floor: float | None = None) -> None:
    """Plot the objective and the energy over the steps, the step that was chosen, and the energy's floor."""
    panel.set_title("Adaptation, step by step")
    if not result.trace:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "not adapted", ha="center", va="center", transform=panel.transAxes)
        return
    steps = [row["step"] for row in result.trace]
    for key, name, colour in (("objective", "objective", _FAINT), ("cnn", "energy", STRUCTURE_COLOURS[0])):
        if key in result.trace[0]:
            panel.plot(steps, [row[key] for row in result.trace], color=colour, linewidth=2, label=name)
    shown = "cnn" if "cnn" in result.trace[0] else "objective"
    best = result.facts.get("best_step")
    if best is not None and result.decision.keeps_adapted:
        chosen = result.trace[best][shown]
        panel.plot([best], [chosen], "o", color=STRUCTURE_COLOURS[2], markersize=7, label="chosen step", clip_on=False)
    if floor is not None and "cnn" in result.trace[0]:
        panel.axhline(floor, color=_INK, linestyle="--", linewidth=1.2, label="least possible energy")
    _scale(panel)
    panel.set_xlabel("step")
    panel.set_ylabel("nats")
    panel.grid(color=_FAINT, alpha=0.25)
    panel.legend(frameon=False, fontsize=10)


def _scale(panel: "Axes") -> None:
    """Count steps in whole numbers, and nats on a logarithmic axis where all of them are positive."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if min(float(np.min(line.get_ydata())) for line in panel.lines) <= 0:
        return
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def pixel_aspect(result: Result) -> float:
    """Return the height of a pixel of the network's slices, as a multiple of its width."""
    assert result.case is not None and isinstance(result.prepared, PreparedSlices)
    grid = result.prepared.grid
    rows, columns = (
        result.case.spacing[axis] * native / resampled
        for axis, native, resampled in zip(
            result.prepared.orientation.axes[1:], grid.native, grid.resampled, strict=True
        )
    )
    return rows / columns


def shown_slice(result: Result) -> tuple[NDArray[np.float32], dict[str, NDArray[Any]]]:
    """Return intensities and label maps by name of one slice, cropped to its structures, `(height, width)`.

    Without structures it is cropped to what is not 0.
    """
    if not isinstance(result.prepared, PreparedSlices):
        raise InputError(
            "Only a scan from a file or a case that became slices can be drawn; a tensor does not say how its slices "
            "lie, and a volume has none. Look at the page of result.save."
        )
    volumes = {"Before": result.source.labels, "After": result.adapted.labels}
    if result.prepared.reference is not None:
        volumes = {"Reference": result.prepared.reference, **volumes}
    first = next(iter(volumes.values()))
    number = int((first > 0).flatten(1).sum(1).argmax())
    picture = result.prepared.volume[number, 0].numpy()
    maps = {name: labels[number].numpy() for name, labels in volumes.items()}
    found = np.stack([labels > 0 for labels in maps.values()])
    seen = found if found.any() else np.stack([picture > 0])
    window = tuple(_extent(np.asarray(seen.any(axis=(0, 2 - axis)))) for axis in (0, 1))
    return picture[window], {name: labels[window] for name, labels in maps.items()}


def _extent(seen: NDArray[np.bool_]) -> slice:
    """Return the range that is seen, with a margin of a third of its length if it is short."""
    inside = np.flatnonzero(seen)
    if not inside.size:
        return slice(None)
    margin = max(3, min(12, (int(inside[-1]) - int(inside[0])) // 3))
    return slice(max(int(inside[0]) - margin, 0), int(inside[-1]) + 1 + margin)


def _differences(maps: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.bool_]]:
    if "Reference" not in maps:
        return {"Changed": maps["Before"] != maps["After"]}
    return {f"Wrong {name.lower()}": maps[name] != maps["Reference"] for name in ("Before", "After")}


def _show(panel: "Axes", name: str, picture: NDArray[Any], aspect: float) -> None:
    panel.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect=aspect)
    panel.set_title(name)
    panel.set_anchor("N")
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set_visible(False)


def _mark_sides(panel: "Axes", result: Result) -> None:
    """Write which side of the patient is left and which is right in the picture."""
    from matplotlib.patheffects import withStroke

    assert result.case is not None and isinstance(result.prepared, PreparedSlices)
    orientation = result.prepared.orientation
    direction = result.case.affine[:3, orientation.axes[2]] * (-1 if orientation.flips[2] else 1)
    world = int(np.abs(direction).argmax())
    start, end = (("L", "R"), ("P", "A"), ("I", "S"))[world][:: 1 if direction[world] > 0 else -1]
    for at, letter, side in ((0.02, start, "left"), (0.98, end, "right")):
        mark = panel.text(at, 0.98, letter, ha=side, va="top", transform=panel.transAxes, color=_INK)
        mark.set_path_effects([withStroke(linewidth=2.5, foreground=_GROUND)])


def _legend(figure: "Figure", colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    named = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=named, loc="outside lower center", ncols=min(len(named), 6), frameon=False)
