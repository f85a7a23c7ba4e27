"""Contact sheets: one slice of each centre of a cohort, without and with the outlines of its structures."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scantune.plots.colours import STRUCTURE_COLOURS, structure_colours
from scantune.scans.case import Case
from scantune.scans.grid import Orientation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_GROUND, _INK = "black", "#f2f2f2"
_WIDE = 2.5  # inches per centre
_MOST_COLUMNS = 4
_MARGIN = 0.5  # of the structures' extent that a close-up shows on every side
_INSIDE = 0.9  # level of an outline; above 0.5, so that two structures with a common border have a line each
_CLOSE = 0.5  # structures that fill less than this share of the picture get a close-up
_SEQUENCES = {
    "spin-echo": "spin echo",
    "spoiled-gradient-echo": "spoiled gradient echo",
    "mprage": "MPRAGE",
    "flair": "FLAIR",
    "balanced-ssfp": "bSSFP",
    "given": "stated contrast",
}

ExtentBox = tuple[float, float, float, float]


@dataclass(frozen=True)
class CentreView:
    """A centre on the sheet.

    Attributes:
        centre: Its name.
        caption: How it scans, in a few words.
        case: One of its scans, with a reference.
    """

    centre: str
    caption: str
    case: Case


@dataclass(frozen=True)
class _Slice:
    """One slice `(rows, columns)` of a scan, and the edges of its pixels in mm."""

    picture: NDArray[np.float32]
    labels: NDArray[np.integer]
    pixel: tuple[float, float]

    @property
    def size(self) -> tuple[float, float]:
        """Height and width in mm."""
        return self.picture.shape[0] * self.pixel[0], self.picture.shape[1] * self.pixel[1]


def contact_sheet(views: Sequence[CentreView], labels: Mapping[str, int], title: str) -> "Figure":
    """Draw one slice per centre, above as it was scanned and below with the outlines of the structures.

    The slice is the one in the middle of the largest structure, with as much of it above as below. All centres are
    drawn on one scale of mm. Where the structures are small, the lower picture is a close-up, framed in the upper one.

    Args:
        views: The centres.
        labels: Label value of each structure.
        title: Stands above everything.
    """
    from matplotlib.figure import Figure

    slices = [_middle(view.case) for view in views]
    rows = math.ceil(len(views) / _MOST_COLUMNS)
    columns = math.ceil(len(views) / rows)
    height, width = (max(one.size[axis] for one in slices) for axis in (0, 1))
    tall = _WIDE * height / width
    lines = math.ceil(len(labels) / _beside(labels, _WIDE * columns))
    high = rows * (2 * tall + 0.8) + 0.6 + 0.2 * lines
    figure = Figure(figsize=(_WIDE * columns, high), facecolor=_GROUND, layout="constrained")
    figure.suptitle(title, color=_INK, fontsize=13)
    cells = np.atleast_1d(figure.subfigures(rows, columns, squeeze=False)).ravel()
    for cell, view, one, box in zip(cells, views, slices, _close_ups(slices, height / width), strict=False):
        upper, lower = cell.subplots(2, 1)
        upper.set_anchor("S")
        lower.set_anchor("N")
        upper.set_title(view.centre, color=_INK, fontsize=11)
        for panel in (upper, lower):
            _show(panel, one, (height, width))
        _outline(lower, one, labels)
        if box:
            _frame(upper, lower, box)
        lower.set_xlabel(_wrapped(view.caption), color=_INK, fontsize=8)
    for cell in cells:
        cell.set_facecolor(_GROUND)
    _legend(figure, labels)
    return figure


def scanner_summary(record: Mapping[str, Any]) -> str:
    """Return a short description of a centre's protocol, from its record in a cohort's manifest."""
    protocol = record["protocol"]
    sequence, coil = protocol["sequence"], protocol["coil"]["kind"]
    times = [f"{name.upper()} {sequence[name]:g}" for name in ("tr", "ti", "te") if name in sequence]
    parts = [
        " ".join(part for part in (record["vendor"], f"{protocol['field']:g} T") if part),
        _SEQUENCES.get(sequence["kind"], sequence["kind"]),
        f"{', '.join(times)} ms" if times else "",
        f"{sequence['flip']:g}°" if "flip" in sequence else "",
        "" if coil == "body" else f"{coil} coil",
        f"{protocol['in_plane']:.3g} mm, slices {protocol['thickness']:g} mm",
    ]
    return ", ".join(part for part in parts if part)


def _wrapped(caption: str) -> str:
    """Return the caption in lines that fit a cell, broken only after commas."""
    whole = ", ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in caption.split(", "))
    return "\n".join(textwrap.wrap(whole, 36))


def _middle(case: Case) -> _Slice:
    """Return the slice with as much of the largest structure above as below; the middle one without structures."""
    assert case.reference is not None
    orientation = Orientation.closest(case.affine, "axial")
    picture, labels = orientation.to_slices(case.image), orientation.to_slices(case.reference)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    below = (labels == sizes.argmax()).sum(axis=(1, 2)).cumsum()
    number = int(np.searchsorted(below, below[-1] / 2, side="right"))
    pixel = (case.spacing[orientation.axes[1]], case.spacing[orientation.axes[2]])
    window = _content(picture[number])
    return _Slice(picture[number][window], labels[number][window], pixel)


def _content(picture: NDArray[np.float32], margin: int = 4) -> tuple[slice, slice]:
    """Return the window of a picture without its empty borders."""
    seen = picture > 0
    spans = [np.flatnonzero(seen.any(axis=1 - axis)) for axis in (0, 1)]
    if not spans[0].size:
        return slice(None), slice(None)
    rows, columns = (slice(max(int(span[0]) - margin, 0), int(span[-1]) + 1 + margin) for span in spans)
    return rows, columns


def _show(panel: "Axes", one: _Slice, size: tuple[float, float]) -> None:
    """Show a slice in the middle of a panel of a size in mm."""
    height, width = one.size
    low, high = np.percentile(one.picture, [0.5, 99.5])
    extent = (-width / 2, width / 2, -height / 2, height / 2)
    panel.imshow(one.picture, cmap="gray", vmin=low, vmax=high, extent=extent, interpolation="bilinear")
    panel.set(xlim=(-size[1] / 2, size[1] / 2), ylim=(-size[0] / 2, size[0] / 2), xticks=[], yticks=[])
    panel.set_facecolor(_GROUND)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _outline(panel: "Axes", one: _Slice, labels: Mapping[str, int]) -> None:
    """Draw the outlines of the structures."""
    rows, columns = one.labels.shape
    height, width = one.size
    y = height / 2 - one.pixel[0] * (np.arange(rows) + 0.5)
    x = one.pixel[1] * (np.arange(columns) + 0.5) - width / 2
    for name, (colour, line) in _looks(labels).items():
        mask = (one.labels == labels[name]).astype(float)
        if mask.any() and not mask.all():
            panel.contour(x, y, mask, levels=[_INSIDE], colors=colour, linestyles=line, linewidths=0.7)


def _extent(one: _Slice) -> ExtentBox | None:
    """Return left, right, bottom and top of all structures in mm; None without structures."""
    spans = [np.flatnonzero((one.labels > 0).any(axis=1 - axis)) for axis in (0, 1)]
    if not spans[0].size:
        return None
    (top, bottom), (left, right) = (
        (edge * float(span[0]), edge * float(span[-1] + 1)) for span, edge in zip(spans, one.pixel, strict=True)
    )
    height, width = one.size
    return left - width / 2, right - width / 2, height / 2 - bottom, height / 2 - top


def _close_ups(slices: Sequence[_Slice], shape: float) -> list[ExtentBox | None]:
    """Return the extent of each slice's close-up, all on one scale; None if structures fill the pictures.

    Args:
        slices: Of the centres.
        shape: Height of a close-up over its width.
    """
    extents = [_extent(one) for one in slices]
    there = [(box, one.size) for box, one in zip(extents, slices, strict=True) if box]
    shares = [max((box[3] - box[2]) / size[0], (box[1] - box[0]) / size[1]) for box, size in there]
    if not there or np.median(shares) > _CLOSE:
        return [None] * len(slices)
    half = (0.5 + _MARGIN) * max(max(box[1] - box[0], (box[3] - box[2]) / shape) for box, _ in there)
    return [box and _around(box, half, shape, one.size) for box, one in zip(extents, slices, strict=True)]


def _around(box: ExtentBox, half: float, shape: float, size: tuple[float, float]) -> ExtentBox:
    """Return a box about the middle of another, moved to lie in a picture of a height and width in mm.

    Half its width, and its height over its width, are given.
    """
    x = _within((box[0] + box[1]) / 2, abs(size[1] / 2 - half))
    y = _within((box[2] + box[3]) / 2, abs(size[0] / 2 - half * shape))
    return x - half, x + half, y - half * shape, y + half * shape


def _within(place: float, limit: float) -> float:
    return min(max(place, -limit), limit)


def _frame(upper: "Axes", lower: "Axes", box: ExtentBox) -> None:
    from matplotlib.patches import Rectangle

    left, right, bottom, top = box
    upper.add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor=_INK, linewidth=0.9))
    lower.set(xlim=(left, right), ylim=(bottom, top))


def _looks(labels: Mapping[str, int]) -> dict[str, tuple[str, str]]:
    """Return colour and line style of each structure. Beyond the number of colours, lines are dashed."""
    lines = ("solid", "dashed", "dotted")
    return {
        name: (colour, lines[min(number // len(STRUCTURE_COLOURS), 2)])
        for number, (name, colour) in enumerate(structure_colours(labels).items())
    }


def _beside(labels: Mapping[str, int], width: float) -> int:
    """Return how many names fit into a row of a legend of a width in inches."""
    each = 0.55 + 0.085 * max(map(len, labels), default=0)  # a line, and its letters
    return max(1, min(len(labels), int(width / each)))


def _legend(figure: "Figure", labels: Mapping[str, int]) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=colour, linestyle=line, label=name) for name, (colour, line) in _looks(labels).items()
    ]
    figure.legend(
        handles=lines,
        columnspacing=1.2,
        loc="outside lower center",
        ncols=_beside(labels, figure.get_figwidth()),
        frameon=False,
        labelcolor=_INK,
        fontsize=9,
    )
