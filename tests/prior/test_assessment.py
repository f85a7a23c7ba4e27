"""Assessment of made-up label maps of a few pixels."""

import math
from dataclasses import replace

import pytest
import torch

from scantune.prior.assessment import assess
from scantune.prior.coefficients import SHIPPED
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings
from scantune.prior.odds import dice_from
from tests.toy_labels import disc, home_of_discs, readings_of


@pytest.fixture
def home() -> HomeReadings:
    return home_of_discs()


def test_what_is_as_at_home_is_fine_and_as_good(home: HomeReadings) -> None:
    found = assess(readings_of(disc(12.1, 6.05), disc(12.1, 6.05, shift=1)), home)
    assert found.verdict == "fine"
    assert found.expected == pytest.approx(0.92, abs=0.01)
    assert found.reasons == ()
    assert found.labelled


def test_an_empty_prediction_has_failed_though_nothing_changes_it(home: HomeReadings) -> None:
    found = assess(readings_of(torch.zeros(2, 40, 40, dtype=torch.long)), home)
    assert (found.verdict, found.expected) == ("failed", 0.0)
    assert found.reasons[0] == "No structure 1 was found."


def test_a_vanished_structure_counts_nothing_and_is_named(home: HomeReadings) -> None:
    found = assess(readings_of(disc(12.0, 0.0)), home, names=("rim", "core"))
    assert found.structures[1] == 0
    assert found.verdict == "failed"
    assert found.reasons[0] == "No core was found."


def test_a_structure_that_some_people_lack_may_be_missing() -> None:
    people = [readings_of(disc(12.0, 6.0 if number % 2 else 0.0)) for number in range(8)]
    home = HomeReadings.fit(people, [[0.9, 0.9]] * 8)
    found = assess(readings_of(disc(12.0, 0.0)), home)
    assert found.structures[1] == pytest.approx(0.45)


@pytest.mark.parametrize("radius", [6.0, 20.0])
def test_an_unusual_size_is_held_against_a_prediction(home: HomeReadings, radius: float) -> None:
    found = assess(readings_of(disc(radius, radius / 2)), home)
    assert found.verdict == "failed"
    assert "unusually" in found.reasons[0]


def test_the_more_unsteady_the_worse(home: HomeReadings) -> None:
    estimates = [assess(readings_of(disc(12, 6), disc(12, 6, shift=shift)), home).expected for shift in (1, 2, 4, 8)]
    assert estimates == sorted(estimates, reverse=True)
    assert estimates[-1] < 0.5 * estimates[0]


def test_a_perturbation_that_tells_nothing_at_home_tells_little(home: HomeReadings) -> None:
    shaky = readings_of(disc(12, 6), disc(12, 6, shift=9))
    loose = HomeReadings.fit([shaky] * 8, [[0.94, 0.90]] * 8)
    assert assess(shaky, loose).expected == pytest.approx(0.92, abs=0.01)
    assert assess(shaky, home).expected < 0.5


def test_of_two_perturbations_the_one_that_changes_less_at_home_counts_more() -> None:
    """Each excess alone is the same in odds."""
    at_home = {"moved": (0.98, 0.98), "mirrored": (0.4, 0.4)}
    home = HomeReadings.fit([replace(readings_of(disc(12, 6)), steadiness=at_home)] * 8, [[0.9, 0.9]] * 8)

    def found(name: str) -> float:
        worse = float(dice_from(home.unsteady[name][0, 0] + 1))
        return assess(replace(readings_of(disc(12, 6)), steadiness=at_home | {name: (worse, worse)}), home).expected

    moved, mirrored = found("moved"), found("mirrored")
    assert moved < mirrored < 0.89


def test_swapped_structures_are_seen_by_their_contacts(home: HomeReadings) -> None:
    swapped = disc(12, 6)
    swapped = torch.where(swapped > 0, 3 - swapped, 0)
    usual = readings_of(disc(12, 6), disc(12, 6, shift=1))
    found = Readings(usual.sizes, usual.steadiness, readings_of(swapped).contacts)
    assert assess(found, home).verdict == "failed"
    assert "neighbours" in assess(found, home).reasons[0]


def test_the_estimate_lies_in_its_range_and_few_people_give_none(home: HomeReadings) -> None:
    readings = readings_of(disc(12, 6), disc(12, 6, shift=3))
    found = assess(readings, home)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.expected < found.high
    few = assess(readings, replace(home, people=4))
    assert (few.low, few.high) == (None, None)


def test_without_labels_it_is_an_agreement(home: HomeReadings) -> None:
    found = assess(readings_of(disc(12.1, 6.05), disc(12.1, 6.05, shift=1)), replace(home, dice=None))
    assert not found.labelled
    assert found.expected == pytest.approx(1.0, abs=0.01)


def rated(home: HomeReadings, dice: float) -> HomeReadings:
    """Return home readings of a network of another Dice."""
    return replace(home, dice=torch.full((2,), dice, dtype=torch.double))


def test_no_prediction_of_a_poor_network_is_fine_and_the_usual_ones_are_left_alone(home: HomeReadings) -> None:
    usual = readings_of(disc(12.1, 6.05), disc(12.1, 6.05, shift=1))
    found = assess(usual, rated(home, 0.5))
    assert (found.verdict, found.leave) == ("doubtful", True)
    assert assess(usual, rated(home, 0.9)).verdict == "fine"
    assert assess(usual, replace(home, dice=None)).verdict == "fine"


def test_a_fine_prediction_is_unlikely_to_miss_the_least_dice(home: HomeReadings) -> None:
    """Both are as good a share of home, but of the poorer network one in ten such predictions fails."""
    nearly = readings_of(disc(13.75, 6.9), disc(13.75, 6.9, shift=1))
    good, poorer = (assess(nearly, rated(home, dice)) for dice in (0.98, 0.8))
    assert good.expected / good.home == pytest.approx(poorer.expected / poorer.home)
    assert good.low is not None
    assert poorer.low is not None
    assert good.low > SHIPPED.least > poorer.low
    assert (good.verdict, poorer.verdict, poorer.leave) == ("fine", "doubtful", False)


def test_a_structure_that_most_people_lack_does_not_make_a_network_poor() -> None:
    people = [readings_of(disc(12.0, 0.0)) for _ in range(8)]
    home = HomeReadings.fit(people, [[0.9, 0.0]] * 8)
    assert assess(people[0], home).verdict == "fine"


def test_a_structure_that_no_home_prediction_has_tells_nothing() -> None:
    home = HomeReadings.fit([readings_of(disc(12.0, 0.0))] * 6, [[0.9, 0.0]] * 6)
    assert math.isfinite(assess(readings_of(disc(12.0, 6.0)), home).expected)
    assert assess(readings_of(disc(12.0, 0.0)), home).structures[0] == pytest.approx(0.9, abs=0.01)


def test_shipped_coefficients_can_only_make_an_estimate_worse() -> None:
    assert min(SHIPPED.unsteady, SHIPPED.size, SHIPPED.contact) >= 0
