"""A study: the scores of a benchmark, and every method compared with the same other one."""

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import pandas as pd

from scantune.errors import InputError
from scantune.report.scores import ScoreTable, SiteColumn
from scantune.report.statistics import (
    Comparison,
    RunKey,
    compare,
    person_changes,
    person_means,
    run_changes,
)

STRONG_BASELINES = ("strong baseline", "source", "source (strong baseline)")
"""What adaptation starts from and is compared with: the first of these that a file has."""

BASELINE, SUPERVISED = "baseline", "supervised"
REGISTRATION = "registration"

BEYOND_THE_PAPER = ("batchnorm",)
"""Methods that the shipped experiments add to those that the paper compares."""

METHOD_ORDER = ("entropy", "dae", "ae", "batchnorm", "foe-cnn", "foe-cnn-pca")
"""Adaptation methods as the paper lists them; others follow as they appear."""

TRACE = "trace.json"
"""File in the folder of a job with a row for each step: its objective, the objective's parts and, for steps that were
scored, `dice` and `dices` by structure."""


@dataclass(frozen=True)
class Study:
    """What tables and figures are made of.

    Attributes:
        scores: Scores of all methods.
        against: The method that all others are compared with.
        jobs: Folders with the jobs' traces.
        training: Training sites by cohort, in addition to those of the simulated cohorts.
    """

    scores: ScoreTable
    against: str
    jobs: tuple[Path, ...] = ()
    training: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        scores: ScoreTable,
        against: str | None = None,
        jobs: Iterable[Path] = (),
        training: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a study that compares with the strong baseline, unless another method is given.

        Raises:
            InputError: The scores have no such method.
        """
        wanted = STRONG_BASELINES if against is None else (against,)
        for name in wanted:
            if name in scores.methods:
                return cls(scores, name, tuple(jobs), training or {})
        raise InputError(
            f"There is no method {wanted[0]!r} to compare with. Available: {', '.join(scores.methods)}. Choose one "
            "with --against."
        )

    @cached_property
    def comparisons(self) -> dict[tuple[SiteColumn, str], Comparison]:
        """Return the comparison of every method in each column where both methods have people in common."""
        cells = [(column, method) for column, method in self.scores.cells if method != self.against]
        changes = {cell: self.person_changes(*cell) for cell in cells}
        changes = {cell: found for cell, found in changes.items() if len(found)}
        return dict(zip(changes, compare(list(changes.values())), strict=True))

    def run_changes(self, column: SiteColumn, method: str) -> pd.Series:
        """Return the change of Dice of each run that both methods have."""
        return run_changes(self.scores.dice(column, self.against), self.scores.dice(column, method))

    def person_changes(self, column: SiteColumn, method: str) -> pd.Series:
        """Return the mean change of Dice of each person."""
        return person_changes(self.scores.dice(column, self.against), self.scores.dice(column, method))

    def mean(self, column: SiteColumn, method: str) -> float:
        """Return the mean Dice over people; NaN without scores."""
        people = person_means(self.scores.dice(column, method))
        return fmean(people) if len(people) else math.nan

    def people(self, column: SiteColumn) -> int:
        """Return the number of people of a column with a score of any method."""
        return int(self.scores.runs[column]["person"].nunique()) if column in self.scores.runs else 0

    def progress(self, column: SiteColumn, method: str) -> tuple[int, int]:
        """Return the number of runs that are done, and of all runs of the column."""
        return len(self.scores.dice(column, method)), len(self.scores.runs.get(column, ()))

    def columns(self, *, task: str | None = None, training: bool | None = None) -> list[SiteColumn]:
        """Return the columns of one task (registration or not), at the training site or not; None for either."""
        homes = {**training_sites(), **self.training}
        return [
            column
            for column in self.scores.columns
            if (task is None or (column.cohort == REGISTRATION) == (task == REGISTRATION))
            and (training is None or (homes.get(column.cohort) == column.site) == training)
        ]

    def adaptations(self, columns: Iterable[SiteColumn]) -> list[str]:
        """Return the adaptation methods with scores in these columns, the paper's first, without variants."""
        wanted = set(columns)
        here = {method for column, method in self.scores.cells if column in wanted}
        others = {BASELINE, SUPERVISED, self.against, *STRONG_BASELINES}
        known = [name for name in METHOD_ORDER if name in here]
        return known + [m for m in self.scores.methods if m in here - others - {*known} and not is_variant(m)]

    def comparisons_in(self, columns: Iterable[SiteColumn], method: str = "") -> int:
        """Return the number of comparisons that a Bonferroni correction counts: those of the paper and of the user.

        A method of `BEYOND_THE_PAPER` does not make the tests of the others stricter. Its own count one more.
        """
        family = [name for name in self.adaptations(columns) if name not in BEYOND_THE_PAPER]
        return len(family) + (method in BEYOND_THE_PAPER)

    def variants(self, method: str | None = None) -> list[str]:
        """Return the variants of a method, such as `foe-cnn-pca, lambda 1`; of all methods for None."""
        return [name for name in self.scores.methods if is_variant(name) and method in (None, name.split(", ")[0])]

    def traces(self, column: SiteColumn, method: str) -> dict[RunKey, pd.DataFrame]:
        """Return the traces of a cell's runs, as far as they were kept."""
        if (column, method) not in self.scores.cells:
            return {}
        jobs = self.scores.cells[column, method]["job"]
        names = self.scores.structures[column.cohort]
        found = {run: self._trace(job) for run, job in jobs.items()}
        return {run: _with_dice_of(trace, names) for run, trace in found.items() if not trace.empty}

    def _trace(self, job: str) -> pd.DataFrame:
        files = [folder / job / TRACE for folder in self.jobs if job]
        return next((read_trace(file) for file in files if file.is_file()), pd.DataFrame())


def training_sites() -> dict[str, str]:
    """Return the site that the networks of each simulated cohort are trained at; its people are in-domain."""
    from scantune.simulate import COHORTS

    return {name: cohort.source for name, cohort in COHORTS.items()}


@functools.lru_cache(maxsize=4096)
def read_trace(file: Path) -> pd.DataFrame:
    """Return the trace of a run: a row for each step, with NaN for unknown numbers.

    Raises:
        InputError: The file does not hold a trace.
    """
    try:
        rows = [_flat(row) for row in json.loads(file.read_text(encoding="utf-8"))]
        names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, float | int))
        return pd.DataFrame(rows, columns=[*names]).astype(float)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} must hold the trace of a run as JSON, but does not: {error!r}.") from error


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a step with values by structure under names of their own, such as `dices/WM`."""
    inner = {
        f"{name}/{key}": one for name, value in row.items() if isinstance(value, dict) for key, one in value.items()
    }
    return {**{name: value for name, value in row.items() if not isinstance(value, dict)}, **inner}


def _with_dice_of(trace: pd.DataFrame, structures: Sequence[str]) -> pd.DataFrame:
    """Return the trace with the mean Dice of these structures, if it has Dice by structure.

    Structures that are in neither volume are NaN, and do not count. Steps that were not scored have no Dice.
    """
    parts = [f"dices/{name}" for name in structures if f"dices/{name}" in trace]
    return trace.assign(dice=trace[parts].mean(axis=1)) if parts else trace


def mean_along(traces: Mapping[RunKey, pd.DataFrame], name: str) -> dict[int, float]:
    """Return a quantity by step as a mean over people, at the steps at which every run has it.

    Args:
        traces: Traces of the runs of a cell.
        name: The quantity: `dice`, `objective`, `cnn` (the energy), ...
    """
    known = {
        run: trace.dropna(subset=name).drop_duplicates("step", keep="last").set_index("step")[name]
        for run, trace in traces.items()
        if name in trace
    }
    known = {run: values for run, values in known.items() if len(values)}
    if not known:
        return {}
    steps = pd.concat(known, axis="columns", join="inner").sort_index()
    people = steps.T.groupby(level=0, sort=False).mean()
    return {int(step): fmean(people[step]) for step in people}


def is_variant(method: str) -> bool:
    """Return whether a name is that of a method with something changed: `foe-cnn-pca, kde`."""
    return ", " in method
