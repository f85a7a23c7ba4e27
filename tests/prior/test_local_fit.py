"""Local coefficients, fitted to made-up graded readings whose true coefficients are known."""

import math
from dataclasses import replace

import pytest
import torch

from scantune.errors import InputError
from scantune.prior.assessment import assess
from scantune.prior.coefficients import SHIPPED, Contest
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.local_fit import GradedPrediction, _Table, fit_coefficients, fit_range
from scantune.prior.odds import dice_from
from tests.toy_labels import LOCAL

HOME_ML = 10.0
CONTACTS = ((1.0, 0.0),)


def person(size=HOME_ML, moved=0.98, dice=0.9):
    steadiness = {"moved": (moved,), "mirrored": (moved,)}
    return GradedReadings((size,), steadiness, CONTACTS, (dice,))


@pytest.fixture(scope="module")
def home() -> HomeReadings:
    people = [person(HOME_ML * (1 + 0.02 * number), 0.98 - 0.002 * number) for number in range(8)]
    return HomeReadings.fit(people, [each.dice for each in people])


def graded(home, true, noise=0.0):
    """Predictions whose Dice follow from coefficients; size and steadiness vary by family."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(8):
        for family in ("small", "large", "shaky", "both"):
            for severity in (0.3, 0.5, 0.9):
                size = HOME_ML * math.exp({"small": -1, "large": 1, "both": 0.7}.get(family, 0) * severity)
                moved = 0.97 - (0.6 * severity if family in ("shaky", "both") else 0)
                readings = person(size, moved)
                expected = assess(readings, home, coefficients=true).expected
                dice = min(max(expected + noise * float(torch.randn(1, generator=generator)), 0.0), 1.0)
                found.append(GradedPrediction(number, family, replace(readings, dice=(dice,)), home))
    return found


def test_the_table_expects_what_the_assessment_does(home):
    predictions = graded(home, SHIPPED)
    expected = _Table.of(predictions).expected(SHIPPED)
    assert expected.tolist() == pytest.approx([assess(each.readings, home).expected for each in predictions])


def test_coefficients_that_made_the_truth_are_found_and_win(home):
    true = replace(SHIPPED, unsteady=SHIPPED.unsteady * math.exp(-0.6), size=SHIPPED.size * math.exp(0.6))
    fitted, error = fit_coefficients(graded(home, true))
    assert (fitted.unsteady, fitted.size) == pytest.approx((true.unsteady, true.size), rel=1e-6)
    assert error.local < 0.5 * error.shipped


def test_the_shipped_coefficients_stay_where_they_are_right(home):
    fitted, error = fit_coefficients(graded(home, SHIPPED))
    assert fitted == SHIPPED
    assert error.local == error.shipped == pytest.approx(0, abs=1e-12)


def test_left_out_people_and_families_have_no_part_in_their_own_score(home):
    predictions = graded(home, SHIPPED)
    wrong = [
        replace(each, readings=replace(each.readings, dice=(0.0,)))
        if (each.person, each.family) == (0, "shaky")
        else each
        for each in predictions
    ]
    _, error = fit_coefficients(wrong)
    alone = [each for each in wrong if (each.person, each.family) == (0, "shaky")]
    missed = sum(assess(each.readings, home).expected for each in alone) / len(alone)
    assert error.shipped == pytest.approx(missed / 32)
    assert error.local == pytest.approx(error.shipped, rel=0.1)


def test_the_range_gets_as_wide_as_the_truth_scatters(home):
    shares = []
    for noise in (0.01, 0.1):
        predictions = graded(home, SHIPPED, noise)
        widest, shifts, reach = fit_range(predictions, SHIPPED)
        table = _Table.of(predictions)
        worse = table.worse(SHIPPED)
        low, high = table.dice(widest[0] * worse + shifts[0]), table.dice(widest[1] * worse - shifts[1])
        inside = ((low <= table.truth) & (table.truth <= high)).double().mean()
        assert 0.6 < float(inside) <= 1
        assert reach.local <= reach.shipped
        shares.append(float((high - low).mean()))
    assert shares[0] < shares[1]


def test_odds_are_summed_as_in_the_formula(home):
    table = _Table.of(graded(home, SHIPPED)[:1])
    assert float(table.dice(torch.zeros(1, 1, dtype=torch.double))) == pytest.approx(0.9)
    one = torch.ones(1, 1, dtype=torch.double)
    assert float(table.dice(one)) == pytest.approx(0.9 * float(dice_from(one)))


def test_each_local_setting_counts_only_where_it_does_no_worse():
    assert LOCAL.used == replace(SHIPPED, unsteady=1.0)
    assert LOCAL.used_gain is None
    other = replace(LOCAL, error=Contest(0.05, 0.04), reach=Contest(0.02, 0.02), value=Contest(0.2, 0.1))
    assert other.used == replace(SHIPPED, widest=(2.0, 0.5))
    assert other.used_gain == 0.08


def test_local_coefficients_survive_their_tensors(home):
    again = HomeReadings.from_tensors(replace(home, local=LOCAL).tensors())
    assert again.local.counts == LOCAL.counts
    for name, values in LOCAL.tensors().items():
        torch.testing.assert_close(again.local.tensors()[name], values)
    assert HomeReadings.from_tensors(home.tensors()).local is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("error", torch.tensor([0.1])), ("coefficients", torch.full((7,), math.nan)), ("counts", None)],
)
def test_damaged_local_coefficients_are_refused(home, name, value):
    stored = replace(home, local=LOCAL).tensors()
    stored.pop(f"local/{name}") if value is None else stored.update({f"local/{name}": value})
    with pytest.raises(InputError, match=name):
        HomeReadings.from_tensors(stored)
