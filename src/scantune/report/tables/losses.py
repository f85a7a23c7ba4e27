"""Which of the autoencoders' losses follow the Dice, along the adaptation."""

from collections.abc import Mapping, Sequence

import numpy as np

from scantune.report.scores import SiteColumn
from scantune.report.statistics import RunKey, person_means
from scantune.report.study import Study, Trace
from scantune.report.tables.autoencoders import dice_along
from scantune.report.tables.base import NO_SCORE, Cell, ReportTable, Section

AUTOENCODER_LOSSES = ("xn", "f1", "f2", "f3", "y")
"""The autoencoders: of the normalised image, of features at three depths, of the output."""


def loss_table(study: Study) -> ReportTable | None:
    """How the loss of each autoencoder and the Dice go together along a run, as rank correlations."""
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
    """Of each person with a run whose loss and Dice are known at three steps or more."""
    people: list[float] = []
    for column in columns:
        found = {run: _spearman(trace, name) for run, trace in study.traces(column, method).items()}
        known: Mapping[RunKey, float] = {run: value for run, value in found.items() if value is not None}
        people += person_means(known).values()
    return people


def _spearman(trace: Trace, name: str) -> float | None:
    from scipy import stats

    if name not in trace or "dice" not in trace:
        return None
    told = ~np.isnan(trace[name]) & ~np.isnan(trace["dice"])
    loss, dice = trace[name][told], trace["dice"][told]
    # The correlation of what never changes is not defined.
    if len(loss) < 3 or np.ptp(loss) == 0 or np.ptp(dice) == 0:
        return None
    return float(stats.spearmanr(loss, dice).statistic)


def _correlation(people: Sequence[float]) -> Cell:
    return Cell(f"{sum(people) / len(people):+.2f}", note=f"{len(people)} people") if people else Cell(NO_SCORE)
