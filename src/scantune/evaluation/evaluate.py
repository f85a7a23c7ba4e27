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
from scantune.scans.manifest import STRUCTURE_KINDS, read_manifest
from scantune.scans.pairing import Mask, PredictionPair, PredictionPairs, pair_predictions

LabelValues = int | Sequence[int]
"""Value of a structure in label maps, or values that it is made of, as a region of a tumour is."""


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
    structures: Mapping[str, LabelValues] | None = None,
    reference: str | None = None,
    out: Path | str | None = None,
    cohort: str = "",
    site: str = "",
    on_pair: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Score predictions against references, and write the score file if asked to.

    Files in folders are matched by name (`scantune.scans.pairing`). In a folder that `scantune adapt` wrote, method,
    seed and the names of the structures come from its manifest. `NAME_source_seg` files are the method `source`.
    Structures that may overlap have a file each there, which is compared with the reference of that structure
    (`NAME_core.nii.gz`), or with the values in a label map that `structures` says it is made of.

    Args:
        predictions: A label map or a folder of label maps.
        references: A label map or a folder of label maps, as the predictions.
        structures: Label value by name, or several values that make up one structure; other values are ignored. By
            default the structures of the manifest, which must be the only ones, or every value that occurs, named by
            its number.
        reference: Path of each reference in its folder, with `{name}` for the scan, such as `{name}_labels.nii.gz`, and
            maybe with `{structure}`.
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
    folder = predictions if predictions.is_dir() else predictions.parent
    manifest = _manifest(folder)
    scans = manifest.get("scans", {}).values()
    inputs = {str(one.get("input_hash", "")) for entry in scans for one in (entry, *entry.get("channels", ()))}
    masks = _masks_of(folder, manifest, structures)
    matches = pair_predictions(predictions, references, reference, inputs - {""}, masks)
    known = manifest.get("labels") if structures is None else structures
    allowed = None if structures is not None or known is None else {0, *known.values()}

    scored: dict[tuple[str, bool], tuple[PredictionPair, dict[str, Score]]] = {}
    failures: dict[str, str] = {}
    for done, pair in enumerate(matches.pairs, start=1):
        try:
            scores = _score_mask(pair, structures) if pair.structure else _score_pair(pair, known, allowed)
            scored.setdefault((pair.name, pair.source), (pair, {}))[1].update(scores)
        except InputError as error:
            failures[pair.prediction.name] = str(error)
        if on_pair is not None:
            on_pair(done, len(matches.pairs))
    if not scored:
        raise InputError(next(iter(failures.values())))

    rows = _rows(list(scored.values()), manifest.get("scans", {}), cohort, site)
    evaluation = Evaluation(rows, matches, failures)
    if out is not None:
        evaluation.save(out)
    return evaluation


def _masks_of(folder: Path, manifest: Mapping[str, Any], structures: Mapping[str, LabelValues] | None) -> list[Mask]:
    """Return the files with one structure each that a manifest names, of all structures or of those asked for.

    Raises:
        InputError: Structures are asked for of which there is none.
    """
    found = []
    for name, entry in manifest.get("scans", {}).items():
        for key, file in entry.get("outputs", {}).items():
            kind, _, structure = key.partition(" ")
            if structure and kind in STRUCTURE_KINDS and (folder / file).is_file():
                found.append(Mask(folder / file, name, structure, kind == "source"))
    names = list(dict.fromkeys(mask.structure for mask in found))
    if names and structures is not None and not set(names) & set(structures):
        raise InputError(
            f"{folder} has the structures {', '.join(names)}, but --labels names {', '.join(structures)} alone. Say "
            f"what each is made of in the references, such as '{names[0]}=1,2'."
        )
    return [mask for mask in found if structures is None or mask.structure in structures]


def _score_mask(pair: PredictionPair, structures: Mapping[str, LabelValues] | None) -> dict[str, Score]:
    """Score a file with one structure against a file of the same kind, or against values of a label map.

    Raises:
        InputError: Nobody said of which values of the label map the structure is made.
    """
    prediction, reference = (read_labels(path) for path in (pair.prediction, pair.reference))
    require_same_grid(prediction, reference)
    if pair.alike:
        true = reference.labels != 0
    elif structures is None:
        raise InputError(
            f"{pair.prediction.name} holds one structure that others may overlap, but {pair.reference.name} is a label "
            f"map. Say which of its values each structure is made of, such as --labels '{pair.structure}=1,2'."
        )
    else:
        true = np.isin(reference.labels, structures[pair.structure])
        _require_some(pair.reference, reference.labels, structures)
    return {pair.structure: score(prediction.labels != 0, true, 1, reference.spacing)}


def _score_pair(
    pair: PredictionPair, structures: Mapping[str, LabelValues] | None, allowed: set[int] | None
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
        name: score(np.isin(prediction.labels, values), np.isin(reference.labels, values), 1, reference.spacing)
        for name, values in structures.items()
        if values != 0
    }


def _require_some(path: Path, labels: NDArray[np.integer], structures: Mapping[str, LabelValues]) -> None:
    """Check that a label map is empty or holds one of the structures.

    Raises:
        InputError: It holds other values alone, so it is probably of another task.
    """
    values = {int(value) for value in np.unique(labels)} - {0}
    expected = set(np.concatenate([np.atleast_1d(each) for each in structures.values()]).tolist())
    if values and values.isdisjoint(expected):
        raise InputError(
            f"{path} has unknown labels: expected some of {sorted(expected)}, but it holds "
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
        # A structure with a file of its own, which has no reference or was refused, is not in neither volume.
        for name in [name for name in order if name in scores] if pair.structure else order:
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
