"""The benchmark of criteria: its figures against plain loops, and a small run from training to the page."""

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import scantune
from scantune.adaptation.guard import rescue
from scantune.prior.home_readings import HomeReadings
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan

FOLDER = Path(__file__).parents[2] / "speed" / "criteria"


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmark by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def predictions():
    """Probabilities `(2, 3, 12, 12)` of three scans, sharper than they are right, and references."""
    generator = torch.Generator().manual_seed(0)
    scans = []
    for _ in range(3):
        reference = torch.randint(3, (2, 3, 3), generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
        logits = 2 * torch.nn.functional.one_hot(reference, 3).movedim(-1, 1)
        noisy = logits + 1.5 * torch.randn(logits.shape, generator=generator)
        scans.append(((2 * noisy).softmax(1), reference))
    return scans


def loop_dice(claimed, predicted):
    """Dice of claims and pixels, pixel by pixel."""
    both = total = 0.0
    for claim, is_there in zip(claimed.flatten().tolist(), predicted.flatten().tolist(), strict=True):
        both += claim * is_there
        total += claim + is_there
    return 2 * both / total


def test_estimates_from_confidence_are_those_of_a_plain_loop_and_right_at_home(module, predictions):
    estimates = module("criteria").ConfidenceEstimates.fit(predictions)
    found = {"temperature": [], "difference": [], "threshold": []}
    true = []
    for probabilities, reference in predictions:
        labels = probabilities.argmax(1)
        plain: dict[str, list[float]] = {name: [] for name in found}
        for value in (1, 2):
            own = labels == value
            cold = (probabilities.log() / estimates.temperatures[value - 1]).softmax(1)[:, value]
            plain["temperature"].append(loop_dice(cold, own))
            plain["difference"].append(loop_dice(probabilities[:, value], own) - estimates.differences[value - 1])
            plain["threshold"].append(loop_dice((cold > estimates.thresholds[value - 1]).double(), own))
            true.append(loop_dice((reference == value).double(), own))
        for name, values in plain.items():
            mine = getattr(estimates, f"by_{name}")(probabilities, labels)
            assert mine == pytest.approx(values, abs=1e-5)
            found[name] += mine
    for name, values in found.items():
        assert np.mean(values) == pytest.approx(np.mean(true), abs=2e-2 if name == "threshold" else 1e-4)
    assert min(estimates.temperatures) > 1  # they were too sure


def test_confidence_and_entropy_are_those_of_a_plain_loop(module, predictions):
    criteria = module("criteria")
    probabilities = predictions[0][0]
    labels = torch.zeros(2, 12, 12, dtype=torch.long)
    labels[0, 3, 4] = 2
    sure, unsure = [], []
    for row in range(1, 6):
        for column in range(2, 7):
            each = probabilities[0, :, row, column].tolist()
            sure.append(max(each))
            unsure.append(-sum(p * math.log(p) for p in each) / math.log(3))
    assert criteria.confidence(probabilities, labels) == pytest.approx(np.mean(sure), abs=1e-6)
    assert criteria.entropy(probabilities, labels) == pytest.approx(np.mean(unsure), abs=1e-6)
    assert criteria.confidence(probabilities, 0 * labels) == 0
    assert criteria.entropy(probabilities, 0 * labels) == 1


def test_shapes_are_what_can_be_counted_by_hand(module):
    labels = torch.zeros(2, 6, 6, dtype=torch.long)
    labels[0, 1:4, 1:4] = 1  # 9 pixels; outline 12
    labels[0, 5, 5] = 1  # another part of 1; outline 4
    labels[1, 2:4, 2:4] = 1  # 4 pixels, all below the first; outline 8
    found = module("criteria").shapes(labels, 2)
    assert found["largest"] == [13 / 14, None]
    assert found["continuity"] == [2 * 4 / 14, None]
    assert found["outline"] == [pytest.approx((16 / math.sqrt(10) + 8 / 2) / 2), None]
    radius = math.sqrt(7 / math.pi)
    assert found["depth"] == [pytest.approx((8 * 1 + 2 + 1 + 4 * 1) / 14 / radius), None]


def test_energies_are_divergences_of_gaussians(module):
    energies = module("energies")
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(3, 3, generator=generator)
    home, scan = (
        torch.randn(2, 3, 20, 20, generator=generator).double(),
        torch.einsum("ij,njhw->nihw", mixing, torch.randn(2, 3, 20, 20, generator=generator)).double() + 0.5,
    )
    weights = torch.rand(2, 2, 20, 20, generator=generator)
    usual, own = energies.Moments.of(home, weights), energies.Moments.of(scan, weights)
    found = energies.energies({"layer": own}, {"layer": usual})

    def gaussian(values, place):
        heavy = weights[:, place].double().flatten()
        flat = values.transpose(0, 1).flatten(1)
        mean = (flat * heavy).sum(1) / heavy.sum()
        apart = flat - mean[:, None]
        return mean, (apart * heavy) @ apart.T / heavy.sum()

    (mean, cov), (usual_mean, usual_cov) = gaussian(scan, 0), gaussian(home, 0)
    scale = usual_cov.diagonal().sqrt()
    ridge = energies.RIDGE * torch.eye(3)
    own_cov, their_cov = cov / scale.outer(scale) + ridge, usual_cov / scale.outer(scale) + ridge
    mean, usual_mean = mean / scale, usual_mean / scale
    joint = kl_divergence(MultivariateNormal(mean, own_cov), MultivariateNormal(usual_mean, their_cov))
    each = kl_divergence(Normal(mean, own_cov.diagonal().sqrt()), Normal(usual_mean, their_cov.diagonal().sqrt()))
    assert found["joint"] == pytest.approx(float(joint) / 3, rel=1e-6)
    assert found["foreground"] == pytest.approx(float(each.mean()), rel=1e-6)
    (mean, cov), (usual_mean, usual_cov) = gaussian(scan, 1), gaussian(home, 1)
    spread, usual_spread = ((part.diagonal() / scale.square() + energies.FLOOR).sqrt() for part in (cov, usual_cov))
    by_class = kl_divergence(Normal(mean / scale, spread), Normal(usual_mean / scale, usual_spread))
    assert found["by class"] == pytest.approx(float(by_class.mean()), rel=1e-6)


def test_moments_of_layers_are_of_pixels_that_are_not_empty(module, toy):
    images = toy_scan(3, slices=3)[0]
    images[:, :, :10] = 0
    volume = Volume(images, images > 0.9)
    layer = toy.prior.layers()[0]
    found = module("energies").layer_moments(toy.network, [layer], volume, Segmentation())[layer]
    body = (images > 0) & (images <= 0.9)
    assert float(found.weight[0]) == pytest.approx(int(body.sum()))
    assert float(found.weight[1:].sum()) == pytest.approx(int(body.sum()), rel=1e-5)


def test_statistics_are_those_of_scikit_learn_and_of_counting(module):
    figures = module("figures")
    generator = np.random.default_rng(0)
    bad, good = generator.normal(1, 1, 30).round(1).tolist(), generator.normal(0, 1, 40).round(1).tolist()
    assert figures.auroc(bad, good) == pytest.approx(roc_auc_score([1] * 30 + [0] * 40, bad + good))
    limit = sorted(good)[-3]  # two of forty lie above
    assert figures.sensitivity(bad, good) == sum(value > limit for value in bad) / 30
    assert figures.rank_correlation([3, 2, 1], [0.1, 0.5, 0.9]) == pytest.approx(1)
    assert math.isnan(figures.auroc([], good))
    low, high = figures.interval(range(40), lambda item: item // 4, np.mean)
    assert low < 19.5 < high


@pytest.fixture
def small(module, monkeypatch, tmp_path):
    """A toy network's trial, trained for a moment, with two shifts and two steps."""
    networks, trials = module("toy_networks"), module("toy_trials")
    for name, value in {"TRAINING_PEOPLE": 2, "HOME_PEOPLE": 2}.items():
        monkeypatch.setattr(networks, name, value)
        monkeypatch.setattr(trials, name, value)
    monkeypatch.setattr(networks, "SHIFTS", (("none", "invert"),) * 2)
    monkeypatch.setattr(networks.ToyNetwork.train, "__defaults__", (6,))
    monkeypatch.setattr(rescue, "RESCUE_STEPS", 2)
    toy = networks.ToyNetwork(7, "organ", "own", "batch")
    return trials.toy_trial(toy, "test", tmp_path)


def test_the_benchmark_goes_from_training_to_the_page(module, small, tmp_path):
    run, summary = module("run"), module("summary")
    model = small.fit(small.train())
    run.adapt(small, model, tmp_path)
    before = (tmp_path / small.name / "200-none.pt").stat().st_mtime_ns
    run.adapt(small, model, tmp_path)  # finds everything done
    assert (tmp_path / small.name / "200-none.pt").stat().st_mtime_ns == before
    run.measure(small, model, tmp_path)
    run.measure(small, model, tmp_path)
    found = list(summary.rows([tmp_path / small.name / "rows.jsonl"]))
    assert [(row["shift"], row["step"]) for row in found] == [(s, n) for s in ("none", "invert") for n in range(3)]
    for row in found:
        if row["step"] == 0:
            # Played back on what was stored, the decision is that of the run.
            assert row["recorded"] == f"{row['action']} {row['chosen']}"
    summary.write_rows(found, tmp_path / "rows.csv")
    scans = summary.scans_of(summary.read_rows(tmp_path / "rows.csv"))
    page = summary.page(scans, "[MUST HOLD]\n\n[CRITERIA]\n\n[NETWORKS]\n\n[SHIFTS]\n\n[NOTABLE]\n\n[DIFFERING]")
    assert f"| {small.name} | 2, 2 |" in page
    assert "| soft Dice |" in page
    assert "0 of 2" in page
    tried = module("tried")
    told = "\n".join(tried.page(tmp_path, ["test"]))
    assert "Networks: 1; scans: 2." in told
    for name in ("as it is", "rules of the earlier report"):
        same = tried.varied([tmp_path / small.name / "rows.jsonl"], tried.VARIANTS[name]) == summary.scans_of(found)
        assert same == (name == "as it is")
    plain, read = next(tried.sources([tmp_path / small.name / "rows.jsonl"])), found[0]
    assert plain.expected("", 0.0, 0.0) == pytest.approx(read["expected"])
    assert plain.expected("depth", 1e3, 0.0) < plain.expected("depth", 0.1, 0.0) <= plain.expected("", 0.0, 0.0)


def told(name, shift, *stages, action="unsolved", chosen=0, group="test"):
    """Rows of a scan, from the Dice of its stages."""
    whose = {"group": group, "name": name, "person": "1", "shift": shift}
    first = {"action": action, "chosen": chosen}
    return [{**whose, "step": step, "dice": dice, **(first if step == 0 else {})} for step, dice in enumerate(stages)]


def test_gains_that_are_given_up_are_counted_by_what_becomes_of_them(module):
    summary = module("summary")
    rows = [
        *told("a", "kept", 0.5, 0.7, action="adapted", chosen=1),
        *told("a", "alone", 0.8, 0.84, action="left alone"),
        *told("a", "refused", 0.5, 0.6),
        *told("a", "other", 0.5, 0.48, 0.6, action="adapted", chosen=1),
        *told("a", "no gain", 0.9, 0.9),
    ]
    lines = list(summary.given_up(summary.scans_of(rows)))
    assert lines[-1] == "| toys, test | 4 | 1 | 1 | 1 | 1 | 0.087 |"


def test_what_is_recorded_is_what_the_default_does_where_sizes_are_known(module, small, monkeypatch):
    monkeypatch.setattr(HomeReadings, "without_sizes", lambda home: home)
    model = small.fit(small.train())
    for pair in small.scans:
        scan = small.scan(*pair)
        path, result = module("record").recorded(model, scan)
        plain = scantune.adapt(model, scan.given, device="cpu")
        assert path.action == plain.decision.action
        assert torch.equal(result.prediction, plain.prediction)
        assert len(path.steps) == len(path.states) == 3


def scan_of(module, *dice, chosen=0, simple=0, verdict="failed"):
    """A scan of made-up stages."""
    first = {
        **{"group": "test", "name": "toy", "person": "1", "shift": "dark", "verdict": verdict, "expected": 0.5},
        **{"chosen": chosen, "simple": simple, "guard": dice[0], "final verdict": "fine", "action": "adapted"},
    }
    stages = [{**(first if step == 0 else {}), "step": step, "dice": value} for step, value in enumerate(dice)]
    return module("scans").Scan(stages)


def test_the_share_that_is_kept_is_of_failing_scans_that_gain(module):
    scans = module("scans")
    found = [
        *(scan_of(module, 0.2, 0.6, 0.8, chosen=1), scan_of(module, 0.9, 0.5, 0.5, verdict="fine")),
        *(scan_of(module, 0.4, 0.3, 0.6, chosen=0), scan_of(module, 0.5, 0.4, 0.3, chosen=2)),
    ]
    assert scans.share_kept("handed", found) == pytest.approx(0.4 / (0.6 + 0.2))
    assert scans.share_kept("simple", found) == 0
    assert scans.lowest_mean(found) == 0
    assert scans.wrongly_fine(found) == 1
    assert scans.unsolved_or_rescued(found) == 0
    assert scans.called_failed(scans.usable(found)) == 0
