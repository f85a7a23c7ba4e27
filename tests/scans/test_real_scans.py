"""The bundled models on real scans, where the environment variable SCANTUNE_DATA says they are."""

import os
from pathlib import Path

import pytest

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.io import read_labels, read_scan

FOLDER = Path(os.environ.get("SCANTUNE_DATA", "nowhere"))
DATA, CORDS = FOLDER / "oasis", FOLDER / "gm-challenge"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="SCANTUNE_DATA names no folder with oasis/ in it")
@pytest.mark.parametrize("subject", ["1000", "1010"])
def test_the_bundled_brain_model_serves_real_scans_as_they_are(subject):
    model = scantune.load("brain")
    result = scantune.adapt(model, read_scan(DATA / f"{subject}_T1w.nii.gz"), method="source")
    reference = read_labels(DATA / f"{subject}_tissue.nii.gz").labels
    assert dice(result.prediction, reference, model.labels["GM"]) > 0.75
    assert dice(result.prediction, reference, model.labels["WM"]) > 0.75
    assert result.energy_before > model.prior.floor()


@pytest.mark.slow
@pytest.mark.skipif(not CORDS.is_dir(), reason="SCANTUNE_DATA names no folder with gm-challenge/ in it")
@pytest.mark.parametrize("subject", ["sub-9418", "sub-9584"])
def test_the_bundled_cord_model_finds_both_matters_in_real_scans_as_they_are(subject):
    model = scantune.load("spine-varied")
    (path,) = CORDS.glob(f"{subject}/anat/*_T2starw.nii.gz")
    result = scantune.adapt(model, read_scan(path))
    stem = path.name.removesuffix(".nii.gz")
    cord, grey = (
        read_labels(CORDS / "derivatives" / "labels" / subject / "anat" / f"{stem}_{mask}-manual.nii.gz").labels > 0
        for mask in ("seg", "gmseg")
    )
    assert result.decision.action == "left alone"
    assert dice(result.prediction, grey.astype("uint8"), model.labels["GM"]) > 0.7
    assert dice(result.prediction, 2 * (cord & ~grey).astype("uint8"), model.labels["WM"]) > 0.85
