"""Statistics of paired scores: permutation tests, confidence intervals, how many were made worse.

The unit is the person. Scans of one person, and runs of one scan (training seeds, folds), are not independent, so
they are averaged before anything is tested. scipy does the testing.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PERMUTATIONS = 100_000
"""Random sign patterns of a permutation test, as in the paper; where there are no more patterns, all are taken."""

BOOTSTRAP_RESAMPLES = 9_999
CONFIDENCE_LEVEL = 0.95
"""Of the confidence intervals."""

_BATCH = 2_000  # resamples held in memory at a time
_SEED = 0

RunKey = tuple[Hashable, ...]
"""What one score belongs to; the first entry is the person, the others tell session, fold and seed apart."""


@dataclass(frozen=True)
class Comparison:
    """A method against another one, on the same people.

    Attributes:
        people: Number of people that have scores of both.
        changed: How many of them have different scores; the others tell the test nothing.
        mean: Mean change over the people; above 0 where the method is better.
        low: Lower end of the bootstrap confidence interval of the mean change; NaN for fewer than two people.
        high: Its upper end.
        p: Of the two-sided paired permutation test; NaN for nobody, 1 for one person.
        smallest_p: The least p that a test with so many changed people can give.
        worse: Fraction of the people whose score fell.
        worst: The change of the person who lost most.
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
    """Test several sets of paired changes, one number per person each, against no change.

    Sets of equally many people are tested in one go, with the same sign patterns.
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


def person_means(scores: Mapping[RunKey, float]) -> dict[Hashable, float]:
    """The mean score of each person, over sessions, folds and seeds; scores that are NaN are left out."""
    gathered: dict[Hashable, list[float]] = {}
    for run, score in scores.items():
        if not np.isnan(score):
            gathered.setdefault(run[0], []).append(score)
    return {person: float(np.mean(values)) for person, values in gathered.items()}


def person_changes(before: Mapping[RunKey, float], after: Mapping[RunKey, float]) -> dict[Hashable, float]:
    """The mean change of each person, over the runs that have both scores.

    A run that only one side has (of an experiment that is not finished) is left out of both, so that the change is
    always one between scores of the same scan and the same training run.
    """
    return person_means({run: score - before[run] for run, score in after.items() if run in before})


def permutation_p(changes: ArrayLike) -> NDArray[np.float64]:
    """P-values of two-sided paired permutation tests of the mean change.

    Under the null hypothesis the two scores of a person may be swapped, which flips the sign of the change. All sign
    patterns are taken where there are at most `PERMUTATIONS` (up to 16 people), and else so many random ones, of which
    the observed one counts as one more.

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
    """The least p-value that `permutation_p` can give: when all people change in the same direction."""
    patterns = 1 << people
    if patterns <= PERMUTATIONS:
        return min(1.0, 2.0 / patterns)
    return 2.0 / (PERMUTATIONS + 1)


def people_needed(p: float) -> int:
    """The least number of people with whom a p-value can be below a threshold, such as 0.05."""
    return next(people for people in range(1, 64) if smallest_p(people) < p)


def bonferroni(p: ArrayLike, comparisons: int) -> NDArray[np.float64]:
    """P-values corrected for the number of comparisons that were made, at most 1."""
    return np.minimum(np.asarray(p, dtype=np.float64) * comparisons, 1.0)


def confidence_interval(
    changes: ArrayLike, statistic: Callable[..., Any] = np.mean
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile bootstrap intervals at level `CONFIDENCE_LEVEL`, drawing people with replacement.

    With few people such intervals are too narrow: three people can be drawn in ten different ways only.

    Args:
        changes: One row per interval, `(intervals, people)`.
        statistic: Of the people; takes `axis`.

    Returns:
        Lower and upper ends, `(intervals,)` each; NaN where there are fewer than two people.
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
