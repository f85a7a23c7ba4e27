"""One conformity suite for every method, and what is particular to each."""

from copy import deepcopy

import pytest
import torch

import scantune
from scantune import FieldOfExperts, InputError
from scantune.adaptation.schedules import PRESETS
from scantune.methods import METHODS, FoECNNPCA, ModelParts
from scantune.prior.layer import MINIMUM_ACTIVE
from scantune.scans.volume import Volume, batch_size
from scantune.tasks import TASKS, Registration, Segmentation
from tests.conftest import TOY_PATCHES, toy_scan, with_heights

PAIRS = [(task, method) for method, kind in METHODS.items() for task in TASKS if task not in kind.refuses]


def seen(scan, task):
    """A scan as the task's toy network takes it."""
    return with_heights(scan) if task == "registration" else scan


@pytest.fixture
def known(request, task):
    """The toy of a task, as a model."""
    return request.getfixturevalue("toy_registration" if task == "registration" else "toy").model


@pytest.mark.parametrize(("task", "method"), PAIRS)
class TestEveryMethod:
    def test_the_source_network_is_untouched(self, task, method, known):
        network = known.network
        before, trained = deepcopy(network.state_dict()), {n: p.requires_grad for n, p in network.named_parameters()}
        scantune.adapt(known, seen(toy_scan(70)[0] ** 2, task), method=method, steps=2)
        assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
        assert {name: parameter.requires_grad for name, parameter in network.named_parameters()} == trained
        assert not any(module._forward_hooks for module in network.modules())

    @pytest.mark.parametrize("preset", PRESETS)
    def test_the_same_seed_gives_the_same_result(self, task, method, preset, known):
        scan = seen(toy_scan(71)[0] ** 2, task)
        one, other = (scantune.adapt(known, scan, method=method, preset=preset, steps=2, seed=5) for _ in range(2))
        assert torch.equal(one.adapted.probabilities, other.adapted.probabilities)
        assert one.trace == other.trace

    @pytest.mark.parametrize(
        "scan",
        [
            pytest.param(toy_scan(72, slices=1)[0] ** 2, id="one slice"),
            pytest.param(toy_scan(73, size=64)[0] ** 2, id="another size"),
            pytest.param(torch.zeros(2, 1, 48, 48), id="empty foreground"),
            pytest.param(torch.rand(3, 1, 41, 50), id="odd size, noise"),
        ],
    )
    def test_any_scan_runs_without_nan(self, task, method, scan, known):
        result = scantune.adapt(known, seen(scan, task), method=method, steps=2)
        assert result.prediction.shape == (len(scan), *scan.shape[2:])
        assert torch.isfinite(result.adapted.probabilities).all()
        assert all(value == value for row in result.trace for value in row.values())

    def test_its_own_objective_falls(self, task, method, known):
        result = scantune.adapt(known, seen(toy_scan(74)[0] ** 2, task), method=method, steps=5, guard=False)
        if method == "source":
            assert result.trace == []
        else:
            assert min(row["objective"] for row in result.trace[1:]) < result.trace[0]["objective"]


@pytest.mark.parametrize(
    ("task", "method", "why"),
    [
        (Registration(), "entropy", "distribution over a fixed number of classes.*instance"),
        (Registration(), "dae", "corruptions of deformations"),
        (Segmentation(), "instance", "neither an atlas nor a deformation"),
    ],
)
def test_a_method_that_a_task_has_no_place_for_says_why(task, method, why):
    with pytest.raises(InputError, match=f"Method {method} does not apply to {task.name}: .*{why}"):
        METHODS[method](ModelParts(task))


@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_a_foe_method_without_a_prior_says_how_to_get_one(method, toy):
    with pytest.raises(InputError, match="needs a prior.*FieldOfExperts.fit"):
        scantune.adapt(toy.network, toy_scan(75)[0], method=method)


def test_entropy_is_the_plain_sum_over_pixels_and_classes(toy):
    from scipy.stats import entropy

    scan = toy_scan(76)[0] ** 2
    result = scantune.adapt(toy.network, scan, method="entropy", steps=1)
    with torch.no_grad():
        p = toy.network(scan).softmax(1).double().numpy()
    assert result.trace[0]["entropy"] == pytest.approx(entropy(p, axis=1).mean(), rel=1e-4)


def test_entropy_of_independent_channels_counts_both_outcomes():
    from scipy.stats import entropy

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 1))
    scan = torch.rand(2, 1, 8, 8)
    result = scantune.adapt(network, scan, method="entropy", steps=1)
    with torch.no_grad():
        p = network(scan).sigmoid().double().flatten().numpy()
    assert result.trace[0]["entropy"] == pytest.approx(entropy([p, 1 - p], axis=0).mean(), rel=1e-4)


def test_the_objective_is_equation_15(toy):
    scan = toy_scan(77)[0] ** 1.5
    result = scantune.adapt(toy.network, scan, prior=toy.prior, steps=1)
    energies = toy.prior.energies(toy.prior.statistics(toy.network, scan))
    cnn = float(torch.stack(list(energies["cnn"].values())).mean())
    pca = float(energies["pca"]["up.2.second.conv"])
    first = result.trace[0]
    assert first["cnn"] == pytest.approx(cnn, rel=1e-4)
    assert first["pca"] == pytest.approx(pca, rel=1e-4)
    assert first["objective"] == pytest.approx(cnn + 0.1 * pca, rel=1e-4)


def test_collapse_does_not_pay(toy):
    """An empty foreground carries the last valid PCA value and is never eligible (fact 8)."""
    method = FoECNNPCA(ModelParts(Segmentation(), toy.prior))
    method.prepare(deepcopy(toy.network))
    full = method.measure(next(Volume(toy_scan(78)[0]).batches(8)))
    valid = method.terms(full)
    assert valid.valid
    empty = {key: value * (0 if key.startswith("pca/") else 1) for key, value in full.items()}
    collapsed = method.terms(empty)
    method.finish()
    assert not collapsed.valid
    assert float(collapsed.parts["pca"].detach()) == float(valid.parts["pca"].detach())
    assert float(collapsed.parts["active patches"]) < MINIMUM_ACTIVE


def test_a_run_forced_to_an_empty_foreground_is_not_selected(toy, monkeypatch):
    """The forced steps have the lowest objective of all, and still the source parameters win."""
    measure = FoECNNPCA.measure
    images, calls = toy_scan(79)[0] ** 1.5, []
    first = len(images.split(batch_size(images))) + 1  # whether there are patches at all, and the source

    def emptied(self, batch):
        statistics = measure(self, batch)
        calls.append(1)
        if len(calls) <= first:
            return statistics
        return {key: value * (0 if key.startswith("pca/") else 1e-3) for key, value in statistics.items()}

    monkeypatch.setattr(FoECNNPCA, "measure", emptied)
    monkeypatch.setattr(
        FieldOfExperts, "energies", lambda _, s: {k.split("/")[0]: {"all": 1e-3 * v[0].sum()} for k, v in s.items()}
    )
    # Adam goes on where a gradient is zero, as that of these energies.
    result = scantune.adapt(toy.network, images, prior=toy.prior, preset="paper", steps=3, guard=True)
    assert [row["valid"] for row in result.trace] == [True, False, False, False]
    assert all(row["smoothed"] < result.trace[0]["smoothed"] for row in result.trace[1:])
    assert result.facts["best_step"] == 0
    assert result.decision.action == "unsolved"


def test_without_pca_experts_the_default_method_matches_cnn_experts_alone(toy):
    prior = FieldOfExperts.fit(toy.network, toy.volumes, patches=TOY_PATCHES, read=0).without("pca")
    result = scantune.adapt(toy.network, toy_scan(80)[0] ** 1.5, prior=prior, steps=2)
    assert "pca" not in result.trace[0]
    assert result.energy_after < result.energy_before
