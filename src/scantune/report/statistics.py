"""Statistics of paired scores: permutation tests, confidence intervals, how many were made worse.

The unit is the person. Scans of one person, and runs of one scan (training seeds, folds), are not independent, so
they are averaged before anything is tested. scipy makes the tests.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

PERMUTATIONS = 100_000
"""Random sign patterns of a permutation test, as in the paper. If there are no more patterns, all are taken."""

BOOTSTRAP_RESAMPLES = 9_999
CONFIDENCE_LEVEL = 0.95
"""Level of the confidence intervals."""

_BATCH = 2_000  # resamples held in memory at a time
_SEED = 0

RunKey = tuple[Hashable, ...]
"""What one score belongs to: person, session, fold and seed."""


@dataclass(frozen=True)
class Comparison:
    """A method compared with another one on the same people.

    Attributes:
        people: Number of people with scores of both methods.
        changed: Number of people with different scores; the others do not affect the test.
        mean: Mean change over the people, positive if the method is better.
        low: Lower end of the bootstrap confidence interval of the mean change; NaN for fewer than two people.
        high: Upper end of the interval.
        p: P-value of the two-sided paired permutation test; NaN without people, 1 for one person.
        smallest_p: The smallest p-value that a test with this number of changed people can give.
        worse: Fraction of the people whose score fell.
        worst: The lowest change of a person.
    """

    people: int
    changed: int
    mean: float
    low: float
    high: float
    p: float
    smallest_p: float
    worse: float
    worst: float


def compare(changes: Sequence[ArrayLike]) -> list[Comparison]:
    """Test several sets of paired changes, one number per person, against no change.

    Sets with the same number of people are tested together, with the same sign patterns.
    """
    sets = [np.asarray(one, dtype=np.float64) for one in changes]
    p, low, high = (np.full(len(sets), np.nan) for _ in range(3))
    for people in {one.size for one in sets} - {0}:
        here = [number for number, one in enumerate(sets) if one.size == people]
        table = np.stack([sets[number] for number in here])
        p[here] = permutation_p(table)
        low[here], high[here] = confidence_interval(table)
    return [_comparison(one, *(float(value[number]) for value in (p, low, high))) for number, one in enumerate(sets)]


def _comparison(changes: NDArray[np.float64], p: float, low: float, high: float) -> Comparison:
    changed = int(np.count_nonzero(changes))
    mean, worse, worst = (
        (float(changes.mean()), float((changes < 0).mean()), float(changes.min())) if changes.size else (np.nan,) * 3
    )
    return Comparison(changes.size, changed, mean, low, high, p, smallest_p(changed), worse, worst)


def person_means(scores: pd.Series) -> pd.Series:
    """Return the mean score of each person over sessions, folds and seeds, without scores that are NaN.

    Args:
        scores: Scores by run; the first level of the index is the person.
    """
    return scores.dropna().groupby(level=0, sort=False).mean()


def run_changes(before: pd.Series, after: pd.Series) -> pd.Series:
    """Return the change of each run that has both scores.

    A run that only one side has (in an unfinished experiment) is left out, so that a change is always one between
    scores of the same scan and the same training run.
    """
    return (after - before.reindex(after.index)).dropna()


def person_changes(before: pd.Series, after: pd.Series) -> pd.Series:
    """Return the mean change of each person over the runs that have both scores."""
    return person_means(run_changes(before, after))


def permutation_p(changes: ArrayLike) -> NDArray[np.float64]:
    """Return p-values of two-sided paired permutation tests of the mean change.

    Under the null hypothesis the two scores of a person may be swapped, which flips the sign of the change. Up to 16
    people all sign patterns are taken. More people have more than `PERMUTATIONS` patterns, of which as many random
    ones are taken, and the observed pattern counts as one more.

    Args:
        changes: One row per test, `(tests, people)`.

    Returns:
        `(tests,)`; 1 for a single person, whose sign pattern says nothing in a two-sided test.
    """
    from scipy import stats

    table = np.asarray(changes, dtype=np.float64)
    if table.shape[1] < 2:
        return np.ones(len(table))
    result = stats.permutation_test(
        (table,),
        _mean,
        permutation_type="samples",
        n_resamples=PERMUTATIONS,
        batch=_BATCH,
        axis=-1,
        vectorized=True,
        random_state=np.random.default_rng(_SEED),
    )
    return np.asarray(result.pvalue, dtype=np.float64)


def smallest_p(people: int) -> float:
    """Return the smallest p-value of `permutation_p`: that of people who all change in the same direction."""
    patterns = 1 << people
    if patterns <= PERMUTATIONS:
        return min(1.0, 2.0 / patterns)
    return 2.0 / (PERMUTATIONS + 1)


def people_needed(p: float) -> int:
    """Return the smallest number of people with which a p-value can be below a threshold, such as 0.05."""
    return next(people for people in range(1, 64) if smallest_p(people) < p)


def bonferroni(p: ArrayLike, comparisons: int) -> NDArray[np.float64]:
    """Return p-values corrected for the number of comparisons, at most 1."""
    return np.minimum(np.asarray(p, dtype=np.float64) * comparisons, 1.0)


def confidence_interval(
    changes: ArrayLike, statistic: Callable[..., Any] = np.mean
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return percentile bootstrap intervals at level `CONFIDENCE_LEVEL`, drawing people with replacement.

    With few people such intervals are too narrow: three people can only be drawn in ten different ways.

    Args:
        changes: One row per interval, `(intervals, people)`.
        statistic: A statistic of the people with an argument `axis`.

    Returns:
        Lower and upper ends, `(intervals,)` each; NaN for fewer than two people.
    """
    from scipy import stats

    table = np.asarray(changes, dtype=np.float64)
    if table.shape[1] < 2:
        return np.full(len(table), np.nan), np.full(len(table), np.nan)
    ends = stats.bootstrap(
        (table,),
        statistic,
        axis=-1,
        vectorized=True,
        confidence_level=CONFIDENCE_LEVEL,
        method="percentile",
        n_resamples=BOOTSTRAP_RESAMPLES,
        batch=_BATCH,
        random_state=np.random.default_rng(_SEED),
    ).confidence_interval
    return np.asarray(ends.low, dtype=np.float64), np.asarray(ends.high, dtype=np.float64)


def _mean(changes: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    return np.asarray(np.mean(changes, axis=axis))
