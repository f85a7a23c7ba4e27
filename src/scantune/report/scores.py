"""Score files as a report reads them: one score per run of a scan, of the structure that counts.

Any CSV file with the columns cohort, site, subject, method, seed, structure and dice will do; what else it tells
(energies, the guard's decision, seconds, the tier) is used where it is there.
"""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from scantune.errors import InputError
from scantune.evaluation.rows import MEAN, ROWS_FILE, WHOLE
from scantune.report.statistics import RunKey

REQUIRED_COLUMNS = ("cohort", "site", "subject", "method", "seed", "structure", "dice")

COHORTS = ("prostate", "cardiac", "spine", "brain", "wmh")
"""In the order of the paper's tables; others follow as they appear."""

_SIMULATED = re.compile(r".+_(train|validation|test)-\d{3}(_seed-\d+)?(_E[DS])?")
_MOMENT = re.compile(r"_E[DS]$")  # of a heart, at the end of a scan's name


class SiteColumn(NamedTuple):
    """A column of the tables: people of one site, in one tier of the experiment. Tiers are never mixed."""

    cohort: str
    tier: str
    site: str

    @property
    def group(self) -> str:
        """Cohort and tier, for titles and names of files."""
        if not self.tier:
            return self.cohort
        return f"{self.cohort}, {f'tier {self.tier}' if self.tier.isdecimal() else self.tier}"


@dataclass(frozen=True)
class Scored:
    """One scan after one run, by the structure that counts.

    Attributes:
        column: Where it belongs.
        method: The row of the tables.
        run: Person, session, fold and seed.
        dice: NaN where there is none.
        before: FoE-CNN energy before adaptation, in nats; NaN where there is none, as of the next two.
        after: The energy after it.
        seconds: Of the adaptation.
        decision: The guard's; empty where the file does not tell.
        job: The folder under `jobs/` with the run's trace; empty where there is none.
    """

    column: SiteColumn
    method: str
    run: RunKey
    dice: float
    before: float = math.nan
    after: float = math.nan
    seconds: float = math.nan
    decision: str = ""
    job: str = ""


@dataclass(frozen=True)
class ScoreTable:
    """All scores of a file.

    Attributes:
        scores: One for each run of each scan.
        structures: The structures whose mean is the score, by cohort.
        rows: Number of rows that the file has.
    """

    scores: tuple[Scored, ...]
    structures: Mapping[str, tuple[str, ...]]
    rows: int

    @cached_property
    def columns(self) -> list[SiteColumn]:
        """In order of tiers and cohorts (the paper's first), sites as they appear in the file."""
        cohorts = [*COHORTS, *(cohort for cohort in self.structures if cohort not in COHORTS)]
        return sorted(
            dict.fromkeys(score.column for score in self.scores),
            key=lambda column: (column.tier, cohorts.index(column.cohort)),
        )

    @cached_property
    def methods(self) -> list[str]:
        """In order of appearance."""
        return list(dict.fromkeys(score.method for score in self.scores))

    @cached_property
    def cells(self) -> dict[tuple[SiteColumn, str], dict[RunKey, Scored]]:
        """The scores by column, method and run."""
        cells: dict[tuple[SiteColumn, str], dict[RunKey, Scored]] = {}
        for score in self.scores:
            cells.setdefault((score.column, score.method), {})[score.run] = score
        return cells

    def dice(self, column: SiteColumn, method: str) -> dict[RunKey, float]:
        """The Dice scores of a cell of the table by run, without those that are NaN."""
        found = self.cells.get((column, method), {})
        return {run: score.dice for run, score in found.items() if not math.isnan(score.dice)}

    @cached_property
    def runs(self) -> dict[SiteColumn, set[RunKey]]:
        """Every run of a column that any method has: what a finished cell holds."""
        runs: dict[SiteColumn, set[RunKey]] = {}
        for score in self.scores:
            if not math.isnan(score.dice):
                runs.setdefault(score.column, set()).add(score.run)
        return runs

    @cached_property
    def simulated(self) -> dict[SiteColumn, bool]:
        """Whether the people of a column are simulated, as their names tell."""
        told = dict.fromkeys(self.columns, True)
        for score in self.scores:
            told[score.column] &= bool(_SIMULATED.fullmatch(str(score.run[0])))
        return told


def read_scores(path: Path | str, structure: str | None = None) -> ScoreTable:
    """Read a score file, or the one of a bench folder.

    Args:
        path: The file, or a folder with `rows.csv` in it.
        structure: The structure to score. By default, in each cohort, `whole` where there is one, else `mean`,
            else the mean over all structures.

    Raises:
        InputError: There is no such file, it is not one of scores, or the structure is nowhere in it.
    """
    path = Path(path)
    file = path / ROWS_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"{file} does not exist: expected a score file, or a folder that scantune bench wrote.")
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text)
            columns = tuple(reader.fieldnames or ())
            records = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} must be a CSV file of scores, but cannot be read as one: {error}.") from error
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        raise InputError(
            f"{file} must have the columns {', '.join(REQUIRED_COLUMNS)}, but has no {missing[0]}; expected a score "
            "file of scantune bench or scantune evaluate."
        )
    if not records:
        raise InputError(f"{file} has no rows yet; wait for the first finished job, and report again.")
    return _table(_read(file, records, sessions="session" in columns), structure, file)


@dataclass(frozen=True)
class _Line:
    scored: Scored
    structure: str


def _read(file: Path, records: Iterable[Mapping[str, str]], sessions: bool) -> list[_Line]:
    lines: list[_Line] = []
    seen: dict[tuple[object, ...], int] = {}
    for number, record in enumerate(records, start=2):
        person, session = (record["subject"], record["session"]) if sessions else _person(record["subject"])
        column = SiteColumn(record["cohort"] or "scans", record.get("tier") or "", record["site"] or "all")
        key = (column, record["method"], person, session, record.get("fold"), record["seed"], record["structure"])
        times = seen[key] = seen.get(key, 0) + 1
        if sessions and times > 1:
            raise InputError(
                f"{file} has two rows for {record['structure']} of {person} {session} by {record['method']} with seed "
                f"{record['seed']} (the second in line {number}): expected one. Remove the rows of one of the runs."
            )
        run = (person, session if times == 1 else f"{session}#{times}", record.get("fold") or "", record["seed"])
        dice, before, after, seconds = (
            _number(file, number, record, name) for name in ("dice", "energy_before", "energy_after", "seconds")
        )
        told = (record.get("decision") or "", record.get("job") or "")
        scored = Scored(column, record["method"], run, dice, before, after, seconds, *told)
        lines.append(_Line(scored, record["structure"]))
    return lines


def _person(scan: str) -> tuple[str, str]:
    """Person and session from a scan's name, for files without a column of sessions."""
    from scantune.datasets.subjects import find_subject

    person = find_subject(_MOMENT.sub("", scan))
    return person, scan.removeprefix(person)


def _number(file: Path, line: int, record: Mapping[str, str], name: str) -> float:
    cell = record.get(name)
    try:
        return float(cell) if cell else math.nan
    except ValueError:
        raise InputError(
            f"{file}, line {line}: {name} must be a number, or empty where there is none, but is {cell!r}."
        ) from None


def _table(lines: list[_Line], structure: str | None, file: Path) -> ScoreTable:
    found: dict[str, dict[str, None]] = {}
    for line in lines:
        found.setdefault(line.scored.column.cohort, {})[line.structure] = None
    chosen = {cohort: _choice(list(names), structure) for cohort, names in found.items()}
    if not any(chosen.values()):
        known = ", ".join(dict.fromkeys(name for names in found.values() for name in names))
        raise InputError(f"{file} has no structure {structure!r}. It has: {known}.")
    counted: dict[tuple[SiteColumn, str, RunKey], list[Scored]] = {}
    for line in lines:
        if line.structure in chosen[line.scored.column.cohort]:
            scored = line.scored
            counted.setdefault((scored.column, scored.method, scored.run), []).append(scored)
    structures = {cohort: tuple(names) for cohort, names in chosen.items() if names}
    return ScoreTable(tuple(_mean(scored) for scored in counted.values()), structures, len(lines))


def _choice(names: list[str], structure: str | None) -> list[str]:
    """The structures whose mean is the score."""
    if structure is not None:
        return [structure] if structure in names else []
    for one in (WHOLE, MEAN):
        if one in names:
            return [one]
    return names


def structure_text(names: Sequence[str]) -> str:
    """What is scored."""
    if len(names) > 1:
        return f"mean of {', '.join(names)}"
    return {MEAN: "mean over the structures", WHOLE: "the whole organ"}.get(names[0], names[0])


def _mean(scored: list[Scored]) -> Scored:
    """One score of a run from those of its structures; structures that are in neither volume (NaN) do not count."""
    values = [one.dice for one in scored if not math.isnan(one.dice)]
    first = scored[0]
    dice = math.fsum(values) / len(values) if values else math.nan
    rest = (first.before, first.after, first.seconds, first.decision, first.job)
    return Scored(first.column, first.method, first.run, dice, *rest)
