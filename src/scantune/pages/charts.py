"""Charts as SVG inside a page: the way of an adaptation, and how far each layer is from the prior."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scantune.pages.markup import number, text

WIDTH = 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 16, 14, 40
_ROW = 20  # of a layer


@dataclass(frozen=True)
class Scale:
    """Values to places, in proportion to them or to their logarithms."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "Scale":
        """A scale that shows all values, logarithmic where they are positive and far apart."""
        there = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(there), max(there)
        if low > 0 and high / low > 2:
            return cls(low / 1.15, high * 1.15, start, end, True)
        room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(low - room, high + room, start, end)

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values, three or more where there are so many."""
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


def trace_chart(trace: Sequence[Mapping[str, Any]], levels: Mapping[str, float | None], chosen: int | None) -> str:
    """The objective, and the energy where there is one, over the steps.

    Args:
        trace: Rows of `Result.trace`.
        levels: Energies to draw as lines across, by name, such as the least possible one.
        chosen: The step whose parameters were kept; None where none was.
    """
    height = 280
    lines = {
        name: [float(row[key]) if row.get(key) is not None else math.nan for row in trace]
        for key, name in (("objective", "objective"), ("cnn", "energy"))
        if any(key in row for row in trace)
    }
    marks = {name: value for name, value in levels.items() if value is not None and "energy" in lines}
    y = Scale.over([value for line in lines.values() for value in line] + [*marks.values()], height - _BOTTOM, _TOP)
    x = Scale(0, max(len(trace) - 1, 1), _LEFT, WIDTH - _RIGHT)
    parts = [_grid(y), _steps(x, len(trace), height)]
    parts += [_line(name, line, x, y, trace) for name, line in lines.items()]
    parts += [_level(name, y(value)) for name, value in marks.items()]
    shown = lines.get("energy", lines["objective"])
    if chosen is not None and chosen < len(shown) and math.isfinite(shown[chosen]):
        parts.append(
            f'<circle class="chosen" cx="{x(chosen):.1f}" cy="{y(shown[chosen]):.1f}" r="6">'
            f"<title>chosen step {chosen}: {number(shown[chosen])} nats</title></circle>"
        )
    told = "; ".join(f"{name} from {number(line[0])} to {number(line[-1])}" for name, line in lines.items())
    return _svg(height, f"Steps 0 to {len(trace) - 1}: {told}.", parts)


def layers_chart(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """The divergence of each layer from the prior before and after, a row each, in nats.

    Args:
        before: By name of the layer.
        after: The same names.
    """
    left = 30 + 6 * max(map(len, before))
    height = _TOP + _ROW * len(before) + _BOTTOM
    x = Scale.over([*before.values(), *after.values()], left, WIDTH - _RIGHT)
    bottom = height - _BOTTOM
    parts = []
    for tick in x.ticks():
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + WIDTH - _RIGHT) / 2:.0f}" y="{height - 6}" text-anchor="middle">nats</text>')
    for row, (name, value) in enumerate(before.items()):
        y, end = _TOP + _ROW * (row + 0.5), after.get(name, math.nan)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{text(name)}</text>')
        if not (math.isfinite(value) and math.isfinite(end)):
            continue
        kind = "better" if end <= value else "worse"
        parts.append(f'<line class="{kind}" x1="{x(value):.1f}" x2="{x(end):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<circle class="before" cx="{x(value):.1f}" cy="{y:.1f}" r="4"/>')
        parts.append(
            f'<circle class="after" cx="{x(end):.1f}" cy="{y:.1f}" r="4.5">'
            f"<title>{text(name)}: {number(value)} before, {number(end)} after</title></circle>"
        )
    lower = sum(after.get(name, math.nan) <= value for name, value in before.items())
    return _svg(height, f"{lower} of {len(before)} layers came closer to the prior.", parts)


def _level(name: str, y: float) -> str:
    """A line across, with its name."""
    line = f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text class="name" x="{_LEFT + 4}" y="{y - 4:.1f}">{text(name)}</text>'


def _grid(y: Scale) -> str:
    parts = []
    for tick in y.ticks():
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    middle = (y.start + y.end) / 2
    parts.append(f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">nats</text>')
    return "".join(parts)


def _steps(x: Scale, rows: int, height: int) -> str:
    """The axis of steps, in whole numbers."""
    each = max(round(_round_step(max(rows - 1, 1) / 6)), 1)
    parts = [
        f'<text x="{x(step):.1f}" y="{height - _BOTTOM + 16}" text-anchor="middle">{step}</text>'
        for step in range(0, rows, each)
    ]
    middle = (x.start + x.end) / 2
    return "".join([*parts, f'<text x="{middle:.0f}" y="{height - 6}" text-anchor="middle">step</text>'])


def _line(name: str, line: Sequence[float], x: Scale, y: Scale, trace: Sequence[Mapping[str, Any]]) -> str:
    there = [
        (step, value) for step, value in enumerate(line) if math.isfinite(value) and (value > 0 or not y.logarithmic)
    ]
    points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in there)
    parts = [f'<polyline class="{name}" points="{points}"/>']
    if len(there) <= 60:
        for step, value in there:
            refused = "" if trace[step].get("valid", True) else " refused"
            told = f"step {step}: {name} {number(value)}" + (", could not be chosen" if refused else "")
            where = f'cx="{x(step):.1f}" cy="{y(value):.1f}" r="3"'
            parts.append(f'<circle class="{name}{refused}" {where}><title>{told}</title></circle>')
    return "".join(parts)


def _round_step(step: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step * (1 - 1e-9))


def _svg(height: float, told: str, parts: Sequence[str]) -> str:
    frame = f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{text(told)}"'
    return f'<svg class="chart" {frame}>{"".join(parts)}</svg>'
