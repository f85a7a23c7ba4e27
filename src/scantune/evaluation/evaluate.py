"""Evaluation of predicted label maps against references, per scan and structure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.evaluation.metrics import Score, score
from scantune.evaluation.rows import write_table
from scantune.scans.case import require_same_grid
from scantune.scans.files import require_writable
from scantune.scans.io import read_labels
from scantune.scans.manifest import read_manifest
from scantune.scans.pairing import PredictionPair, PredictionPairs, pair_predictions


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

    def cells(self) -> list[object]:
        """Return the cells of the line, metrics with eight significant digits."""
        *names, metrics = (getattr(self, entry.name) for entry in fields(self))
        return [*names, *(f"{value:.8g}" for value in astuple(metrics))]


EVALUATION_COLUMNS = tuple(entry.name for entry in fields(EvaluationRow)[:-1] + fields(Score))
"""Columns of the score file, in this order."""


@dataclass(frozen=True)
class EvaluationSummary:
    """Means of one structure over all scans of a method, for each metric over the scans that have it.

    Attributes:
        method: What made the predictions.
        structure: Name of the structure.
        dice: Mean Dice.
        hd95: Mean 95th percentile Hausdorff distance in mm.
        asd: Mean average symmetric surface distance in mm.
        scored: Number of scans in the mean Dice.
        one_sided: Number of these with the structure in one volume only: Dice 0 and no distances.
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
        """Write all rows as CSV, completely or not at all."""
        write_table(path, EVALUATION_COLUMNS, (row.cells() for row in self.rows))


def evaluate(
    predictions: Path | str,
    references: Path | str,
    *,
    structures: Mapping[str, int] | None = None,
    reference: str | None = None,
    out: Path | str | None = None,
    cohort: str = "",
    site: str = "",
    on_pair: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score predictions against references, and write the score file if asked to.

    Files in folders are matched by name (`scantune.scans.pairing`). In a folder that `scantune adapt` wrote, method,
    seed and the names of the structures come from its manifest. `NAME_source_seg` files are the method `source`.

    Args:
        predictions: A label map or a folder of label maps.
        references: A label map or a folder of label maps, as the predictions.
        structures: Label value by name; other values are ignored. By default the structures of the manifest, which must
            be the only ones, or every value that occurs, named by its number.
        reference: Path of each reference in its folder, with `{name}` for the scan, such as `{name}_labels.nii.gz`.
        out: File for the scores, as CSV.
        cohort: Entry of the column `cohort`.
        site: Entry of the column `site`.
        on_pair: Called with the number of pairs done and the number of all pairs.

    Raises:
        InputError: Nothing could be scored, or the score file cannot be written.
    """
    predictions, references = Path(predictions), Path(references)
    if out is not None:
        _require_file(Path(out))
    manifest = _manifest(predictions if predictions.is_dir() else predictions.parent)
    scans = manifest.get("scans", {}).values()
    inputs = {str(one.get("input_hash", "")) for entry in scans for one in (entry, *entry.get("channels", ()))}
    matches = pair_predictions(predictions, references, reference, inputs - {""})
    known = manifest.get("labels") if structures is None else structures
    allowed = None if structures is not None or known is None else {0, *known.values()}

    scored: list[tuple[PredictionPair, dict[str, Score]]] = []
    failures: dict[str, str] = {}
    for done, pair in enumerate(matches.pairs, start=1):
        try:
            scored.append((pair, _score_pair(pair, known, allowed)))
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


def _score_pair(
    pair: PredictionPair, structures: Mapping[str, int] | None, allowed: set[int] | None
) -> dict[str, Score]:
    """Score every given structure, or every value in either volume, by name."""
    prediction, reference = (read_labels(path, allowed) for path in (pair.prediction, pair.reference))
    require_same_grid(prediction, reference)
    if allowed is None and structures is not None:
        for path, found in ((pair.prediction, prediction), (pair.reference, reference)):
            _require_some(path, found.labels, structures)
    if structures is None:
        values = np.union1d(np.unique(prediction.labels), np.unique(reference.labels))
        structures = {str(value): int(value) for value in values}
    return {
        name: score(prediction.labels, reference.labels, value, reference.spacing)
        for name, value in structures.items()
        if value != 0
    }


def _require_some(path: Path, labels: NDArray[np.integer], structures: Mapping[str, int]) -> None:
    """Check that a label map is empty or holds one of the structures.

    Raises:
        InputError: It holds other values alone, so it is probably of another task.
    """
    values = {int(value) for value in np.unique(labels)} - {0}
    if values and values.isdisjoint(structures.values()):
        raise InputError(
            f"{path} has unknown labels: expected some of {sorted(structures.values())}, but it holds "
            f"{sorted(values)[:8]}. Check the values of --labels, or give the label map of this task."
        )


def _rows(
    scored: Sequence[tuple[PredictionPair, dict[str, Score]]], records: Mapping[str, Any], cohort: str, site: str
) -> list[EvaluationRow]:
    """Return the rows of all scores; a structure that only other scans have is in neither volume of this one."""
    names = {name for _, scores in scored for name in scores}
    order = sorted(names, key=int) if all(map(str.isdecimal, names)) else list(scored[0][1])
    neither = Score(math.nan, math.nan, math.nan, 0.0, 0.0, math.nan)
    by_file = {Path(file).name: record for record in records.values() for file in record.get("outputs", {}).values()}
    rows = []
    for pair, scores in scored:
        record = records.get(pair.name) or by_file.get(pair.prediction.name, {})
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


def _manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest that `scantune adapt` wrote into a folder; an empty one for other folders."""
    try:
        return read_manifest(folder)
    except InputError:
        return {}
