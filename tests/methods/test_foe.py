"""Field of Experts: every density, divergence and option, with no code of their own per combination."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
import torch

import scantune
from scantune import FieldOfExperts, InputError
from scantune.adaptation.loop import Schedule, optimise
from scantune.adaptation.sampling import WholeVolume
from scantune.adaptation.solvers import Solver
from scantune.backends.slices import Preprocessing
from scantune.config.settings import PriorSettings
from scantune.densities import DENSITIES, DIVERGENCES
from scantune.methods import METHODS, ModelParts
from scantune.methods.expert_statistics import alike, objective_and_gradient
from scantune.methods.foe import FoEOptions
from scantune.networks import GateAfterNormalizer, HalfPrecision, SinglePrecision
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from scantune.training.fit import fit_prior
from tests.conftest import TOY_PATCHES, toy_scan

METHOD = {"cnn": "foe-cnn", "pca": "foe-cnn-pca"}


@pytest.fixture(scope="module")
def priors(toy):
    return {
        name: FieldOfExperts.fit(toy.network, toy.volumes[:3], patches=TOY_PATCHES, density=name, alpha=6.0)
        for name in DENSITIES
    }


def ready(toy, prior, method="foe-cnn", options=None, double=False):
    """A method that is ready to measure, and its moving parameters."""
    network = deepcopy(toy.network).requires_grad_(False)
    if double:
        network = network.double()
        tensors = {k: t.double() if t.is_floating_point() else t for k, t in prior.tensors().items()}
        prior = FieldOfExperts.restore(prior.record(), tensors)
    runner = METHODS[method](ModelParts(Segmentation(), prior), options)
    moving = runner.parameters(network)
    runner.prepare(network)
    for parameter in moving.values():
        parameter.requires_grad_(True)
    return runner, moving


def gradients(toy, prior, method, options, images, batch):
    runner, moving = ready(toy, prior, method, options, double=True)
    terms = WholeVolume(batch, kept=0).gradients(runner, Volume(images.double()), torch.Generator())()
    runner.finish()
    return float(terms.objective.detach()), torch.cat([p.grad.flatten() for p in moving.values()])


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("experts", METHOD)
def test_every_combination_lowers_its_objective(experts, density, divergence, toy, priors):
    scan = toy_scan(160, slices=2)[0] ** 1.7
    result = scantune.adapt(
        toy.network,
        scan,
        prior=priors[density],
        method=METHOD[experts],
        steps=3,
        guard=False,
        device="cpu",  # in half precision an energy has fewer digits
        options={"divergence": divergence},
    )
    assert min(row["objective"] for row in result.trace[1:]) < result.trace[0]["objective"]
    assert all(value == value for row in result.trace for value in row.values())
    assert result.trace[0]["cnn"] == pytest.approx(priors[density].energy(toy.network, scan), rel=1e-3)


def test_options_name_every_divergence():
    assert get_args(get_type_hints(FoEOptions)["divergence"]) == tuple(DIVERGENCES)


@pytest.mark.parametrize("divergence", ["kl", "wasserstein"])
@pytest.mark.parametrize("density", ["kde", "histogram"])
def test_whole_volume_gradients_over_batches_are_those_of_one_big_batch(density, divergence, toy, priors):
    images = toy_scan(161, slices=5)[0] ** 1.5
    how = (toy, priors[density], "foe-cnn-pca", {"divergence": divergence}, images)
    (value, gradient), (expected_value, expected) = gradients(*how, 2), gradients(*how, 5)
    assert value == pytest.approx(expected_value, rel=1e-9)
    assert torch.allclose(gradient, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max()))


@pytest.mark.parametrize("density", ["kde", "histogram"])
def test_objectives_a_and_b_have_the_same_gradient(density, toy, priors):
    """The appendix: for the KL divergence they differ by what does not depend on the scan."""
    images = toy_scan(162)[0] ** 1.5
    b, gradient = gradients(toy, priors[density], "foe-cnn", {}, images, 4)
    a, other = gradients(toy, priors[density], "foe-cnn", {"reference": "expected"}, images, 4)
    assert b - a == pytest.approx(priors[density].floor(), rel=1e-4)
    assert torch.allclose(gradient, other, rtol=1e-4, atol=1e-6 * float(gradient.abs().max()))


def objective(toy, prior, options, step=0, seed=0, method="foe-cnn", scan=None):
    runner, _ = ready(toy, prior, method, options)
    volume = Volume(toy_scan(163)[0] ** 1.5 if scan is None else scan)
    runner.begin(step, volume, torch.Generator().manual_seed(seed))
    terms = runner.terms(runner.measure(next(volume.batches(8))))
    runner.finish()
    return float(terms.objective.detach())


@pytest.mark.parametrize("density", DENSITIES)
def test_a_random_subject_is_one_of_the_subjects(density, toy, priors):
    prior = priors[density]
    found = {round(objective(toy, prior, {"reference": "random"}, seed=seed), 6) for seed in range(12)}
    statistics = prior.statistics(toy.network, toy_scan(163)[0] ** 1.5)
    kl = DIVERGENCES["kl"]
    each = set()
    for share in (0.1, 0.5, 0.9):
        one = prior.compared(kl, lambda d, s=share: d.subject(s)).energies(statistics)["cnn"]
        each.add(float(torch.stack(list(one.values())).mean()))
    assert sorted(found) == pytest.approx(sorted(each), rel=1e-3)
    assert sum(each) / 3 == pytest.approx(objective(toy, prior, {}), rel=1e-3)


def test_a_random_subject_stays_the_same_within_a_step(toy, priors):
    runner, _ = ready(toy, priors["gaussian"], options={"reference": "random"})
    volume, generator = Volume(toy_scan(164)[0] ** 1.5), torch.Generator().manual_seed(0)
    statistics = runner.measure(next(volume.batches(8)))
    seen = []
    for step in range(6):
        runner.begin(step, volume, generator)
        one, other = (float(runner.terms(statistics).objective.detach()) for _ in range(2))
        assert one == other
        seen.append(one)
    runner.finish()
    assert 1 < len(set(seen)) <= 3


def energies(toy, prior, scan=None):
    scan = toy_scan(163)[0] ** 1.5 if scan is None else scan
    return {k: float(v) for k, v in prior.energies(prior.statistics(toy.network, scan))["cnn"].items()}


def test_channels_can_count_alike(toy, priors):
    prior = priors["gaussian"]
    layers = energies(toy, prior)
    sizes = {layer: int(field.kept.sum()) for layer, field in prior.families["cnn"].layers.items()}
    expected = sum(layers[k] * sizes[k] for k in layers) / sum(sizes.values())
    assert objective(toy, prior, {"weighting": "channel"}) == pytest.approx(expected, rel=1e-3)
    assert objective(toy, prior, {}) == pytest.approx(sum(layers.values()) / len(layers), rel=1e-3)
    assert expected != pytest.approx(sum(layers.values()) / len(layers), rel=1e-2)


def test_layers_can_be_chosen(toy, priors):
    layers = energies(toy, priors["gaussian"])
    first, second = list(layers)[:2]
    assert objective(toy, priors["gaussian"], {"layers": "first"}) == pytest.approx(layers[first], rel=1e-3)
    both = objective(toy, priors["gaussian"], {"layers": f"{second} {first}"})
    assert both == pytest.approx((layers[first] + layers[second]) / 2, rel=1e-3)


@pytest.mark.parametrize("layers", ["down.9", ""])
def test_layers_that_do_not_exist_are_refused(layers, toy):
    with pytest.raises(InputError, match="no expert layer .*names out of: down.0.first.conv"):
        METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior), {"layers": layers})


def test_layers_join_from_the_input_side(toy, priors):
    """They all count from the start, but those that have not joined do not pull."""
    runner, _ = ready(toy, priors["gaussian"], "foe-cnn-pca", {"schedule": "bottom-up", "joining": 7})
    volume = Volume(toy_scan(165)[0] ** 1.5)
    measured = runner.measure(next(volume.batches(8)))
    pulls, values = [], []
    for step in (0, 1, 6, 20):
        runner.begin(step, volume, torch.Generator())
        statistics = {key: value.detach().requires_grad_() for key, value in measured.items()}
        terms = runner.terms(statistics)
        terms.objective.backward()
        pulls.append([key for key, value in statistics.items() if value.grad is not None and value.grad.any()])
        values.append(float(terms.objective.detach()))
    runner.finish()
    layers = [f"cnn/{layer}" for layer in priors["gaussian"].families["cnn"].layers]
    assert pulls == [layers[:2], layers[:4], [*layers, "pca/up.2.second.conv"], [*layers, "pca/up.2.second.conv"]]
    assert values == pytest.approx([values[0]] * 4)


def test_lambda_weighs_the_pca_term(toy, priors):
    how = {"method": "foe-cnn-pca"}
    at = {weight: objective(toy, priors["kde"], {"weight": weight}, **how) for weight in (0.0, 0.1, 1.0)}
    assert at[0.0] == pytest.approx(objective(toy, priors["kde"], {}), rel=1e-5)
    assert at[1.0] - at[0.0] == pytest.approx(10 * (at[0.1] - at[0.0]), rel=1e-3)
    assert at[0.1] > at[0.0]


def test_only_a_fixed_objective_is_steady(toy):
    def steady(**options):
        return METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior), options).steady

    assert steady()
    assert steady(reference="expected", divergence="wasserstein")
    assert not steady(reference="random")
    assert not steady(schedule="bottom-up")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"divergence": "wasserstein"}, "Wasserstein distance needs the subjects' own densities"),
        ({"reference": "random"}, "holds no single subject's densities"),
    ],
)
def test_a_summarised_prior_refuses_before_the_run_what_it_cannot_serve(options, complaint, toy):
    with pytest.raises(InputError, match=complaint):
        METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior.summarised()), options)
    METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior.summarised()), {**options, "reference": "expected"})


def test_layers_must_join_within_a_step_at_least(toy):
    with pytest.raises(InputError, match="joining must be 1 or more, got 0"):
        METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior), {"joining": 0})


@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_an_objective_and_its_gradient_wait_for_nothing_from_the_device(method, density, toy, priors, monkeypatch):
    runner, _ = ready(toy, priors[density], method)
    asked = []
    for name in ("__float__", "__bool__", "__int__", "item", "tolist"):
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda s, *a, p=plain: (asked.append(p), p(s, *a))[1])
    runner.terms(runner.measure(next(Volume(toy_scan(166)[0]).batches(8)))).objective.backward()
    runner.finish()
    assert not asked


@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_half_precision_gives_the_objective_and_the_gradient_up_to_rounding(method, toy, priors):
    runner, named = ready(toy, priors["gaussian"], method)
    moving = list(named.values())
    scan = Volume(toy_scan(167)[0] ** 1.5)
    exact = objective_and_gradient(runner.batch_objective, scan.spread(4), moving)
    runner.statistics.use_half_precision(scan.images.numel())
    half = objective_and_gradient(runner.batch_objective, scan.spread(4), moving)
    assert not torch.equal(half, exact)
    assert alike(half, exact)
    assert runner.fast_path.leave_half_precision()
    torch.testing.assert_close(objective_and_gradient(runner.batch_objective, scan.spread(4), moving), exact)
    assert not runner.fast_path.leave_half_precision()
    runner.finish()


class Rough(GateAfterNormalizer):
    """As if half precision held two digits."""

    def halved(self, image):
        return (8 * super().halved(image)).round() / 8


@pytest.mark.parametrize(
    ("tried", "found"),
    [
        ([Rough, GateAfterNormalizer], HalfPrecision),
        ([Rough], SinglePrecision),
        ([GateAfterNormalizer, Rough], HalfPrecision),
    ],
)
def test_as_much_is_in_half_precision_as_gives_the_same_objective_and_gradient(tried, found, toy, priors, monkeypatch):
    runner, named = ready(toy, priors["gaussian"], "foe-cnn")
    plain = runner.network.normalizer
    monkeypatch.setattr("scantune.methods.expert_statistics.possible_gates", lambda _: tried)
    moving = list(named.values())
    runner.statistics.try_half_precision(Volume(toy_scan(167)[0] ** 1.5), runner.batch_objective, moving)
    assert type(runner.statistics.precision) is found
    assert type(runner.network.normalizer) is (GateAfterNormalizer if found is HalfPrecision else type(plain))
    runner.finish()


class RecordedGradients(Solver):
    """Moves nothing; keeps each objective with its gradient."""

    def __init__(self):
        self.found = []

    def run(self, moving, objectives, rate, steps):
        for objective in objectives:
            gradients = [each.grad.flatten() for each in moving if each.grad is not None]
            self.found.append(torch.cat([objective.detach().view(1), *gradients]))


def test_a_gradient_that_overflows_in_half_precision_is_taken_again_in_single_precision(toy, priors, monkeypatch):
    scan, found = Volume(toy_scan(167, slices=4)[0] ** 1.5), []
    for halved in (False, True):
        runner, solver = METHODS["foe-cnn"](ModelParts(Segmentation(), priors["gaussian"])), RecordedGradients()
        if halved:
            monkeypatch.setattr(runner, "start", lambda *_, runner=runner: runner.statistics.use_half_precision(2**60))
        network = deepcopy(toy.network).requires_grad_(False)
        optimise(network, runner, scan, Schedule(WholeVolume(), solver, 1), 0)
        assert isinstance(runner.statistics.precision, SinglePrecision)
        found.append(solver.found[0])
    assert found[0].numel() > 100
    assert found[0][1:].abs().max() > 0
    torch.testing.assert_close(found[1], found[0])


def test_a_model_is_fitted_with_the_density_that_was_asked_for(toy):
    model = scantune.Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(size=(48, 48)), {"kind": "custom"})
    cases = [SimpleNamespace(volume=volume, padding=None, distance=None, reference=None) for volume in toy.volumes[:3]]
    settings = PriorSettings("histogram", size=8, stride=4, components=4)
    prior = fit_prior(model, cases[:2], cases[2:], settings=settings, device="cpu")
    expected = FieldOfExperts.fit(toy.network, toy.volumes[:2], patches=TOY_PATCHES, density="histogram")
    scan = toy_scan(167)[0] ** 1.5
    assert prior.energy(toy.network, scan) == expected.energy(toy.network, scan)
    assert prior.calibration is not None
    with pytest.raises(InputError, match="histogram densities .* cannot be summarised"):
        fit_prior(model, [], settings=PriorSettings("histogram", summarise=True))


def test_a_scan_with_too_few_patches_from_the_start_is_matched_by_features_alone(toy, monkeypatch):
    scan = toy_scan(161, slices=2)[0] ** 1.5
    both = {
        method: scantune.adapt(toy.network, scan, toy.prior, method, steps=3, guard=False, device="cpu")
        for method in ("foe-cnn", "foe-cnn-pca")
    }
    assert both["foe-cnn"].trace[-1]["objective"] != both["foe-cnn-pca"].trace[-1]["objective"]
    monkeypatch.setattr("scantune.methods.foe.MINIMUM_ACTIVE", 10**9)
    alone = scantune.adapt(toy.network, scan, toy.prior, "foe-cnn-pca", steps=3, guard=False, device="cpu")
    assert alone.trace == both["foe-cnn"].trace
    assert all(row["valid"] for row in alone.trace)


@pytest.mark.parametrize("method", ["foe-cnn", "foe-cnn-pca"])
def test_steps_that_see_every_third_slice_are_those_of_a_scan_of_these_slices(method, toy):
    scan = toy_scan(163)[0] ** 1.5
    settings = {"prior": toy.prior, "method": method, "steps": 3, "guard": False, "device": "cpu"}
    thick = scantune.adapt(toy.network, scan, **settings)
    thin = scan.repeat_interleave(3, 0)
    some = scantune.adapt(toy.network, thin, **settings, options={"slices": len(scan)})
    assert some.trace == thick.trace
    assert len(some.prediction) == len(thin)
    assert torch.equal(some.prediction[::3], thick.prediction)


def test_looks_at_a_run_by_some_slices_are_at_the_slices_that_they_are_meant_for(toy, monkeypatch):
    """What a step has predicted on its way is not taken for that of another slice."""
    scan = toy_scan(165, slices=11)[0] ** 1.5
    settings = {"prior": replace(toy.prior, trained=None), "steps": 3, "device": "cpu", "options": {"slices": 6}}
    ours = scantune.adapt(toy.network, scan, **settings)
    monkeypatch.setattr("scantune.methods.base.OutputCache.output", lambda _: None)
    anew = scantune.adapt(toy.network, scan, **settings)
    assert ours.decision == anew.decision
    assert ours.decision.numbers["looks"] > 0


def test_some_slices_are_not_for_the_random_slices_of_the_paper(toy):
    scan = toy_scan(164, slices=6)[0] ** 1.5
    settings = {"prior": toy.prior, "preset": "paper", "steps": 1, "guard": False, "device": "cpu"}
    some, every = (scantune.adapt(toy.network, scan, **settings, options={"slices": n}) for n in (2, 0))
    assert some.trace == every.trace


def test_thinned_volumes_keep_their_ends_and_know_how_far_slices_are_apart():
    images = torch.arange(9.0).view(9, 1, 1, 1)
    thin = Volume(images, images > 6, distance=2.0).thinned(5)
    assert thin.images.flatten().tolist() == [0, 2, 4, 6, 8]
    assert thin.padding is not None and thin.padding.flatten().tolist() == [False, False, False, False, True]
    assert thin.distance == 4.0
    assert [batch.slices.tolist() for batch in thin.batches(3)] == [[0, 2, 4], [6, 8]]
    assert thin.spread(3).slices.tolist() == [0, 4, 8]
    assert thin.thinned(5) is thin


def test_fewer_slices_than_none_are_refused(toy):
    with pytest.raises(InputError, match="slices must be 0, for all of them, or more, got -1"):
        METHODS["foe-cnn"](ModelParts(Segmentation(), toy.prior), {"slices": -1})
