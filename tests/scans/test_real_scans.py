"""The bundled model on real scans, where the environment variable SCANTUNE_DATA says they are."""

import os
from pathlib import Path

import pytest

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.io import read_labels, read_scan

DATA = Path(os.environ.get("SCANTUNE_DATA", "nowhere")) / "oasis"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="SCANTUNE_DATA names no folder with oasis/ in it")


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["1000", "1010"])
def test_the_bundled_brain_model_serves_real_scans_as_they_are(subject):
    model = scantune.load("brain")
    result = scantune.adapt(model, read_scan(DATA / f"{subject}_T1w.nii.gz"), method="source")
    reference = read_labels(DATA / f"{subject}_tissue.nii.gz").labels
    assert dice(result.prediction, reference, model.labels["GM"]) > 0.75
    assert dice(result.prediction, reference, model.labels["WM"]) > 0.75
    assert result.energy_before > model.prior.floor()
