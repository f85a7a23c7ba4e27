"""Charts as SVG inside a page: the course of an adaptation, and how far each layer is from the prior.

Templates draw them, not matplotlib. A chart of matplotlib is two to three times as large and takes a hundred times as
long. It neither follows the light and dark colours of the page nor names its points under the pointer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scantune.pages.render import number, render

ROW_HEIGHT = 20
"""Height of a layer's row in the chart of layers, in pixels."""
LETTER_WIDTH = 6.5
"""Mean width of a letter, in pixels."""


@dataclass(frozen=True)
class Axis:
    """Map from values to places, linear in the values or in their logarithms."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "Axis":
        """Return a scale that shows all values; it is logarithmic if they are positive and far apart."""
        finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(finite), max(finite)
        if low > 0 and high / low > 2:
            return cls(low / 1.15, high * 1.15, start, end, True)
        room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return round values, at least three if the range has as many."""
        if not self.logarithmic:
            step = _round_step((self.high - self.low) / 4)
            first = math.ceil(self.low / step)
            return [step * n for n in range(first, math.floor(self.high / step) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for marks in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
            ticks = [m * 10.0**d for d in decades for m in marks if self.low <= m * 10.0**d <= self.high]
            if len(ticks) >= 3:
                break
        return ticks

    def places(self, values: Sequence[float]) -> list[tuple[float, float]]:
        """Return the rounded place of each value, and the value."""
        return [(round(self(value), 1), value) for value in values]


@dataclass(frozen=True)
class Frame:
    """The rectangle in a chart that its axes enclose, in pixels from the upper left corner."""

    height: int
    left: int
    width: int = 460
    top: int = 14

    @property
    def right(self) -> int:
        """Return the right edge."""
        return self.width - 16

    @property
    def bottom(self) -> int:
        """Return the lower edge."""
        return self.height - 40

    @property
    def middle_x(self) -> int:
        """Return the centre between left and right."""
        return round((self.left + self.right) / 2)

    @property
    def middle_y(self) -> int:
        """Return the centre between top and bottom."""
        return round((self.top + self.bottom) / 2)


@dataclass(frozen=True)
class TracePoint:
    """A step of an adaptation, drawn at `(x, y)`; a refused one could not be chosen by the guard."""

    step: int
    value: float
    x: float
    y: float
    refused: bool


@dataclass(frozen=True)
class Level:
    """A horizontal line at `y`, whose name begins or ends at `x`."""

    name: str
    y: float
    x: float
    anchor: str


def trace_chart(
    trace: Sequence[Mapping[str, Any]],
    levels: Mapping[str, float | None],
    chosen: int | None,
    objective: str = "objective",
) -> str:
    """Draw the objective over the steps, and the energy if the trace has one.

    Args:
        trace: Rows of `Result.trace`.
        levels: Energies to draw as horizontal lines, by name, such as the least possible one.
        chosen: The step whose parameters were kept; None if none was.
        objective: Name of what is minimised, for the axis of a chart without energies.
    """
    lines = {
        name: [float(row[key]) if row.get(key) is not None else math.nan for row in trace]
        for key, name in (("objective", "objective"), ("cnn", "energy"))
        if any(key in row for row in trace)
    }
    marks = {name: value for name, value in levels.items() if value is not None and "energy" in lines}
    values = [value for line in lines.values() for value in line] + [*marks.values()]
    longest = max((len(f"{tick:g}") for tick in Axis.over(values, 0, 1).ticks()), default=0)
    frame = Frame(height=280, left=26 + 7 * longest)
    y = Axis.over(values, frame.bottom, frame.top)
    x = Axis(0, max(len(trace) - 1, 1), frame.left, frame.right)
    points = {name: _points(line, x, y, trace) for name, line in lines.items()}
    changes = "; ".join(f"{name} from {number(line[0])} to {number(line[-1])}" for name, line in lines.items())
    return render(
        "trace_chart.svg",
        frame=frame,
        axis="nats" if "energy" in lines else objective,
        label=f"Steps 0 to {len(trace) - 1}: {changes}.",
        y_ticks=y.places(y.ticks()),
        x_ticks=x.places(_whole_steps(len(trace))),
        lines=[{"name": name, "points": line} for name, line in points.items()],
        levels=[_level(name, round(y(value), 1), frame, points) for name, value in marks.items()],
        chosen=next((p for p in points.get("energy", points["objective"]) if p.step == chosen), None),
    )


def layers_chart(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Draw the divergence of each layer from the prior before and after, one row per layer, in nats.

    Args:
        before: Divergence by name of the layer.
        after: Divergence of the same layers.
    """
    frame = Frame(height=14 + ROW_HEIGHT * len(before) + 40, left=30 + 6 * max(map(len, before)))
    x = Axis.over([*before.values(), *after.values()], frame.left, frame.right)
    rows = []
    for row, (name, value) in enumerate(before.items()):
        end = after.get(name, math.nan)
        known = math.isfinite(value) and math.isfinite(end)
        places = {"x_before": round(x(value), 1), "x_after": round(x(end), 1)} if known else {}
        y = frame.top + ROW_HEIGHT * (row + 0.5)
        rows.append({"name": name, "y": y, "known": known, "before": value, "after": end, **places})
    closer = sum(after.get(name, math.nan) <= value for name, value in before.items())
    label = f"{closer} of {len(before)} layers came closer to the prior."
    return render("layers_chart.svg", frame=frame, label=label, x_ticks=x.places(x.ticks()), rows=rows)


def _level(name: str, y: float, frame: Frame, lines: Mapping[str, Sequence[TracePoint]]) -> Level:
    """Return a level with its name at that end of the line where curves are farther away."""
    width = LETTER_WIDTH * len(name)
    ends = (
        (Level(name, y, frame.left + 4, "start"), (frame.left, frame.left + width)),
        (Level(name, y, frame.right - 4, "end"), (frame.right - width, frame.right)),
    )

    def distance(span: tuple[float, float]) -> float:
        near = [abs(p.y - y + 8) for line in lines.values() for p in line if span[0] <= p.x <= span[1]]
        return min(near, default=math.inf)

    return max(ends, key=lambda end: distance(end[1]))[0]


def _points(line: Sequence[float], x: Axis, y: Axis, trace: Sequence[Mapping[str, Any]]) -> list[TracePoint]:
    """Return the steps whose value can be drawn."""
    return [
        TracePoint(step, value, round(x(step), 1), round(y(value), 1), not trace[step].get("valid", True))
        for step, value in enumerate(line)
        if math.isfinite(value) and (value > 0 or not y.logarithmic)
    ]


def _whole_steps(rows: int) -> list[int]:
    """Return the steps to write under the axis."""
    return list(range(0, rows, max(round(_round_step(max(rows - 1, 1) / 6)), 1)))


def _round_step(step: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is no less than a step."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))
