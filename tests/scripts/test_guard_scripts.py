"""The scripts behind the guard's figures, on made-up paths."""

import csv
import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch

import scantune
from scantune.adaptation.guard.stability import StabilityRules
from scantune.adaptation.prediction import predict
from scantune.prior.calibration import Calibration, EnergyLevels
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan
from tests.scripts.test_scripts import script

KNOWN = Calibration(EnergyLevels(0.04, 0.08, 0.5), torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.1]))


@pytest.fixture(scope="module")
def rules():
    return script("guard_rules")


def row(step, dice, objective, stability=0.9, agreement=1.0, cnn=0.1):
    return {
        **{"step": step, "dice": [dice, dice], "smoothed": objective, "valid": True, "cnn": cnn, "counts": [60, 40]},
        "stability": {name: [stability] * 2 for name in ("mirrored", "darker", "brighter", "moved")},
        "agreement": [agreement] * 2,
    }


def line(*path, run="foe-cnn-pca", energy=0.1, site="B"):
    return {
        **{"cohort": "toys", "site": site, "source_site": "A", "subject": f"{site}-1", "run": run, "model": "toy"},
        "energies": {"cnn": {"a": energy, "b": energy}},
        "path": list(path),
    }


PATH = [row(0, 0.7, 5.0), row(1, 0.8, 4.0, 0.95), row(2, 0.9, 4.5, 0.99), row(3, 0.6, 3.0, 0.8), row(4, 0.5, 2.0, 0.8)]


def test_the_guard_is_played_back_on_the_steps_that_lower_the_objective(rules):
    assert rules.play(line(*PATH), KNOWN, StabilityRules()) == (1, 3, "adapted")
    assert rules.play(line(*PATH), KNOWN, StabilityRules(patience=1)) == (1, 2, "adapted")
    assert rules.play(line(PATH[0], *PATH[3:]), KNOWN, StabilityRules()) == (0, 2, "unsolved")


def test_a_typical_scan_is_skipped_and_a_typical_energy_ends_a_path(rules):
    assert rules.play(line(*PATH, energy=0.019), KNOWN, StabilityRules()) == (0, 0, "left alone")
    assert rules.play(line(*PATH), KNOWN, StabilityRules(), level=0.1) == (1, 1, "adapted")


def test_of_the_papers_preset_the_end_alone_is_judged(rules):
    assert rules.play(line(*PATH, run="entropy 1e-3"), KNOWN, StabilityRules()) == (0, 1, "unsolved")
    better = line(*PATH[:2], run="entropy 1e-3", energy=0.001)
    assert rules.play(better, KNOWN, StabilityRules()) == (1, 1, "adapted")


def test_the_summary_counts_harm_and_what_stays_improved(rules):
    lines = [line(*PATH), line(PATH[0], PATH[1]), line(PATH[0], *PATH[3:])]
    played = [rules.play(each, KNOWN, StabilityRules()) for each in lines]
    told = rules.summary(lines, played)
    assert told == ["+0.0667", "-0.1000", "+0.000", "0", "2/3", "1/1", "2.0"]


def test_scores_become_tables(rules, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rules, "calibration", lambda *_: KNOWN)
    lines = [
        *(line(*PATH), line(*PATH[:2], site="A", energy=0.05)),
        *(line(PATH[0], row(1, 0.2, 1.0, 0.5, 0.3), run="entropy 1e-3"),),
    ]
    (tmp_path / "paths.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    out = tmp_path / "guard.csv"
    rules.score(Namespace(models="", files=[tmp_path / "paths.jsonl"], out=out))
    first = next(iter(csv.DictReader(out.read_text(encoding="utf-8").splitlines())))
    assert (first["dice_before"], first["dice_free"], first["dice"]) == ("0.7000", "0.5000", "0.8000")
    assert (first["reading"], first["decision"], first["step"]) == ("shifted", "adapted", "1")
    rules.table(Namespace(files=[out]))
    rules.separation(Namespace(files=[out]))
    printed = capsys.readouterr().out
    assert "| toys | B | 1 | 0.700 | 0.500 | 0.800 | +0.100 | 1 | 0 | 0 |" in printed
    assert (
        "| simulated | foe-cnn-pca | 2 | 1, 0 | 1, 1 | 1 of 1 | 0 of 1 shifted | +0.1000 of -0.0500 | +0.100 |"
        in printed
    )
    assert (
        "| simulated | entropy 1e-3 | 1 | 1, 0 | 0, 0 | 1 of 1 | 1 of 1 shifted | +0.0000 of -0.5000 | +0.000 |"
        in printed
    )
    assert "| toys | 1 | 1 | 1.00 | 1 of 1 | 0 of 1 |" in printed
    assert "The mean of a centre changes by +0.1000 at the least (toys, A)" in printed
    assert "Rolled back are 0 of 1 shifted scans" in printed


def test_a_path_notes_what_could_be_known_and_what_could_not(toy):
    paths = script("guard_paths")
    images, labels = toy_scan(310)
    model = SimpleNamespace(network=toy.network, task=Segmentation(), prior=toy.prior, helpers={})
    first, last = paths.follow(model, Volume(images**1.5), labels, "batchnorm")
    assert (first["step"], last["step"]) == (0, 1)
    assert first["agreement"] == [1, 1]
    assert first["objective"] > last["objective"]
    assert 0 < last["agreement"][0] <= 1
    assert sum(first["dice"]) < 2


@pytest.mark.parametrize("gamma", [1.5, 0.5])
def test_what_is_played_back_on_a_path_is_what_an_adaptation_does(toy, rules, gamma):
    paths = script("guard_paths")
    scan = Volume(toy_scan(310)[0] ** gamma)
    model = toy.model
    path = paths.follow(model, scan, toy_scan(310)[1], "foe-cnn-pca")
    energies = predict(model.network, scan, model.task, model.prior).energies
    told = line(*path) | {"energies": energies}
    anybody = Calibration(EnergyLevels(1e-6, 1e-6, 1.0), torch.tensor([0.5, 0.5]), torch.tensor([1e3, 1e3]))
    result = scantune.adapt(toy.network, scan.images, prior=toy.prior)
    played = rules.play(told, anybody, StabilityRules())
    assert played.decision == result.decision.action
    assert (played.step, played.looks) == (result.facts["best_step"], result.facts["guard"]["looks"])


def test_the_dice_to_be_expected_is_that_of_sure_probabilities():
    paths = script("guard_paths")
    labels = torch.tensor([[[0, 1, 1, 0]]])
    sure = torch.nn.functional.one_hot(torch.tensor([[[0, 1, 0, 0]]]), 2).movedim(-1, 1).float()
    assert paths.expected(sure, labels, 1) == pytest.approx([2 / 3])
