"""Templates and their filters: strings, numbers, times and links."""

import json
import math

import pytest
from jinja2 import UndefinedError

from scantune.pages import render

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' Müller 名前.nii"


def test_json_in_a_page_survives_any_string():
    value = {NASTY: ["</script><!--", "\u2028", 1.5]}
    embedded = render.environment().from_string("{{ value | tojson }}").render(value=value)
    assert json.loads(embedded) == value
    assert "<" not in embedded


def test_a_template_needs_all_its_values():
    with pytest.raises(UndefinedError, match="title"):
        render.render("index.html")


def test_a_link_to_any_file_name_is_an_address():
    assert render.link("a b#1?.html") == "a%20b%231%3F.html"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (123.456, "123"),
        (1234567.0, "1234567"),
        (0, "0"),
        (-0.5, "-0.500"),
        (math.nan, render.UNKNOWN),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert render.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (59.4, "59 s"), (125, "2 min 5 s"), (None, render.UNKNOWN), (119.7, "2 min 0 s")],
)
def test_durations_have_their_units(seconds, text):
    assert render.duration(seconds) == text
