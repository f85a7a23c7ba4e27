"""Settings of protocols that are drawn anew for every person, from ranges and choices in a protocol file."""

import json

import numpy as np
import pytest

from scantune.cohorts.folder import centre_record
from scantune.errors import InputError
from scantune.simulate import COHORTS, Cohort
from scantune.simulate.anatomies.spine import Spine
from scantune.simulate.protocols import bundled_centres, centres_from_toml
from scantune.simulate.varied import Between, OneOf, extremes, usual, vary

VARIED = """
[a]
field = { one_of = [3.0, 1.5] }
sequence = { kind = "spin-echo", tr = { from = 2000, to = 6000 }, te = 100.0 }
coil = { kind = "surface", side = { one_of = ["front", "back"] }, strength = 0.4 }
fov = [16.0, 16.0]
snr = { from = 10.0, to = 40.0 }
splits = { train = 3, test = 2 }
"""
PLAIN = VARIED.replace("{ one_of = [3.0, 1.5] }", "3.0").replace("{ from = 2000, to = 6000 }", "4000.0")
PLAIN = PLAIN.replace('{ one_of = ["front", "back"] }', '"front"').replace("{ from = 10.0, to = 40.0 }", "25.0")
PEOPLE = range(40)


def centre(text=VARIED):
    return centres_from_toml(text, "mine.toml")["a"]


def protocols():
    return [centre().protocol_of(np.random.default_rng(person)) for person in PEOPLE]


def scans(text, **options):
    cohort = Cohort("toy", Spine, Spine.labels, given={"a": centre(text)})
    return list(cohort.cases("a", "train", slices=1, **options))


def test_every_person_is_scanned_with_settings_of_their_own_within_the_ranges():
    found = protocols()
    for values, low, high in (
        ([one.sequence.tr for one in found], 2000, 6000),
        ([one.snr for one in found], 10, 40),
    ):
        assert len(set(values)) == len(PEOPLE)
        assert low <= min(values) < low + 0.2 * (high - low) < high - 0.2 * (high - low) < max(values) <= high
    assert {one.field for one in found} == {1.5, 3.0}
    assert {one.coil.side for one in found} == {"front", "back"}


def test_what_does_not_vary_is_as_the_file_says():
    for one in protocols():
        assert (one.sequence.te, one.coil.strength, one.fov, one.name) == (100.0, 0.4, (16.0, 16.0), "a")


def test_the_same_person_is_scanned_the_same_way_again():
    assert protocols() == protocols()
    for one, again in zip(scans(VARIED), scans(VARIED, count=2), strict=False):
        np.testing.assert_array_equal(one.image, again.image)
    assert not np.array_equal(scans(VARIED, count=1)[0].image, scans(VARIED, count=1, seed=1)[0].image)


def test_the_centre_itself_shows_the_middle_of_ranges_and_the_first_of_choices():
    assert centre().protocol == centre(PLAIN).protocol


def test_ranges_change_how_people_are_scanned_but_not_who_they_are():
    for one, other in zip(scans(VARIED), scans(PLAIN), strict=True):
        np.testing.assert_array_equal(one.reference, other.reference)
        assert not np.array_equal(one.image, other.image)


def test_a_range_without_width_gives_the_scans_of_the_plain_value():
    narrow = PLAIN.replace("snr = 25.0", "snr = { from = 25.0, to = 25.0 }")
    for one, other in zip(scans(narrow), scans(PLAIN), strict=True):
        np.testing.assert_array_equal(one.image, other.image)


def test_centres_without_ranges_are_known_as_before_and_draw_nothing():
    plain = centre(PLAIN)
    assert plain.identity == repr(plain.protocol) and plain.protocol_of(np.random.default_rng(0)) is plain.protocol
    assert "varied" not in centre_record(plain)["protocol"]
    for name in COHORTS:
        if name != "spine-varied":
            assert not any(one.varied for one in bundled_centres(name).values())


def test_other_ranges_are_another_centre():
    wider = centre(VARIED.replace("to = 40.0", "to = 50.0").replace("from = 10.0", "from = 0.1"))
    assert len({one.identity for one in (centre(), centre(PLAIN), wider)}) == 3


def test_the_order_of_settings_and_how_numbers_are_written_change_nothing():
    text = VARIED.replace("from = 2000, to = 6000", "to = 6000.0, from = 2000.0")
    first, *middle, last = text.strip().splitlines()
    other = centre("\n".join([first, last, *reversed(middle)]))
    assert other.identity == centre().identity
    assert other.protocol_of(np.random.default_rng(1)) == centre().protocol_of(np.random.default_rng(1))


def test_the_manifest_has_the_ranges_as_the_file_does():
    protocol = json.loads(json.dumps(centre_record(centre())))["protocol"]
    assert protocol["snr"] == 25.0
    assert protocol["varied"] == {
        "field": {"one_of": [3.0, 1.5]},
        "sequence": {"tr": {"from": 2000, "to": 6000}},
        "coil": {"side": {"one_of": ["front", "back"]}},
        "snr": {"from": 10.0, "to": 40.0},
    }


def test_stated_contrasts_vary_by_tissue():
    text = "[a]\nsequence = { kind = 'given', values = { CSF = { from = 0.1, to = 0.9 }, white = 0.5 } }"
    given = centre(text)
    assert dict(given.protocol.sequence.values) == {"CSF": 0.5, "white": 0.5}
    drawn = [given.protocol_of(np.random.default_rng(person)).sequence.values for person in PEOPLE]
    assert len({values["CSF"] for values in drawn}) == len(PEOPLE)
    assert {values["white"] for values in drawn} == {0.5}


def test_variations_can_be_chosen_from_and_put_in_place():
    varied = {"one": Between(1.0, 2.0), "inner": {"two": OneOf(("x", "y"))}}
    table = {"one": {}, "inner": {"two": {}, "rest": 3}, "left": 4}
    assert usual(table, varied) == {"one": 1.5, "inner": {"two": "x", "rest": 3}, "left": 4}
    assert list(extremes(table, varied)) == [
        {"one": 1.0, "inner": {"two": "x", "rest": 3}, "left": 4},
        {"one": 2.0, "inner": {"two": "y", "rest": 3}, "left": 4},
    ]
    drawn = vary({"one": 0.0, "inner": {"two": "", "rest": 3}}, varied, np.random.default_rng(0))
    assert 1 <= drawn["one"] <= 2 and drawn["inner"]["two"] in "xy" and drawn["inner"]["rest"] == 3


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("snr = { from = 20.0 }", r"The snr in \[a\] of mine.toml must be a range .* but is {'from': 20.0}"),
        ("snr = { from = 20.0, to = 10.0 }", "must be a range"),
        ('snr = { from = "low", to = "high" }', "must be a range"),
        ("snr = { from = 10.0, to = inf }", "must be a range"),
        ("snr = { from = 10.0, to = 20.0, step = 1.0 }", "must be a range"),
        ("snr = { one_of = [] }", r"or a choice such as { one_of = \[1.5, 3.0\] }"),
        ("snr = { one_of = 3.0 }", "or a choice"),
        ("snr = { from = -5.0, to = 20.0 }", "snr of protocol a must be above 0, but is -5.0"),
        ('snr = { one_of = [5.0, "high"] }', "setting snr in .* must be a number, got 'high'"),
        ("slices = { from = 2, to = 4 }", "setting slices in .* must be a whole number, got 3.0"),
        ('coil = { kind = "surface", side = { one_of = ["front", "left"] } }', "setting side in the coil .* 'left'"),
        ("snrr = { from = 1.0, to = 2.0 }", "Unknown setting 'snrr'"),
    ],
)
def test_ranges_that_cannot_be_are_refused_when_the_file_is_read(rest, says):
    with pytest.raises(InputError, match=says):
        centre(f'[a]\nsequence = {{ kind = "spin-echo", tr = 4000, te = 100 }}\n{rest}')


def test_times_of_a_sequence_vary_within_what_it_can_do():
    with pytest.raises(InputError, match="te of the sequence spin-echo must be shorter than its tr"):
        centre('[a]\nsequence = { kind = "spin-echo", tr = { from = 50, to = 500 }, te = { from = 60, to = 90 } }')
