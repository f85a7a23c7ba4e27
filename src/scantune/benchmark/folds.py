"""Folds of an experiment: the people of a data set take turns at training and testing, each fold with its networks."""

from collections.abc import Sequence
from dataclasses import dataclass

from scantune.training.sources import CaseSource


@dataclass(frozen=True)
class Fold:
    """One fold of an experiment.

    Attributes:
        name: Its number from 1; empty for an experiment without folds.
        home: Source of the training scans.
        tested: Sources of the test scans; the first is `home` if that has people to test in this fold.
    """

    name: str
    home: CaseSource
    tested: tuple[CaseSource, ...]


def folds_of(sources: Sequence[CaseSource]) -> list[Fold]:
    """Return the folds of an experiment, in which every person is tested once.

    A data set has as many folds as its adapter says, or one if its option `fold` was given. If the numbers of data sets
    differ, those with fewer folds take no part in the tests of later folds.

    Args:
        sources: Sources of the scans; networks are trained on the first.
    """
    count = max(source.folds() for source in sources)
    if count == 1:
        return [Fold("", sources[0], tuple(sources))]
    return [
        Fold(
            str(number),
            sources[0].in_fold(number),
            tuple(source.in_fold(number) for source in sources if number <= source.folds()),
        )
        for number in range(1, count + 1)
    ]
