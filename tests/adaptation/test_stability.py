"""Perturbed scans and the agreement of what is predicted for them."""

import pytest
import torch
from torch import nn

from scantune.adaptation.guard.stability import (
    GUARD_PERTURBATIONS,
    READ_SLICES,
    PerturbedSlices,
    agreements,
    stability,
)
from scantune.methods import OutputCache
from scantune.prior.perturbations import PERTURBATIONS, Perturbation
from scantune.scans.volume import CPU_BATCH, Volume, batch_size
from scantune.tasks import Segmentation
from tests.conftest import toy_scan

TASK = Segmentation()


@pytest.mark.parametrize("name", ["mirrored", "moved"])
def test_a_perturbation_that_moves_pixels_is_undone(name, rng):
    change, values = PERTURBATIONS[name], torch.rand(2, 3, 7, 9, generator=rng)
    assert not torch.equal(change.there(values), values)
    assert torch.equal(change.back(change.there(values)), values)


@pytest.mark.parametrize(("name", "factor"), [("darker", 0.9), ("brighter", 1.1)])
def test_brightness_changes_by_a_tenth_and_the_prediction_stays_in_place(name, factor, rng):
    change, values = PERTURBATIONS[name], torch.rand(2, 1, 4, 4, generator=rng)
    torch.testing.assert_close(change.there(values), factor * values)
    assert change.back(values) is values


def pointwise(threshold):
    """Class 1 where a pixel is brighter than the threshold: no place and no neighbour matters."""
    network = nn.Conv2d(1, 2, 1)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([0.0, 100.0]).reshape(2, 1, 1, 1))
        network.bias.copy_(torch.tensor([0.0, -100.0 * threshold]))
    return network


def test_a_network_that_looks_at_pixels_alone_is_unsure_only_of_brightness():
    images = torch.linspace(0, 1, 400).reshape(1, 1, 20, 20)
    labels = PerturbedSlices(images, TASK, tuple(PERTURBATIONS)).labels(pointwise(0.5))
    alone = dict(zip(PERTURBATIONS, (agreements(labels[0], other, 1)[0] for other in labels[1:]), strict=True))
    assert alone["mirrored"] == alone["moved"] == 1
    n, dark, bright = ((torch.linspace(0, 1, 400) > limit).sum() for limit in (0.5, 0.5 / 0.9, 0.5 / 1.1))
    assert alone["darker"] == pytest.approx(float(2 * dark / (n + dark)))
    assert alone["brighter"] == pytest.approx(float(2 * n / (n + bright)))
    assert stability(labels, 1) == pytest.approx([sum(alone.values()) / 4])


def test_agreement_is_monais_dice_and_perfect_where_neither_has_the_structure(rng):
    from monai.metrics import compute_dice
    from monai.networks.utils import one_hot

    one, other = (torch.randint(0, 4, (5, 12, 9), generator=rng) for _ in range(2))
    one[one == 3], other[other == 3] = 0, 0
    scores = compute_dice(*(one_hot(volume[None, None], 4) for volume in (one, other)), include_background=False)
    assert agreements(one, other, 3) == pytest.approx([*scores[0, :2].tolist(), 1.0])


@pytest.mark.parametrize("slices", [1, 3, 8, 30])
def test_at_most_some_slices_are_looked_at_from_the_first_to_the_last(slices):
    images = torch.arange(slices).float().reshape(-1, 1, 1, 1)
    seen = PerturbedSlices.of(images, TASK).images.flatten().tolist()
    assert len(seen) == min(slices, READ_SLICES)
    assert (seen[0], seen[-1]) == (0, slices - 1)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_however_many_slices_are_predicted_together_each_is_its_own_slices(at_once, toy, monkeypatch):
    monkeypatch.setattr("scantune.adaptation.guard.stability.batch_size", lambda _images: at_once)
    images = toy_scan(141, slices=5)[0]
    found = PerturbedSlices(images, TASK).probabilities(toy.network)
    changes = [Perturbation(lambda v: v, lambda v: v), *(PERTURBATIONS[name] for name in GUARD_PERTURBATIONS)]
    with torch.no_grad():
        expected = [change.back(toy.network(change.there(images)).softmax(1)) for change in changes]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_gpu_gets_many_pixels_together_and_a_cpu_few_slices_or_windows():
    assert batch_size(torch.zeros(9, 1, 64, 64)) == CPU_BATCH
    assert batch_size(torch.zeros(9, 1, 8, 64, 64)) == CPU_BATCH
    assert 1 < CPU_BATCH < 9
    assert batch_size(torch.zeros(9, 1, 256, 256, device="meta")) == 32
    assert batch_size(torch.zeros(1, 1, 200, 256, 256, device="meta")) == 1


def test_a_trained_network_is_stabler_on_scans_of_its_own_site(toy):
    def of(gamma):
        return sum(stability(PerturbedSlices.of(toy_scan(140)[0] ** gamma, TASK).labels(toy.network), 2)) / 2

    assert of(1.0) > of(2.0) + 0.02


def test_what_is_known_of_a_scan_as_it_is_is_not_predicted_again(toy):
    scout = PerturbedSlices.of(toy_scan(141, slices=5)[0], TASK)
    expected, shown = scout.probabilities(toy.network), []
    handle = toy.network.register_forward_pre_hook(lambda _module, inputs: shown.append(len(inputs[0])))
    found = scout.probabilities(toy.network, expected[0])
    handle.remove()
    assert sum(shown) == len(GUARD_PERTURBATIONS) * 5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_latest_outputs_are_there_when_all_of_them_are_and_until_parameters_move(rng):
    latest, outputs = OutputCache(), torch.rand(6, 3, 4, 4, generator=rng)
    volume = Volume(torch.zeros(6, 1, 4, 4))
    latest.slices = [0, 3, 5]
    for batch in volume.batches(2):
        assert latest.output() is None
        latest.note(batch, outputs[batch.slices])
    assert torch.equal(latest.output(), outputs[[0, 3, 5]])
    latest.forget()
    assert latest.output() is None
    for batch in volume.batches(2):
        latest.note(batch, [outputs[batch.slices]])  # a network whose output is no tensor
    assert latest.output() is None


def test_nothing_is_kept_of_outputs_that_nobody_wants():
    latest = OutputCache()
    for batch in Volume(torch.zeros(2, 1, 4, 4)).batches(2):
        latest.note(batch, torch.zeros(2, 3, 4, 4))
    assert latest.output() is None
