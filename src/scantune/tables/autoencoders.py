"""The paper's table of autoencoder variants: Dice along the adaptation, and which losses follow it."""

from collections.abc import Mapping, Sequence

import numpy as np

from scantune.scoretable import Column
from scantune.statistics import Run, person_means
from scantune.study import Study, Trace, along
from scantune.tables.base import NOTHING, Cell, Section, Table, dice_row, site_groups

EPOCHS = (0, 10, 100, 1000)
"""Steps of the `paper` preset that the paper's table shows."""

LOSSES = ("xn", "f1", "f2", "f3", "y")
"""The autoencoders: of the normalised image, of features at three depths, of the output."""


def autoencoders(study: Study) -> Table | None:
    """`ae` and its variants at several epochs of their runs, from traces in which the Dice was noted."""
    columns, curves = _curves(study)
    if not columns:
        return None
    sections = [
        Section(
            method,
            tuple(
                (f"epoch {epoch}", tuple(_number(one.get(epoch)) for one in by_column))
                for epoch in EPOCHS
                if any(epoch in one for one in by_column)
            ),
        )
        for method, by_column in curves.items()
    ]
    strong = Section("", ((study.against, dice_row(study, columns, study.against)),))
    return Table(
        "Variants of the autoencoder method along the adaptation",
        ("after", *(column.site for column in columns)),
        (strong, *(section for section in sections if section.rows)),
        ("Mean Dice over people at an epoch of the run, whichever epoch was chosen in the end.",),
        site_groups(study, columns),
    )


def losses(study: Study) -> Table | None:
    """How the loss of each autoencoder and the Dice go together along a run, as rank correlations."""
    columns, curves = _curves(study)
    rows = [(method, [_correlations(study, columns, method, name) for name in LOSSES]) for method in curves]
    if not any(values for _, row in rows for values in row):
        return None
    return Table(
        "Losses of the autoencoders against Dice along the adaptation",
        ("method", *LOSSES),
        (Section("", tuple((method, tuple(map(_correlation, row))) for method, row in rows)),),
        (
            "Spearman's rank correlation between an autoencoder's loss and the Dice over the steps at which it was "
            "noted, a mean over people. A loss that is a good guide has one near -1: Dice rises as it falls.",
        ),
    )


def _curves(study: Study) -> tuple[list[Column], dict[str, list[dict[int, float]]]]:
    """Columns with traces that tell Dice, and the Dice by step in each of them, by method."""
    methods = [name for name in study.scores.methods if name.split(", ")[0] == "ae"]
    found = {
        name: {column: along(study.traces(column, name), "dice") for column in study.scores.columns} for name in methods
    }
    columns = [column for column in study.scores.columns if any(found[name][column] for name in methods)]
    kept = {name: [found[name][column] for column in columns] for name in methods}
    return columns, {name: by_column for name, by_column in kept.items() if any(by_column)}


def _number(dice: float | None) -> Cell:
    return Cell(NOTHING if dice is None else f"{dice:.3f}")


def _correlations(study: Study, columns: Sequence[Column], method: str, name: str) -> list[float]:
    """Of each person with a run whose loss and Dice are known at three steps or more."""
    people: list[float] = []
    for column in columns:
        found = {run: _spearman(trace, name) for run, trace in study.traces(column, method).items()}
        known: Mapping[Run, float] = {run: value for run, value in found.items() if value is not None}
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
    return Cell(f"{sum(people) / len(people):+.2f}", note=f"{len(people)} people") if people else Cell(NOTHING)
