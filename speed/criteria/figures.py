"""Statistics of the benchmark: ranks, areas under ROC curves, bootstrap intervals."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import numpy as np
from scipy.stats import rankdata, spearmanr

Item = TypeVar("Item")

ROUNDS = 2000


def auroc(bad: Sequence[float], good: Sequence[float]) -> float:
    """Compute the probability that a bad case has a larger value than a good one, ties counting half."""
    if not len(bad) or not len(good):
        return math.nan
    ranks = rankdata([*bad, *good])
    return float((ranks[: len(bad)].sum() - len(bad) * (len(bad) + 1) / 2) / (len(bad) * len(good)))


def sensitivity(bad: Sequence[float], good: Sequence[float], false_alarms: float = 0.05) -> float:
    """Compute the share of bad cases above the lowest limit that at most this share of good ones exceeds."""
    if not len(bad) or not len(good):
        return math.nan
    limits = sorted({-math.inf, *good})
    limit = next(each for each in limits if np.mean(np.asarray(good) > each) <= false_alarms)
    return float(np.mean(np.asarray(bad) > limit))


def rank_correlation(badness: Sequence[float], dice: Sequence[float]) -> float:
    """Compute the rank correlation of goodness with Dice; NaN where all are equal."""
    if len(set(badness)) < 2 or len(set(dice)) < 2:
        return math.nan
    return -float(spearmanr(badness, dice).statistic)


def interval(
    items: Sequence[Item], unit: Callable[[Item], Hashable], statistic: Callable[[Sequence[Item]], float]
) -> tuple[float, float]:
    """Compute the 95 % interval of a statistic by a bootstrap over units, such as networks or people."""
    groups: dict[Hashable, list[Item]] = defaultdict(list)
    for item in items:
        groups[unit(item)].append(item)
    parts, generator = list(groups.values()), np.random.default_rng(0)
    found = []
    for _ in range(ROUNDS):
        drawn = [item for number in generator.integers(len(parts), size=len(parts)) for item in parts[number]]
        found.append(statistic(drawn))
    known = [value for value in found if not math.isnan(value)]
    return (float(np.quantile(known, 0.025)), float(np.quantile(known, 0.975))) if known else (math.nan, math.nan)
