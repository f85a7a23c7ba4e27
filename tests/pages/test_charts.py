"""Charts: scales, lines, levels and chosen steps."""

import math
from xml.etree import ElementTree

import pytest

from scantune.pages.charts import Axis, layers_chart, trace_chart
from tests.page_cases import trace


def test_a_scale_puts_values_in_proportion():
    plain = Axis(0, 10, 100, 200)
    assert [plain(v) for v in (0, 5, 10)] == [100, 150, 200]
    steep = Axis(0.01, 1, 0, 100, logarithmic=True)
    assert steep(0.1) == pytest.approx(50)
    assert steep.ticks() == pytest.approx([0.01, 0.1, 1.0])
    assert Axis(0.05, 0.18, 0, 1, logarithmic=True).ticks() == pytest.approx([0.05, 0.07, 0.1])
    for values in ([0.3], [0, 0], [-1, 2], [1e-6, 1e6], [math.nan, 1.0]):
        scale = Axis.over(values, 0, 100)
        assert all(0 <= scale(v) <= 100 for v in values if math.isfinite(v))
        assert 1 <= len(scale.ticks()) <= 13


def test_the_trace_is_drawn_with_levels_the_chosen_step_and_refused_ones():
    chart = ElementTree.fromstring(trace_chart(trace(), {"least possible": 0.01, "typical": None}, 3))
    energy = chart.find("polyline[@class='energy']").get("points").split()
    assert len(energy) == 5
    heights = [float(point.split(",")[1]) for point in energy]
    assert heights == sorted(heights)  # further down at every step
    chosen = chart.find("circle[@class='chosen']")
    assert f"{chosen.get('cx')},{chosen.get('cy')}" == energy[3]
    assert len(chart.findall("circle[@class='energy refused']")) == 1
    assert len(chart.findall("line[@class='level']")) == 1
    assert "energy from 0.180 to 0.0200" in chart.get("aria-label")


@pytest.mark.parametrize(("energies", "end"), [((1.0, 0.5, 0.25, 0.125), "start"), ((0.125, 0.25, 0.5, 1.0), "end")])
def test_the_name_of_a_level_stands_where_curves_are_farther_away(energies, end):
    rows = [{"step": n, "objective": value, "cnn": value} for n, value in enumerate(energies)]
    chart = ElementTree.fromstring(trace_chart(rows, {"least possible": 0.11}, None))
    name = next(text for text in chart.findall("text[@class='name']"))
    assert (name.text, name.get("text-anchor")) == ("least possible", end)


def test_a_trace_without_energy_or_with_odd_numbers_is_drawn():
    rows = [{"step": n, "objective": value} for n, value in enumerate([1.0, -0.5, math.inf, 0.2])]
    chart = ElementTree.fromstring(trace_chart(rows, {"least possible": 0.01}, None, "one minus Dice"))
    titles = [text.text for text in chart.findall("text")]
    assert "one minus Dice" in titles
    assert "nats" not in titles
    assert len(chart.find("polyline").get("points").split()) == 3
    assert "least possible" not in "".join(chart.itertext())


def test_layers_move_left_where_they_came_closer():
    chart = ElementTree.fromstring(layers_chart({"a": 0.4, "b<": 0.1}, {"a": 0.1, "b<": 0.2}))
    better, worse = chart.find("line[@class='better']"), chart.find("line[@class='worse']")
    assert float(better.get("x2")) < float(better.get("x1"))
    assert float(worse.get("x2")) > float(worse.get("x1"))
    assert chart.get("aria-label").startswith("1 of 2 layers")
