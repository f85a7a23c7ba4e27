"""The Dice along an adaptation."""

from dataclasses import replace

import numpy as np
import pytest

import scantune
from scantune import Model
from scantune.backends.slices import Preprocessing
from scantune.benchmark.jobs.observe import DiceObserver
from scantune.benchmark.jobs.scoring import common_structures, dices
from scantune.scans.case import Case
from tests.conftest import toy_scan

ARCHITECTURE = {"kind": "unet", "classes": 3, "width": 8}
LABELS = {"rim": 1, "core": 2}


def case_of(seed, gamma):
    images, labels = toy_scan(seed)
    array = (200 * (images**gamma)[:, 0]).permute(2, 1, 0).numpy()
    return Case("scan", array, np.diag([-1.0, -1.0, 3.0, 1.0]), labels.permute(2, 1, 0).numpy())


@pytest.mark.parametrize("slices", [2, 24])
def test_a_score_is_of_the_whole_scan_even_if_steps_see_a_part_of_it(toy, monkeypatch, slices):
    monkeypatch.setattr("scantune.adaptation.guard.rescue.READ_SLICES", slices)
    model = Model(toy.network, LABELS, Preprocessing(size=(48, 48)), ARCHITECTURE, prior=toy.prior)
    case, structures = case_of(300, 0.5), common_structures(LABELS, LABELS)
    observer = DiceObserver("foe-cnn", model, case, structures, "mean", [0, 1])
    result = scantune.adapt(model, case, method=observer.method(), steps=2, device="cpu")
    assert result.facts["verdict_before"] != "fine"
    assert observer.found[0] == dices(result.source_prediction, case, structures, False)
    assert set(observer.found) == {0, 1}
    assert observer.noted([{"step": 0}])[0]["dice"] == observer.found[0]["mean"]


def test_nothing_is_watched_without_steps(toy):
    model = Model(toy.network, LABELS, Preprocessing(size=(48, 48)), ARCHITECTURE, prior=toy.prior)
    observer = DiceObserver("foe-cnn", replace(model), case_of(300, 1.0), common_structures(LABELS, LABELS), "mean", [])
    assert observer.method() is scantune.methods.METHODS["foe-cnn"]
