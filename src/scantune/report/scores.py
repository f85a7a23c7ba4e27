"""Score files as a report reads them: one score per run of a scan, of the structure that counts.

Any CSV file with the columns cohort, site, subject, method, seed, structure and dice can be read. Further columns
(energies, the guard's decision, seconds, the tier) are used if the file has them.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pandas as pd

from scantune.errors import InputError
from scantune.evaluation.rows import MEAN, REQUIRED_COLUMNS, WHOLE, expected_range, find_rows, read_table

RUN = ["person", "session", "fold", "seed"]
"""Columns that identify a run of a scan; the first is the person."""

SITE = ["cohort", "tier", "site"]
_CELL = [*SITE, "method"]
_TEXTS = [*REQUIRED_COLUMNS[:-1], "session", "fold", "tier", "decision", "job", "data"]
_NUMBERS = ["dice", "energy_before", "energy_after", "seconds"]

_NAME_OF_SIMULATED = re.compile(r".+_(train|validation|test)-\d{3}(_seed-\d+)?(_E[DS])?")
_CARDIAC_PHASE = re.compile(r"_E[DS]$")  # at the end of a scan's name


DataKind = Literal["simulated", "real", "simulated and real", "not recorded whether real"]


class SiteColumn(NamedTuple):
    """A column of the tables: people of one site, in one tier of the experiment. Tiers are never mixed."""

    cohort: str
    tier: str
    site: str

    @property
    def group(self) -> str:
        """Return cohort and tier, for titles and names of files."""
        if not self.tier:
            return self.cohort
        return f"{self.cohort}, {f'tier {self.tier}' if self.tier.isdecimal() else self.tier}"


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """All scores of a file.

    Attributes:
        frame: One row per run of a scan. Columns: cohort, tier, site, method; person, session, fold, seed; dice,
            energy_before, energy_after and seconds, NaN if unknown; decision, job and data, empty if unknown.
        structures: The structures whose mean is the score, by cohort.
        rows: Number of rows of the file.
    """

    frame: pd.DataFrame
    structures: Mapping[str, tuple[str, ...]]
    rows: int

    @cached_property
    def columns(self) -> list[SiteColumn]:
        """Return all columns in order of tiers and cohorts (the paper's first); sites as they appear in the file."""
        from scantune.simulate import COHORTS

        cohorts = list(dict.fromkeys([*COHORTS, *self.structures]))
        columns = [SiteColumn(*values) for values in self.frame[SITE].drop_duplicates().to_numpy()]
        return sorted(columns, key=lambda column: (column.tier, cohorts.index(column.cohort)))

    @cached_property
    def methods(self) -> list[str]:
        """Return the methods in order of appearance."""
        return list(self.frame["method"].unique())

    @cached_property
    def cells(self) -> dict[tuple[SiteColumn, str], pd.DataFrame]:
        """Return the rows of the frame by column and method, indexed by run."""
        indexed = self.frame.set_index(RUN)
        return {(SiteColumn(*site), method): rows for (*site, method), rows in indexed.groupby(_CELL, sort=False)}

    def dice(self, column: SiteColumn, method: str) -> pd.Series:
        """Return the known Dice scores of a cell of the table by run; an empty series for a cell without scores."""
        if (column, method) not in self.cells:
            return pd.Series(index=pd.MultiIndex.from_arrays([[] for _ in RUN], names=RUN), dtype=float)
        return self.cells[column, method]["dice"].dropna()

    @cached_property
    def runs(self) -> dict[SiteColumn, pd.DataFrame]:
        """Return every run that any method has a score of, by column: what a finished cell holds."""
        runs = self.frame.dropna(subset="dice").drop_duplicates([*SITE, *RUN])
        return {SiteColumn(*site): rows[RUN] for site, rows in runs.groupby(SITE, sort=False)}

    @cached_property
    def data(self) -> dict[SiteColumn, DataKind]:
        """Return what the people of each column are: simulated, real, both, or unknown if a row does not say."""
        kinds = self.frame["data"].groupby([self.frame[name] for name in SITE]).unique()
        return {column: _data_kind(set(kinds[column])) for column in self.columns}


def read_scores(path: Path | str, structure: str | None = None) -> ScoreTable:
    """Read a score file, or the one of a bench folder.

    Args:
        path: The file, or a folder with `rows.csv` in it.
        structure: The structure to score. By default, in each cohort, `whole` if the file has it, else `mean`, else
            the mean over all structures.

    Raises:
        InputError: The file does not exist or is not a score file, or no row has the structure.
    """
    file = find_rows(path)
    columns, records = read_table(file)
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"{file} must have the columns {', '.join(REQUIRED_COLUMNS)}, but has no {missing[0]}; expected a score "
            "file of scantune bench or scantune evaluate."
        )
    if not records:
        raise InputError(f"{file} has no rows yet; wait for the first finished job, and report again.")
    return _score(_frame(file, records, has_sessions="session" in columns), structure, file)


def join_scores(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Return the scores of several files as one table, with runs that several files have alike once.

    Raises:
        InputError: Two files have different scores for the same run of a scan, or score different structures.
    """
    structures: dict[str, tuple[str, ...]] = {}
    for cohort, names in (entry for table in tables for entry in table.structures.items()):
        if structures.setdefault(cohort, names) != names:
            raise InputError(
                f"The files score different structures of {cohort}: {structure_text(structures[cohort])}, and "
                f"{structure_text(names)}. Choose one with --structure."
            )
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    first = frame.groupby([*_CELL, *RUN], sort=False)["dice"].transform("first")
    for run in frame[(frame["dice"] != first) & first.notna()].itertuples():
        raise InputError(
            f"Two of the files score {run.method} on {run.person} of {run.site} ({run.cohort}) differently: expected "
            "every run once. Leave one of the files out."
        )
    once = frame.drop_duplicates([*_CELL, *RUN], ignore_index=True)
    return ScoreTable(once, structures, sum(table.rows for table in tables))


def by_cohort(columns: Iterable[SiteColumn]) -> dict[str, list[SiteColumn]]:
    """Return the columns of each cohort and tier, by a name of both."""
    groups: dict[str, list[SiteColumn]] = {}
    for column in columns:
        groups.setdefault(column.group, []).append(column)
    return groups


def structure_text(names: Sequence[str]) -> str:
    """Return a description of the structures that are scored."""
    if len(names) > 1:
        return f"mean of {', '.join(names)}"
    return {MEAN: "mean over the structures", WHOLE: "the whole organ"}.get(names[0], names[0])


def _frame(file: Path, records: list[dict[str, Any]], has_sessions: bool) -> pd.DataFrame:
    """Return the lines of a file with the columns of `ScoreTable.frame`, and their structures."""
    frame = pd.DataFrame(records, columns=[*_TEXTS, *_NUMBERS], dtype=object).fillna("")
    for name in _NUMBERS:
        frame[name] = [_number(file, line, name, cell) for line, cell in enumerate(frame[name], start=2)]
    frame["cohort"] = frame["cohort"].replace("", "scans")
    frame["site"] = frame["site"].replace("", "all")
    frame["person"] = frame["subject"]
    if not has_sessions:
        frame["person"], frame["session"] = zip(*map(_person, frame["subject"]), strict=True)
    earlier = frame.groupby([*_CELL, *RUN, "structure"], sort=False).cumcount()
    if has_sessions and earlier.any():
        line = int(earlier.to_numpy().argmax())
        again = frame.iloc[line]
        raise InputError(
            f"{file} has two rows for {again['structure']} of {again['person']} {again['session']} by "
            f"{again['method']} with seed {again['seed']} (the second in line {line + 2}): expected one. Remove the "
            "rows of one of the runs."
        )
    unknown = frame["data"] == ""  # files of older versions have no such column
    named = frame["person"].map(lambda person: bool(_NAME_OF_SIMULATED.fullmatch(person)))
    frame.loc[unknown & named, "data"] = "simulated"
    frame["session"] += earlier.map(lambda number: f"#{number + 1}" if number else "")
    return frame.drop(columns="subject")


def _person(scan: str) -> tuple[str, str]:
    """Return person and session from a scan's name, for files without a column of sessions."""
    from scantune.datasets.subjects import find_subject

    person = find_subject(_CARDIAC_PHASE.sub("", scan))
    return person, scan.removeprefix(person)


def _number(file: Path, line: int, name: str, cell: str) -> float:
    try:
        number = float(cell) if cell else math.nan
    except ValueError:
        raise InputError(
            f"{file}, line {line}: {name} must be a number, or empty if it is unknown, but is {cell[:100]!r}."
        ) from None
    if wanted := expected_range(name, number):
        raise InputError(
            f"{file}, line {line}: {name} must be {wanted}, or empty if it is unknown, but is {number:g}. Repair the "
            "file, or score the segmentations again."
        )
    return number


def _data_kind(kinds: set[str]) -> DataKind:
    """Return what people are whose rows say these things."""
    if not kinds <= {"simulated", "real"}:
        return "not recorded whether real"
    return "simulated and real" if len(kinds) == 2 else cast(DataKind, next(iter(kinds)))


def _score(lines: pd.DataFrame, structure: str | None, file: Path) -> ScoreTable:
    """Return one score of each run from the lines of its structures."""
    found = lines.groupby("cohort", sort=False)["structure"].unique()
    chosen = {cohort: _choose_structures(list(names), structure) for cohort, names in found.items()}
    if not any(chosen.values()):
        known = ", ".join(dict.fromkeys(name for names in found for name in names))
        raise InputError(f"{file} has no structure {structure!r}. It has: {known}.")
    counted = lines[[name in chosen[cohort] for cohort, name in zip(lines["cohort"], lines["structure"], strict=True)]]
    runs = counted.drop_duplicates([*_CELL, *RUN], ignore_index=True).drop(columns="structure")
    # Structures that are in neither volume are NaN, and do not count.
    runs["dice"] = counted.groupby([*_CELL, *RUN], sort=False)["dice"].mean().to_numpy()
    return ScoreTable(runs, {cohort: tuple(names) for cohort, names in chosen.items() if names}, len(lines))


def _choose_structures(names: list[str], structure: str | None) -> list[str]:
    """Return the structures whose mean is the score."""
    if structure is not None:
        return [structure] if structure in names else []
    for one in (WHOLE, MEAN):
        if one in names:
            return [one]
    return names
