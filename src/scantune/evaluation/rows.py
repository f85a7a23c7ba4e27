"""Score rows: what a benchmark knows about one structure of one scan after one run; the one reader and writer of them.

A file has one row per case, method, seed and structure, and one more with structure `mean`: the mean over the
foreground structures that can be scored. The prostate has a third kind, `whole`: its zones taken as one gland.
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
from scantune.scans.files import write_whole

MEAN = "mean"
"""The structure whose metrics are the mean over all foreground structures of a case."""

WHOLE = "whole"
"""The structure that takes all foreground structures of a case as one."""

ROWS_FILE = "rows.csv"
"""Name of the file in a bench folder, and in the folder of each of its jobs."""


@dataclass(frozen=True)
class ScoreRow:
    """One structure of one scan after one run; a number that there is none of is NaN, and an empty field in a file."""

    cohort: str
    """The simulated cohort or the data set."""
    site: str
    """The centre."""
    subject: str
    """The person, who is the unit of every test."""
    session: str
    """Which of a person's scans, such as ED and ES of a heart; empty where there is but one."""
    method: str
    """The name of the run in tables."""
    seed: int
    """The training run: everything random in it, and in what follows."""
    structure: str
    """Name of the structure; or `mean`, or `whole`."""
    dice: float
    hd95: float
    """In mm, as `asd`."""
    asd: float
    volume_ml: float
    reference_ml: float
    energy_before: float
    """FoE-CNN energy of the scan before adaptation, in nats."""
    energy_after: float
    decision: str
    """The guard's: kept, skipped, rolled back."""
    steps: int
    seconds: float
    """Of the adaptation, predictions before and after it included."""
    seconds_per_step: float
    peak_memory_mb: float
    device: str
    commit: str
    """The version of scantune that made the row."""
    settings: str
    """A hash of everything that was chosen for the run."""
    tier: str
    """How much of the experiment this is, as the experiment names it."""
    job: str
    """The hash of the job that made the row, under `jobs/` of the bench folder."""
    fold: str = ""
    """Which fold of a data set the person tests; empty where there are none, and in files of older versions."""

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """A row from the cells of a file, by column.

        Raises:
            InputError: A column is missing, or a cell is not what it should be.
        """
        return cls(*(_value(column, kind, record) for column, kind in COLUMN_TYPES.items()))


COLUMN_TYPES: dict[str, type] = {entry.name: entry.type for entry in fields(ScoreRow)}  # type: ignore[misc]
"""Columns of the file with their types, in this order."""

SCORE_COLUMNS = tuple(COLUMN_TYPES)

MEASURED_COLUMNS = ("seconds", "seconds_per_step", "peak_memory_mb")
"""Columns that differ from run to run; all others are the same whenever a job is done again on the same machine."""


def write_rows(path: Path | str, rows: Iterable[ScoreRow]) -> None:
    """Write rows as CSV; the file is complete or not there at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(SCORE_COLUMNS)
    writer.writerows([_cell(value) for value in astuple(row)] for row in rows)
    write_whole(Path(path), lambda temporary: temporary.write_text(text.getvalue(), encoding="utf-8"))


def write_parquet(path: Path | str, rows: Sequence[ScoreRow]) -> bool:
    """Write rows as Parquet, with nulls for NaN; False where pyarrow is not installed, and nothing is written."""
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


def read_rows(path: Path | str) -> list[ScoreRow]:
    """Read the rows of a CSV or Parquet file, or those of a bench folder.

    Raises:
        InputError: There is no such file, or it is not one of rows.
    """
    path = Path(path)
    file = path / ROWS_FILE if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"{file} does not exist: expected score rows, or a folder that scantune bench wrote. Check the path."
        )
    try:
        return [ScoreRow.read(record) for record in _records(file)]
    except (InputError, ValueError, OSError) as error:
        raise InputError(f"{file} must hold score rows of scantune bench, but does not: {error}") from error


def _records(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
        return rows
    with file.open(encoding="utf-8", newline="") as text:
        return list(csv.DictReader(text))


def _value(column: str, kind: type, record: Mapping[str, Any]) -> Any:
    cell = record.get(column)
    if kind is float:
        if column not in record:
            raise InputError(f"the column {column} is missing.")
        return math.nan if cell in ("", None) else float(cell)
    if cell is None and column == "fold":
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
