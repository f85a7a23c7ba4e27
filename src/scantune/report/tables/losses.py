"""Which of the autoencoders' losses follow the Dice, along the adaptation."""

import math
from collections.abc import Sequence

import pandas as pd

from scantune.report.scores import SiteColumn
from scantune.report.statistics import person_means
from scantune.report.study import Study
from scantune.report.tables.autoencoders import dice_along
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section

AUTOENCODER_LOSSES = ("xn", "f1", "f2", "f3", "y")
"""The autoencoders: of the normalised image, of features at three depths, of the output."""


def loss_table(study: Study) -> ReportTable | None:
    """Return rank correlations of each autoencoder's loss and the Dice along a run."""
    columns, curves = dice_along(study)
    rows = [(method, [_correlations(study, columns, method, name) for name in AUTOENCODER_LOSSES]) for method in curves]
    if not any(values for _, row in rows for values in row):
        return None
    return ReportTable(
        "Losses of the autoencoders against Dice along the adaptation",
        ("method", *AUTOENCODER_LOSSES),
        (Section("", tuple((method, tuple(map(_correlation, row))) for method, row in rows)),),
        (
            "Autoencoders: xn of the normalised image, f1 to f3 of features at three depths, y of the output. "
            "Spearman's rank correlation between an autoencoder's loss and the Dice over the steps at which it was "
            "noted, a mean over people. A loss that is a good guide has one near -1: Dice rises as it falls.",
        ),
    )


def _correlations(study: Study, columns: Sequence[SiteColumn], method: str, name: str) -> list[float]:
    """Return the correlation of each person with a run whose loss and Dice are known at three steps or more."""
    people: list[float] = []
    for column in columns:
        found = {run: _spearman(trace, name) for run, trace in study.traces(column, method).items()}
        if found:
            people.extend(person_means(pd.Series(found)))
    return people


def _spearman(trace: pd.DataFrame, name: str) -> float:
    from scipy import stats

    if name not in trace or "dice" not in trace:
        return math.nan
    known = trace[[name, "dice"]].dropna()
    # The correlation with a constant is not defined.
    if len(known) < 3 or (known.nunique() == 1).any():
        return math.nan
    return float(stats.spearmanr(known[name], known["dice"]).statistic)


def _correlation(people: Sequence[float]) -> Cell:
    return Cell(f"{sum(people) / len(people):+.2f}", note=f"{len(people)} people") if people else Cell(NO_SCORE)
