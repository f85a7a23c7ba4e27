"""What figures of a report have in common: colours and marks of methods, style, files."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scantune.report.study import BASELINE, METHOD_ORDER, SUPERVISED, Study
from scantune.scans.files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FigureBuilder = Callable[[Study], "dict[str, Figure]"]
"""Makes the figures of a study, each with a name of its own; none if the study has nothing for them."""

DOTS_PER_INCH = 130
PANELS_PER_ROW = 3
"""Panels beside each other."""

INK, FAINT = "#222222", "#d9d9d9"

METHOD_STYLES: dict[str, tuple[str, str]] = {
    BASELINE: ("#999999", "v"),
    "strong baseline": ("#000000", "_"),
    SUPERVISED: ("#000000", "*"),
    "entropy": ("#e69f00", "s"),
    "dae": ("#56b4e9", "D"),
    "ae": ("#009e73", "P"),
    "batchnorm": ("#cc79a7", "X"),
    "foe-cnn": ("#0072b2", "^"),
    "foe-cnn-pca": ("#d55e00", "o"),
}
"""Colour and mark of the methods (M. Okabe and K. Ito's palette, safe for colour-blind readers)."""

LINE_STYLES = tuple(METHOD_STYLES[name] for name in METHOD_ORDER)
"""Colours and marks of anything else that there are several of, such as sites."""

DASH_STYLES = ("-", "--", "-.", ":")
"""Of lines, where there are more than colours."""

OTHER_METHOD_STYLES = (("#7f6d00", "<"), ("#5d3a9b", ">"), ("#1a85ff", "p"), ("#994f00", "h"), ("#4b4b4b", "d"))
"""Of methods without one of their own, in turn."""

_STYLE = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "scantune",
    "legend.frameon": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style of all figures within the context."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def method_styles(study: Study, methods: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each method. The compared method looks like the strong baseline."""
    known = METHOD_STYLES | {study.against: METHOD_STYLES["strong baseline"]}
    others = [method for method in methods if method not in known]
    return {
        method: known[method]
        if method in known
        else OTHER_METHOD_STYLES[others.index(method) % len(OTHER_METHOD_STYLES)]
        for method in methods
    }


def line_styles(things: Sequence[Any]) -> dict[Any, dict[str, Any]]:
    """Return colour, marker and dashes of a line for each of several things, so that no two differ by colour alone."""
    styles = itertools.cycle(itertools.product(DASH_STYLES, LINE_STYLES))
    return {
        thing: {"color": colour, "marker": mark, "linestyle": dash}
        for thing, (dash, (colour, mark)) in zip(things, styles, strict=False)
    }


def draw_line(panel: "Axes", points: Mapping[int, float], look: Mapping[str, Any], number: int) -> None:
    """Draw a line through points. Of many points only some are marked, different ones for each `number`."""
    few = len(points) <= 30
    every = 1 if few else (0.03 * (number % 6 + 1), 0.2)
    panel.plot([*points], [*points.values()], markersize=5, markeredgewidth=0, markevery=every, **look)


def panel_grid(count: int, size: tuple[float, float], **shared: Any) -> "tuple[Figure, list[Axes]]":
    """Return a figure with a number of panels of a size in inches, at most three per row, with room below and above."""
    from matplotlib.figure import Figure

    across = min(count, PANELS_PER_ROW)
    down = -(-count // across)
    figure = Figure(figsize=(max(size[0] * across, 6.5), size[1] * down + 1.2), layout="constrained")
    panels = list(figure.subplots(down, across, squeeze=False, **shared).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def legend_below(figure: "Figure", handles: Sequence[Any]) -> None:
    """Add one legend for all panels below them, in as few rows of about equal length as the names need."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    most = max(1, int(figure.get_figwidth() / (0.085 * longest + 0.7)))  # inches of a name, and of its mark
    lines = -(-len(handles) // most)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=-(-len(handles) // lines))


def light_grid(panel: "Axes", axis: str = "y") -> None:
    """Add thin grid lines behind the data."""
    panel.grid(axis=axis, color=FAINT, linewidth=0.8)  # type: ignore[arg-type]
    panel.set_axisbelow(True)


def save_png_and_svg(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure as PNG and SVG; the files are complete or not there at all.

    Args:
        figure: To write.
        path: Without an ending.
    """
    files = [path.with_name(f"{path.name}{ending}") for ending in (".png", ".svg")]
    with figure_style():
        for file in files:
            plain = {"Date": None} if file.suffix == ".svg" else {}  # the same figure gives the same bytes
            write_whole(file, lambda temporary, plain=plain: _write(figure, temporary, plain))  # type: ignore[misc]
            figure.set_layout_engine("none")  # everything has its place now, and finding it takes time
    return files


def _write(figure: "Figure", file: Path, metadata: dict[str, Any]) -> None:
    figure.savefig(file, dpi=DOTS_PER_INCH, metadata=metadata)
