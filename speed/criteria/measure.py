"""Measurements of every stage of an adaptation: true Dice, the readings of the assessment, and other criteria."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from criteria import ConfidenceEstimates, confidence, entropy, shapes, soft_dice
from energies import LayerMoments, energies, layer_moments, summed
from subjects import Scan, Trial
from torch import Tensor, nn

from scantune.adaptation.prediction import predict
from scantune.backends import PreparedSlices
from scantune.model.model import Model
from scantune.networks import Inversion
from scantune.prior.label_readings import overlaps
from scantune.prior.perturbations import PERTURBATIONS
from scantune.prior.prediction_reader import PredictionReader

Row = dict[str, Any]


@dataclass(frozen=True)
class Home:
    """What criteria need to know of held-out home scans.

    Args:
        estimates: Estimates of Dice from confidence.
        moments: Moments of features.
        layers: The layers.
    """

    estimates: ConfidenceEstimates
    moments: LayerMoments
    layers: Sequence[str]

    @classmethod
    def of(cls, model: Model, scans: Sequence[PreparedSlices]) -> "Home":
        """Read home scans."""
        assert model.prior is not None
        layers = model.prior.layers()
        seen = [(model.backend.windows(scan), scan.reference) for scan in scans]
        pairs = [
            (flat_probabilities(predict(model.network, volume, model.task, None).probabilities), flat_labels(labels))
            for volume, labels in seen
            if labels is not None
        ]
        moments = summed(layer_moments(model.network, layers, volume, model.task) for volume, _ in seen)
        return cls(ConfidenceEstimates.fit(pairs), moments, layers)


def flat_probabilities(probabilities: Tensor) -> Tensor:
    """Return `(slices, classes, height, width)`, also of a 3D network."""
    return probabilities[0].transpose(0, 1) if probabilities.ndim == 5 else probabilities


def flat_labels(labels: Tensor) -> Tensor:
    """Return `(slices, height, width)`, also of a 3D network."""
    return labels[0] if labels.ndim == 4 else labels


def look(model: Model, network: nn.Module, scan: PreparedSlices, home: Home) -> Row:
    """Measure the prediction of a network for a scan, with a number or a list by structure of each criterion."""
    assert model.prior is not None and scan.reference is not None
    volume, structures = model.backend.windows(scan), len(model.labels)
    prediction = predict(network, volume, model.task, model.prior)
    reader = PredictionReader.of(volume, model.task, structures, model.backend.voxel_ml(scan))
    readings = reader.read(network, tuple(PERTURBATIONS), own=prediction.labels[list(reader.slices)])
    probabilities, labels = flat_probabilities(prediction.probabilities), flat_labels(prediction.labels)
    estimates = home.estimates
    moments = layer_moments(network, home.layers, volume, model.task)
    return {
        "dice": overlaps(prediction.labels, scan.reference, structures),
        "sizes": readings.sizes,
        "steadiness": dict(readings.steadiness),
        "contacts": readings.contacts,
        "soft": soft_dice(probabilities, labels),
        "temperature": estimates.by_temperature(probabilities, labels),
        "difference": estimates.by_difference(probabilities, labels),
        "threshold": estimates.by_threshold(probabilities, labels),
        "confidence": confidence(probabilities, labels),
        "entropy": entropy(probabilities, labels),
        **shapes(labels, structures),
        "energies": {"product": prediction.energy, **energies(moments, home.moments)},
    }


def measured(trial: Trial, folder: Path) -> bool:
    """Return True if all scans of a trial have been measured."""
    return set(trial.scans) <= _done(folder / trial.name / "rows.jsonl")


def _done(rows: Path) -> set[tuple[str, str]]:
    """Return the scans that have been measured."""
    if not rows.exists():
        return set()
    return {(line["person"], line["shift"]) for line in _lines(rows)[1:]}


def _lines(rows: Path) -> list[Row]:
    return [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]


def measure(trial: Trial, model: Model, folder: Path) -> None:
    """Write a line for the home of a trial, and one for each scan that was adapted to, with all its stages."""
    place = folder / trial.name
    rows = place / "rows.jsonl"
    done = _done(rows)
    waiting = [pair for pair in trial.scans if pair not in done and (place / f"{'-'.join(pair)}.pt").exists()]
    if not waiting:
        return
    held_out = trial.held_out()
    home = Home.of(model, held_out)
    if not rows.exists():
        _append(rows, _home_line(trial, model, held_out, home))
    for pair in waiting:
        _append(rows, _scan_line(trial, model, home, pair, place))
        print(trial.name, *pair, "measured", flush=True)


def _home_line(trial: Trial, model: Model, held_out: Sequence[PreparedSlices], home: Home) -> Row:
    """Return what is known of the home of a trial."""
    assert model.prior is not None and model.prior.calibration is not None and model.prior.calibration.home is not None
    readings = {name: values.tolist() for name, values in model.prior.calibration.home.tensors().items()}
    scans = [look(model, model.network, scan, home) for scan in held_out]
    return {"name": trial.name, "group": trial.group, "labels": model.labels, "home": readings, "scans": scans}


def _scan_line(trial: Trial, model: Model, home: Home, pair: tuple[str, str], place: Path) -> Row:
    """Return the stages of a scan, measured."""
    found = torch.load(place / f"{'-'.join(pair)}.pt")
    scan, network, stages = trial.scan(*pair), deepcopy(model.network), []
    for step, state in zip(found["steps"], found["states"], strict=True):
        if step and found["inversion"] is not None:
            network.curve = Inversion(*map(float, found["inversion"].values()))
        network.load_state_dict(state, strict=False)
        stages.append({"step": step, **look(model, network, scan.prepared, home)})
    noted = {name: found[name] for name in ("verdict", "action", "chosen")}
    return {"person": pair[0], "shift": pair[1], **noted, **_guarded(scan, pair, place), "stages": stages}


def _guarded(scan: Scan, pair: tuple[str, str], place: Path) -> Row:
    """Return the Dice under the guard of priors without home readings, if it was asked for."""
    path = place / f"{'-'.join(pair)}-guard.pt"
    if not path.exists():
        return {}
    assert scan.prepared.reference is not None
    labels = torch.load(path)["labels"]
    return {"guard": overlaps(labels, scan.prepared.reference, int(scan.prepared.reference.max()))}


def _append(path: Path, row: Row) -> None:
    """Add a line to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
