"""Statistics of paired scores, against plain loops over every pattern."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scantune.report import statistics


def enumerated_p(changes):
    """A two-sided sign-flip test of the mean, by a loop over all patterns."""
    observed = math.fsum(changes)
    above = below = patterns = 0
    for signs in itertools.product((1, -1), repeat=len(changes)):
        total = math.fsum(sign * change for sign, change in zip(signs, changes, strict=True))
        above += total >= observed - 1e-12
        below += total <= observed + 1e-12
        patterns += 1
    return min(1.0, 2 * min(above, below) / patterns)


class TestPermutation:
    @pytest.mark.parametrize("people", [2, 3, 5, 9])
    def test_agrees_with_a_loop_over_all_patterns(self, people):
        changes = np.random.default_rng(people).normal(0.5, 1.0, size=(4, people))
        expected = [enumerated_p(row) for row in changes]
        np.testing.assert_allclose(statistics.permutation_p(changes), expected, rtol=1e-12)

    def test_ties_and_people_without_a_change_count_as_in_the_loop(self):
        changes = [[0.1, 0.1, -0.1, 0.0, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.3, 0.2, 0.1, 0.0, 0.0, 0.0]]
        expected = [enumerated_p(row) for row in changes]
        np.testing.assert_allclose(statistics.permutation_p(changes), expected, rtol=1e-12)

    def test_swapping_the_two_methods_changes_nothing(self):
        changes = np.random.default_rng(0).normal(0.3, 1.0, size=(3, 8))
        np.testing.assert_allclose(statistics.permutation_p(changes), statistics.permutation_p(-changes), rtol=1e-12)

    @pytest.mark.parametrize("people", [1, 2, 4, 10, 16])
    def test_the_smallest_p_is_two_of_all_patterns(self, people):
        everyone_better = np.random.default_rng(1).uniform(0.1, 1.0, size=(1, people))
        assert statistics.permutation_p(everyone_better)[0] == pytest.approx(2 / 2**people)
        assert statistics.smallest_p(people) == pytest.approx(2 / 2**people)

    def test_beyond_sixteen_people_patterns_are_drawn_and_never_give_zero(self):
        everyone_better = np.random.default_rng(1).uniform(0.1, 1.0, size=(1, 30))
        assert statistics.permutation_p(everyone_better)[0] == pytest.approx(2 / 100_001)
        assert statistics.smallest_p(30) == pytest.approx(2 / 100_001)

    def test_drawn_patterns_agree_with_the_normal_approximation(self):
        changes = np.random.default_rng(3).normal(0.15, 1.0, size=40)
        z = changes.sum() / np.sqrt((changes**2).sum())  # under sign flips: mean 0, variance the sum of squares
        drawn = statistics.permutation_p(changes[None])[0]
        assert drawn == pytest.approx(2 * stats.norm.sf(abs(z)), rel=0.05)

    def test_under_the_null_no_more_than_alpha_are_significant(self):
        tests, alphas = 2000, (0.01, 0.05, 0.1, 0.25)
        rng = np.random.default_rng(7)
        skewed = rng.exponential(1.0, size=(tests, 9)) - rng.exponential(1.0, size=(tests, 9))
        p = statistics.permutation_p(skewed)
        for alpha in alphas:
            error = np.sqrt(alpha * (1 - alpha) / tests)
            assert (p <= alpha).mean() <= alpha + 3 * error
            attainable = np.floor(alpha * 2**8) / 2**8
            assert (p <= alpha).mean() >= attainable - 3 * error

    def test_people_needed_for_the_papers_thresholds(self):
        assert statistics.people_needed(0.05) == 6
        assert statistics.people_needed(0.05 / 5) == 8
        assert statistics.people_needed(0.05 / 2) == 7

    def test_bonferroni_multiplies_and_stops_at_one(self):
        np.testing.assert_allclose(statistics.bonferroni([0.001, 0.02, 0.4], 5), [0.005, 0.1, 1.0])


class TestConfidence:
    def test_agrees_with_a_loop_that_draws_people(self):
        changes = np.random.default_rng(2).normal(0.1, 0.5, size=12)
        rng = np.random.default_rng(5)
        means = [changes[rng.integers(0, 12, size=12)].mean() for _ in range(20_000)]
        low, high = statistics.confidence_interval(changes[None])
        assert [low[0], high[0]] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.012)

    def test_covers_the_truth_about_as_often_as_it_says(self):
        samples = np.random.default_rng(4).normal(0.2, 1.0, size=(300, 30))
        low, high = statistics.confidence_interval(samples)
        assert 0.90 <= np.mean((low <= 0.2) & (high >= 0.2)) <= 0.98  # the percentile interval is a little narrow

    def test_one_person_has_none(self):
        low, high = statistics.confidence_interval([[0.1]])
        assert np.isnan(low).all() and np.isnan(high).all()


class TestPeople:
    def test_seeds_and_sessions_of_a_person_are_averaged(self):
        scores = {("anna", "ED", 0): 0.5, ("anna", "ES", 0): 0.7, ("anna", "ED", 1): 0.9, ("ben", "ED", 0): 0.4}
        assert statistics.person_means(pd.Series(scores)).to_dict() == pytest.approx({"anna": 0.7, "ben": 0.4})

    def test_a_score_that_is_missing_is_left_out(self):
        scores = {("anna", 0): math.nan, ("anna", 1): 0.4, ("ben", 0): math.nan}
        assert statistics.person_means(pd.Series(scores)).to_dict() == {"anna": 0.4}

    def test_changes_are_taken_within_a_run_that_both_sides_have(self):
        before = {("anna", 0): 0.5, ("anna", 1): 0.1, ("ben", 0): 0.4, ("carl", 0): 0.3}
        after = {("anna", 0): 0.6, ("ben", 0): 0.3, ("dora", 0): 0.9}
        assert statistics.person_changes(pd.Series(before), pd.Series(after)).to_dict() == pytest.approx(
            {"anna": 0.1, "ben": -0.1}
        )


class TestCompare:
    def test_every_number_of_a_comparison_by_hand(self):
        better, mixed = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.2, -0.1, 0.0, -0.3]
        first, second = statistics.compare([better, mixed])
        assert (first.people, first.changed, first.worse, first.worst) == (6, 6, 0.0, 0.1)
        assert first.p == first.smallest_p == pytest.approx(2 / 64)
        assert first.mean == pytest.approx(0.35)
        assert 0.1 < first.low < 0.35 < first.high < 0.6
        assert (second.people, second.changed, second.worse, second.worst) == (4, 3, 0.5, -0.3)
        assert second.p == pytest.approx(enumerated_p(mixed))
        assert second.smallest_p == pytest.approx(2 / 8)
        assert second.mean == pytest.approx(-0.05)

    def test_nobody_and_one_person_give_no_evidence(self):
        nobody, one = statistics.compare([[], [0.3]])
        assert nobody.people == 0 and math.isnan(nobody.p) and math.isnan(nobody.mean)
        assert one.people == 1 and one.p == 1.0 and math.isnan(one.low)

    def test_the_same_samples_give_the_same_numbers_again(self):
        changes = list(np.random.default_rng(0).normal(size=(3, 20)))
        assert statistics.compare(changes) == statistics.compare(changes)
