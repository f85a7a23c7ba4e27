"""What is typical of source subjects: against numpy and plain computations."""

import math
from copy import deepcopy
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import nn

from conftest import toy_scan
from scantune import FieldOfExperts, InputError
from scantune.calibration import QUANTILE, Calibration, predicted_proportions, structure_counts
from scantune.networks import fold_batch_norm

HELD_OUT = [(toy_scan(seed)[0] ** 1.1, None) for seed in range(120, 124)]


@pytest.fixture(scope="module")
def prior(toy):
    return toy.prior.calibrated(toy.network, HELD_OUT, [(volume, None) for volume in toy.volumes])


def same(one, other):
    """Whether two calibrations have the same numbers."""
    return all(
        torch.equal(torch.as_tensor(getattr(one, field.name)), torch.as_tensor(getattr(other, field.name)))
        for field in fields(Calibration)
    )


@pytest.mark.parametrize("subjects", [1, 2, 7, 30])
def test_the_level_is_a_quantile_and_shares_have_mean_and_deviation(subjects):
    rng = np.random.default_rng(subjects)
    energies, shares = rng.gamma(2, 0.01, subjects), rng.dirichlet([3, 2, 1], subjects)
    known = Calibration.of(energies.tolist(), torch.from_numpy(shares))
    assert known.typical == pytest.approx(np.quantile(energies, QUANTILE), rel=1e-12)
    np.testing.assert_allclose(known.shares, shares.mean(0), rtol=1e-6)
    np.testing.assert_allclose(known.spread, np.maximum(shares.std(0), 1e-3), rtol=1e-5)


def test_oddness_is_the_largest_deviation_of_any_structure():
    shares, spread = [0.5, 0.3, 0.2], [0.1, 0.02, 0.05]
    known = Calibration(0.1, torch.tensor(shares), torch.tensor(spread))
    for counts in ([50, 30, 20], [40, 35, 25], [600, 290, 110], [0, 0, 3]):
        wanted = max(abs(n / sum(counts) - m) / s for n, m, s in zip(counts, shares, spread, strict=True))
        assert known.oddness(torch.tensor(counts)) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_an_empty_foreground_is_as_odd_as_can_be():
    known = Calibration(0.1, torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1]))
    assert known.oddness(torch.zeros(2, dtype=torch.long)) == math.inf


def test_structures_are_counted_without_the_background_and_where_absent():
    labels = torch.tensor([[[0, 1, 1], [3, 0, 1]]])
    assert structure_counts(labels, 4).tolist() == [3, 0, 1, 0]
    assert structure_counts(torch.zeros(2, 3, dtype=torch.long), 2).tolist() == [0, 0]


def test_a_calibration_survives_its_tensors():
    known = Calibration(float(np.float32(0.0221)), torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.05]))
    assert same(Calibration.from_tensors(known.tensors()), known)


def test_proportions_are_those_of_the_predicted_labels(toy):
    volume = toy_scan(125, slices=5)[0] ** 1.5
    with torch.no_grad():
        counts = np.bincount(toy.network(volume).argmax(1).flatten(), minlength=3)[1:]
    network = deepcopy(toy.network).train()
    buffers = deepcopy(network.state_dict())
    found = predicted_proportions(network, volume, batch=2)
    np.testing.assert_allclose(found, counts / counts.sum(), rtol=1e-12)
    assert network.training
    assert all(torch.equal(buffers[key], value) for key, value in network.state_dict().items())


def test_independent_channels_are_all_structures():
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Sigmoid())
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([40.0, -40.0]).reshape(2, 1, 1, 1))
        network[0].bias.copy_(torch.tensor([-36.0, 4.0]))
    volume = torch.tensor([0.0, 0.05, 0.5, 0.95] * 4).reshape(1, 1, 4, 4)  # two of the second to one of the first
    assert predicted_proportions(network, volume).tolist() == pytest.approx([1 / 3, 2 / 3])


def test_a_volume_without_foreground_has_no_shares():
    network = nn.Conv2d(1, 3, 1)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    assert predicted_proportions(network, torch.rand(2, 1, 4, 4)).tolist() == [0, 0]


def test_energies_are_of_held_out_subjects_and_shares_of_all(toy, prior):
    energies = [toy.prior.energy(toy.network, volume) for volume, _ in HELD_OUT]
    assert prior.calibration.typical == pytest.approx(np.quantile(energies, QUANTILE), rel=1e-9)
    volumes = [volume for volume, _ in HELD_OUT] + toy.volumes
    shares = np.stack([predicted_proportions(toy.network, volume) for volume in volumes])
    np.testing.assert_allclose(prior.calibration.shares, shares.mean(0), rtol=1e-6)
    np.testing.assert_allclose(prior.calibration.spread, np.maximum(shares.std(0), 1e-3), rtol=1e-4)


def test_padding_of_held_out_subjects_is_left_out_of_their_energy(toy):
    scan = toy_scan(126)[0]
    padded = nn.functional.pad(scan, (0, 0, 16, 0), value=1.0)
    mask = torch.zeros_like(padded, dtype=torch.bool)
    mask[:, :, :16] = True
    known = toy.prior.calibrated(toy.network, [(padded, mask)]).calibration
    assert known.typical == pytest.approx(toy.prior.energy(toy.network, padded, mask), rel=1e-9)
    assert known.typical < 0.2 * toy.prior.energy(toy.network, padded)


def test_training_subjects_alone_do_not_calibrate(toy):
    with pytest.raises(InputError, match="at least one held-out source subject, got none"):
        toy.prior.calibrated(toy.network, [], [(volume, None) for volume in toy.volumes])


def test_calibrating_changes_nothing_else(toy, prior):
    assert toy.prior.calibration is None
    scan = toy_scan(127)[0] ** 1.5
    assert prior.energy(toy.network, scan) == toy.prior.energy(toy.network, scan)
    assert prior.record() == toy.prior.record()


def test_a_calibration_is_saved_with_the_prior_and_only_where_there_is_one(toy, prior, tmp_path):
    for name, kept in (("with", prior), ("without", toy.prior)):
        kept.save(tmp_path / name)
    again = FieldOfExperts.load(tmp_path / "with").calibration
    assert again.typical == pytest.approx(prior.calibration.typical, rel=1e-7)
    assert torch.equal(again.shares, prior.calibration.shares)
    assert torch.equal(again.spread, prior.calibration.spread)
    assert FieldOfExperts.load(tmp_path / "without").calibration is None


@pytest.mark.parametrize("change", ["summarised", "folded", "to", "without"])
def test_copies_of_a_prior_keep_its_calibration(change, toy, prior):
    arguments = {
        "summarised": (),
        "folded": (fold_batch_norm(deepcopy(toy.network).task),),
        "to": (torch.device("cpu"),),
        "without": ("pca",),
    }
    changed = getattr(prior, change)(*arguments[change])
    assert changed is not prior
    assert same(changed.calibration, prior.calibration)
