"""A study: the scores of a benchmark, and every method of it tested against the same other one."""

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.report.scores import ScoreTable, SiteColumn
from scantune.report.statistics import Comparison, RunKey, compare, person_changes, person_means

STRONG_BASELINES = ("strong baseline", "source", "source (strong baseline)")
"""What adaptation starts from, and is compared with; the first of these that a file has."""

BASELINE, SUPERVISED = "baseline", "supervised"
REGISTRATION = "registration"

METHOD_ORDER = ("entropy", "dae", "ae", "batchnorm", "foe-cnn", "foe-cnn-pca")
"""Adaptation methods as the paper lists them; others follow as they appear."""

TRAINING_SITES: dict[str, str] = {
    "prostate": "RUNMC",
    "cardiac": "CSF",
    "spine": "PM",
    "brain": "HCP",
    "wmh": "UMC",
    "registration": "HCP",
    "contrasts": "source-3T-mprage",
}
"""The site that the networks of each cohort are trained at; people of it are in-domain."""

TRACE = "trace.json"
"""In the folder of a job: a row for each step, with its objective and the objective's parts; where the Dice was noted,
with `dice`, and `dices` by structure."""

Trace = dict[str, NDArray[np.float64]]
"""The columns of a trace; empty where none was kept."""


@dataclass(frozen=True)
class Study:
    """What tables and figures are made of.

    Attributes:
        scores: Of all methods.
        against: The method that all others are tested against.
        jobs: Folders with the jobs' traces.
        training: The site that the networks of a cohort are trained at, beside those that are known.
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
        """With the strong baseline, however the file names it, where no other method is asked for.

        Raises:
            InputError: There is no such method.
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
        """Every method against the chosen one, column by column; where both have nobody in common there is none."""
        changes = {
            (column, method): list(self._changes(column, method).values())
            for column, method in self.scores.cells
            if method != self.against
        }
        changes = {cell: found for cell, found in changes.items() if found}
        return dict(zip(changes, compare(list(changes.values())), strict=True))

    def _changes(self, column: SiteColumn, method: str) -> dict[Any, float]:
        return person_changes(self.scores.dice(column, self.against), self.scores.dice(column, method))

    def mean(self, column: SiteColumn, method: str) -> float:
        """Mean Dice over people; NaN where there is nobody."""
        people = person_means(self.scores.dice(column, method))
        return math.fsum(people.values()) / len(people) if people else math.nan

    def people(self, column: SiteColumn) -> int:
        """Number of people of a column, whoever has a score of any method."""
        return len({run[0] for run in self.scores.runs.get(column, set())})

    def progress(self, column: SiteColumn, method: str) -> tuple[int, int]:
        """Runs that are done, and all runs of the column."""
        return len(self.scores.dice(column, method)), len(self.scores.runs.get(column, set()))

    def columns(self, *, task: str | None = None, training: bool | None = None) -> list[SiteColumn]:
        """The columns of one task (registration or not), at the training site or not; None for either."""
        homes = {**TRAINING_SITES, **self.training}
        return [
            column
            for column in self.scores.columns
            if (task is None or (column.cohort == REGISTRATION) == (task == REGISTRATION))
            and (training is None or (homes.get(column.cohort) == column.site) == training)
        ]

    def adaptations(self, columns: Iterable[SiteColumn]) -> list[str]:
        """Adaptation methods with scores in these columns, the paper's first; variants (`ae, identity`) not among them.

        Their number is what a Bonferroni correction counts.
        """
        wanted = set(columns)
        here = {method for column, method in self.scores.cells if column in wanted}
        others = {BASELINE, SUPERVISED, self.against, *STRONG_BASELINES}
        known = [name for name in METHOD_ORDER if name in here]
        return known + [m for m in self.scores.methods if m in here - others - {*known} and not is_variant(m)]

    def variants(self, method: str | None = None) -> list[str]:
        """Variants of a method, such as `foe-cnn-pca, lambda 1`; of any method for None."""
        return [name for name in self.scores.methods if is_variant(name) and method in (None, name.split(", ")[0])]

    def traces(self, column: SiteColumn, method: str) -> dict[RunKey, Trace]:
        """The traces of a cell's runs, of those that were kept."""
        found = {run: self._trace(score.job) for run, score in self.scores.cells.get((column, method), {}).items()}
        names = self.scores.structures[column.cohort]
        return {run: _scored(trace, names) for run, trace in found.items() if trace}

    def _trace(self, job: str) -> Trace:
        files = [folder / job / TRACE for folder in self.jobs if job]
        return next((read_trace(file) for file in files if file.is_file()), {})


@functools.lru_cache(maxsize=4096)
def read_trace(file: Path) -> Trace:
    """The trace of a run by column; numbers that a step does not tell are NaN.

    Raises:
        InputError: It is not one.
    """
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        rows = [_flat(row) for row in told]
        names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, float | int))
        return {name: np.array([_known(row.get(name)) for row in rows]) for name in names}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file} must hold the trace of a run as JSON, but does not: {error!r}.") from error


def _scored(trace: Trace, structures: Sequence[str]) -> Trace:
    """The trace with the Dice of the structures that count here, where it tells one for each."""
    parts = [trace[f"dices/{name}"] for name in structures if f"dices/{name}" in trace]
    if not parts:
        return trace
    # Structures that are in neither volume do not count; a step that was not looked at has none at all.
    known = np.array([~np.isnan(part) for part in parts]).sum(0)
    total = np.nansum(np.stack(parts), axis=0)
    return {**trace, "dice": np.where(known > 0, total / np.maximum(known, 1), math.nan)}


def mean_along(traces: Mapping[RunKey, Trace], name: str) -> dict[int, float]:
    """A quantity of the traces by step, as a mean over people; of the steps at which every run has it.

    Args:
        traces: Of the runs of a cell.
        name: What to take: `dice`, where it was noted, `objective`, `cnn` (the energy), ...
    """
    noted = {run: _noted(trace, name) for run, trace in traces.items()}
    kept = {run: steps for run, steps in noted.items() if steps}
    shared = sorted(set.intersection(*map(set, kept.values()))) if kept else []
    means = {step: person_means({run: steps[step] for run, steps in kept.items()}).values() for step in shared}
    return {step: math.fsum(values) / len(values) for step, values in means.items()}


def _noted(trace: Trace, name: str) -> dict[int, float]:
    if name not in trace:
        return {}
    return {
        int(step): float(value) for step, value in zip(trace["step"], trace[name], strict=True) if not np.isnan(value)
    }


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a step with numbers alone: what is told by structure gets a name each, `dices/WM`."""
    inner = {f"{name}/{key}": one for name, told in row.items() if isinstance(told, dict) for key, one in told.items()}
    return {**{name: told for name, told in row.items() if not isinstance(told, dict)}, **inner}


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


def is_variant(method: str) -> bool:
    """Whether a name is that of a method with something changed: `foe-cnn-pca, kde`."""
    return ", " in method
