"""Score rows and other CSV tables: the one reader and the one writer.

A file of score rows has one row per case, method, seed and structure. A further row with structure `mean` holds the
mean over the foreground structures that can be scored. Prostate files have a third kind, `whole`: all zones taken as
one gland.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from scantune.errors import InputError
from scantune.scans.files import write_text, write_whole
from scantune.scans.manifest import current_decision

MEAN = "mean"
"""The structure whose metrics are the mean over all foreground structures of a case."""

WHOLE = "whole"
"""The structure that takes all foreground structures of a case as one."""

ROWS_FILE = "rows.csv"
"""Name of the file of score rows in a bench folder, and in the folder of each of its jobs."""

REQUIRED_COLUMNS = ("cohort", "site", "subject", "method", "seed", "structure", "dice")
"""Columns of every table of scores that a report can read."""


@dataclass(frozen=True)
class ScoreRow:
    """One structure of one scan after one run. Missing numbers are NaN here and empty fields in a file."""

    cohort: str
    """The simulated cohort or the data set."""
    site: str
    """The centre."""
    subject: str
    """The person, who is the unit of every test."""
    session: str
    """Which of a person's scans, such as ED and ES of a heart; empty for people with one scan."""
    method: str
    """The name of the run in tables."""
    seed: int
    """The training run: everything random in it and in what follows."""
    structure: str
    """Name of the structure, or `mean`, or `whole`."""
    dice: float
    hd95: float
    """95th percentile Hausdorff distance in mm."""
    asd: float
    """Average symmetric surface distance in mm."""
    volume_ml: float
    reference_ml: float
    energy_before: float
    """FoE-CNN energy of the scan before adaptation, in nats."""
    energy_after: float
    decision: str
    """The decision: adapted, left alone, unsolved."""
    steps: int
    seconds: float
    """Duration of the adaptation, including the predictions before and after it."""
    seconds_per_step: float
    peak_memory_mb: float
    device: str
    commit: str
    """The version of scantune that made the row."""
    settings: str
    """A hash of all settings of the run."""
    tier: str
    """The share of the experiment that was run, as the experiment names it."""
    job: str
    """The hash of the job that made the row: its folder under `jobs/` of the bench folder."""
    fold: str = ""
    """The fold that tests the person; empty without folds, and in files of older versions."""
    data: str = ""
    """`simulated` or `real`; empty in files of older versions."""

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Return a row from the cells of a file, by column.

        Raises:
            InputError: A column is missing.
            ValueError: A cell is not of its column's type.
        """
        return cls(*(_value(column, kind, record) for column, kind in COLUMN_TYPES.items()))


COLUMN_TYPES: dict[str, type] = {entry.name: entry.type for entry in fields(ScoreRow)}  # type: ignore[misc]
"""Columns of the file with their types, in this order."""

SCORE_COLUMNS = tuple(COLUMN_TYPES)

LATER_COLUMNS = ("fold", "data")
"""Columns that files of older versions lack."""

NEVER_NEGATIVE = ("hd95", "asd", "volume_ml", "reference_ml", "seconds", "seconds_per_step", "peak_memory_mb")
"""Columns of distances, volumes and times."""

MEASURED_COLUMNS = ("seconds", "seconds_per_step", "peak_memory_mb")
"""Columns that differ from run to run. All others are the same when a job is repeated on the same machine."""


def expected_range(column: str, value: float) -> str:
    """Return the range that a number of a column is out of, as words; an empty text if it is within, or unknown."""
    if column == "dice" and not 0 <= value <= 1 and not math.isnan(value):
        return "from 0 to 1"
    return "0 or more" if column in NEVER_NEGATIVE and value < 0 else ""


def write_table(path: Path | str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV table, completely or not at all.

    Args:
        path: The file.
        columns: Names of the columns.
        rows: The cells of each row, written as `str` gives them.

    Raises:
        InputError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def read_table(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """Read a CSV table.

    Returns:
        The names of the columns, and the cells of each row by column. Cells that a short row lacks are None.

    Raises:
        InputError: The file is not a CSV file in UTF-8.
        OSError: The file cannot be opened.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.DictReader(text)
            rows: list[dict[str, Any]] = [_with_current_decision(row) for row in reader]
            return list(reader.fieldnames or ()), rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a CSV file of scores, but cannot be read as one: {error}.") from error


def write_rows(path: Path | str, rows: Iterable[ScoreRow]) -> None:
    """Write score rows as CSV, completely or not at all."""
    write_table(path, SCORE_COLUMNS, ([_cell(value) for value in astuple(row)] for row in rows))


def write_parquet(path: Path | str, rows: Sequence[ScoreRow]) -> bool:
    """Write score rows as Parquet with nulls for NaN; without pyarrow, write nothing and return False."""
    if find_spec("pyarrow") is None:
        return False
    import pyarrow
    from pyarrow import parquet

    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(column, types[kind]) for column, kind in COLUMN_TYPES.items()])
    cells = {column: [_null(getattr(row, column)) for row in rows] for column in SCORE_COLUMNS}
    table = pyarrow.table(cells, schema=schema)
    write_whole(Path(path), lambda temporary: parquet.write_table(table, temporary))
    return True


def find_rows(path: Path | str) -> Path:
    """Return the file of score rows: the path itself, or `rows.csv` in a bench folder.

    Raises:
        InputError: The file does not exist.
    """
    path = Path(path)
    file = path / ROWS_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"{file} does not exist: expected a score file, or a folder that scantune bench wrote. Check the path."
        )
    return file


def read_rows(path: Path | str) -> list[ScoreRow]:
    """Read the score rows of a CSV file, a Parquet file, or a bench folder.

    Raises:
        InputError: The file does not exist, or does not hold score rows.
    """
    file = find_rows(path)
    try:
        columns, records = _read_parquet(file) if file.suffix == ".parquet" else read_table(file)
        missing = [column for column in SCORE_COLUMNS if column not in (*columns, *LATER_COLUMNS)]
        if missing:
            raise InputError(f"the column {missing[0]} is missing.")
        return [ScoreRow.read(record) for record in records]
    except (InputError, ValueError, OSError) as error:
        raise InputError(f"{file} must hold score rows of scantune bench, but does not: {error}") from error


def _read_parquet(file: Path) -> tuple[list[str], list[dict[str, Any]]]:
    from pyarrow import parquet

    table = parquet.read_table(file)
    return list(table.column_names), [_with_current_decision(record) for record in table.to_pylist()]


def _with_current_decision(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the present name of its decision, if it has one."""
    return row | {"decision": current_decision(row["decision"])} if "decision" in row else row


def _value(column: str, kind: type, record: Mapping[str, Any]) -> Any:
    cell = record.get(column)
    if kind is float:
        if column not in record:
            raise InputError(f"the column {column} is missing.")
        number = math.nan if cell in ("", None) else float(cell)
        if wanted := expected_range(column, number):
            raise InputError(f"{column} must be {wanted}, or empty, but is {number:g}.")
        return number
    if cell is None and column in LATER_COLUMNS:
        return ""
    if cell is None:
        raise InputError(f"the column {column} is missing, or a line is short of it.")
    return kind(cell)


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return str(value)


def _null(value: str | float) -> str | float | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
