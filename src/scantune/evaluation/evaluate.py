"""Scores predicted label maps against references, per scan and structure."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from scantune.errors import InputError
from scantune.evaluation.metrics import Score, score
from scantune.scans.case import require_same_grid
from scantune.scans.files import require_writable, write_text
from scantune.scans.io import read_labels
from scantune.scans.manifest import read_manifest
from scantune.scans.names import PredictionPair, PredictionPairs, pair_predictions


@dataclass(frozen=True)
class EvaluationRow:
    """One structure of one prediction: one line of the score file."""

    cohort: str
    site: str
    subject: str
    method: str
    seed: int | None
    structure: str
    score: Score

    def record(self) -> dict[str, object]:
        """Return the cells of the line by column."""
        cells = {entry.name: getattr(self, entry.name) for entry in fields(self)[:-1]}
        return cells | {metric: f"{value:.8g}" for metric, value in asdict(self.score).items()}


EVALUATION_COLUMNS = tuple(entry.name for entry in fields(EvaluationRow)[:-1] + fields(Score))
"""Columns of the score file, in this order."""


@dataclass(frozen=True)
class EvaluationSummary:
    """One structure over all scans of a method; means are over the scans where the metric exists.

    Attributes:
        method: What made the predictions.
        structure: Name of the structure.
        dice: Mean Dice.
        hd95: Mean 95th percentile Hausdorff distance in mm.
        asd: Mean average symmetric surface distance in mm.
        scored: Number of scans in the mean Dice.
        one_sided: How many of these have the structure in one volume only: Dice 0 and no distances.
        left_out: Number of scans that have the structure in neither volume.
    """

    method: str
    structure: str
    dice: float
    hd95: float
    asd: float
    scored: int
    one_sided: int
    left_out: int


@dataclass(frozen=True)
class Evaluation:
    """All scores of a run.

    Attributes:
        rows: One per prediction and structure.
        matches: The pairs, and the files without a counterpart.
        failures: A sentence for each pair that could not be scored, by the prediction's file name.
    """

    rows: list[EvaluationRow]
    matches: PredictionPairs
    failures: dict[str, str]

    def summary(self) -> list[EvaluationSummary]:
        """Return the means per method and structure, in order of appearance."""
        groups: dict[tuple[str, str], list[Score]] = {}
        for row in self.rows:
            groups.setdefault((row.method, row.structure), []).append(row.score)
        return [_summarise(method, structure, scores) for (method, structure), scores in groups.items()]

    def save(self, path: Path | str) -> None:
        """Write all rows as CSV; the file is complete or not there at all."""
        text = io.StringIO()
        writer = csv.DictWriter(text, EVALUATION_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.record() for row in self.rows)
        write_text(path, text.getvalue())


def evaluate(
    predictions: Path | str,
    references: Path | str,
    *,
    structures: Mapping[str, int] | None = None,
    out: Path | str | None = None,
    cohort: str = "",
    site: str = "",
    on_pair: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score predictions against references and, where asked, write the score file.

    Files in folders are matched by name (`scantune.filenames`). In a folder that `scantune adapt` wrote,
    method, seed and the names of the structures are taken from its manifest; `NAME_source_seg` files are the
    method `source`.

    Args:
        predictions: A label map or a folder of label maps.
        references: A label map or a folder of label maps, whichever the predictions are.
        structures: Label value by name; a label map with other values is refused. Without it, the
            manifest's structures, or else every value that occurs, named by its number.
        out: Where to write the scores as CSV.
        cohort: What to write in the column of that name.
        site: What to write in the column of that name.
        on_pair: Called with the number of pairs done and the number of all pairs.

    Raises:
        InputError: Nothing could be scored, or the score file cannot be written.
    """
    predictions, references = Path(predictions), Path(references)
    matches = pair_predictions(predictions, references)
    if out is not None:
        _require_file(Path(out))
    manifest = _told(predictions if predictions.is_dir() else predictions.parent)
    if structures is None:
        structures = manifest.get("labels")

    scored: list[tuple[PredictionPair, dict[str, Score]]] = []
    failures: dict[str, str] = {}
    for done, pair in enumerate(matches.pairs, start=1):
        try:
            scored.append((pair, _score_pair(pair, structures)))
        except InputError as error:
            failures[pair.prediction.name] = str(error)
        if on_pair is not None:
            on_pair(done, len(matches.pairs))
    if not scored:
        raise InputError(next(iter(failures.values())))

    rows = _rows(scored, manifest.get("scans", {}), cohort, site)
    evaluation = Evaluation(rows, matches, failures)
    if out is not None:
        evaluation.save(out)
    return evaluation


def _score_pair(pair: PredictionPair, structures: Mapping[str, int] | None) -> dict[str, Score]:
    """Score every given structure, or every value in either volume, by name."""
    allowed = None if structures is None else {0, *structures.values()}
    prediction, reference = (read_labels(path, allowed) for path in (pair.prediction, pair.reference))
    require_same_grid(prediction, reference)
    if structures is None:
        values = np.union1d(np.unique(prediction.labels), np.unique(reference.labels))
        structures = {str(value): int(value) for value in values}
    return {
        name: score(prediction.labels, reference.labels, value, reference.spacing)
        for name, value in structures.items()
        if value != 0
    }


def _rows(
    scored: Sequence[tuple[PredictionPair, dict[str, Score]]], records: Mapping[str, Any], cohort: str, site: str
) -> list[EvaluationRow]:
    """Lay out all scores; a structure that only other scans have is in neither volume of this one."""
    names = {name for _, scores in scored for name in scores}
    order = sorted(names, key=int) if all(map(str.isdecimal, names)) else list(scored[0][1])
    neither = Score(math.nan, math.nan, math.nan, 0.0, 0.0, math.nan)
    rows = []
    for pair, scores in scored:
        record = records.get(pair.name, {})
        method = "source" if pair.source else str(record.get("method", ""))
        for name in order:
            one = scores.get(name, neither)
            rows.append(EvaluationRow(cohort, site, pair.name, method, record.get("seed"), name, one))
    return rows


def _summarise(method: str, structure: str, scores: Sequence[Score]) -> EvaluationSummary:
    scored = [one for one in scores if not math.isnan(one.dice)]
    measured = [one for one in scored if not math.isnan(one.hd95)]
    return EvaluationSummary(
        method,
        structure,
        dice=_mean([one.dice for one in scored]),
        hd95=_mean([one.hd95 for one in measured]),
        asd=_mean([one.asd for one in measured]),
        scored=len(scored),
        one_sided=len(scored) - len(measured),
        left_out=len(scores) - len(scored),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} must be a file for the scores, but is a folder. Add a file name.")
    require_writable(path.parent)


def _told(folder: Path) -> dict[str, Any]:
    """Return what `scantune adapt` tells about its outputs; nothing where the folder comes from elsewhere."""
    try:
        return read_manifest(folder)
    except InputError:
        return {}
