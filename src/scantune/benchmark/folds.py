"""Folds of an experiment: the people of a data set take turns at training and testing, each fold with its networks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scantune.datasets import DATASETS
from scantune.training.sources import CaseSource, DataSetSource


@dataclass(frozen=True)
class Fold:
    """One turn.

    Attributes:
        name: Its number from 1; empty where there is but one.
        home: What networks are trained on.
        tested: Whose scans are tested; the first is `home`, where that has people to test in this turn.
    """

    name: str
    home: CaseSource
    tested: tuple[CaseSource, ...]


def folds_of(sources: Sequence[CaseSource]) -> list[Fold]:
    """All turns of an experiment, so that every person is tested once.

    A data set has as many folds as its adapter says, or one where its option `fold` was given. Where data sets have
    different numbers of them, those with fewer take no part in the tests of later turns.

    Args:
        sources: Where scans come from; networks are trained on the first.
    """
    counts = [_count(source) for source in sources]
    if max(counts) == 1:
        return [Fold("", sources[0], tuple(sources))]
    turns = []
    for number in range(1, max(counts) + 1):
        here = [_at(source, number, count) for source, count in zip(sources, counts, strict=True)]
        tested = tuple(source for source, count in zip(here, counts, strict=True) if number <= count)
        turns.append(Fold(str(number), here[0], tested))
    return turns


def _count(source: CaseSource) -> int:
    if not isinstance(source, DataSetSource) or "fold" in source.options:
        return 1
    return DATASETS[source.name].folds


def _at(source: CaseSource, number: int, count: int) -> CaseSource:
    """The source in a turn; one with fewer folds begins anew, as far as networks are concerned."""
    if count == 1 or not isinstance(source, DataSetSource):
        return source
    return replace(source, options={**source.options, "fold": (number - 1) % count + 1})
