"""What is typical of source subjects: against numpy and plain computations."""

import math
from copy import deepcopy

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

from scantune import FieldOfExperts, InputError
from scantune.networks import fold_batch_norm
from scantune.prior.calibration import (
    FAR_OUT_DEVIATIONS,
    TYPICAL_QUANTILE,
    Calibration,
    Coverage,
    EnergyLevels,
    family_energies,
    predicted_proportions,
    structure_counts,
)
from tests.conftest import TOY_PATCHES, toy_scan

HELD_OUT = [(toy_scan(seed)[0] ** 1.1, None) for seed in range(120, 124)]


@pytest.fixture(scope="module")
def prior(toy):
    return toy.prior.calibrated(toy.network, HELD_OUT, [(volume, None) for volume in toy.volumes])


def same(one, other):
    """Whether two calibrations have the same numbers."""
    pairs = [(calibration.tensors(), calibration.levels, calibration.coverage) for calibration in (one, other)]
    (tensors, *rest), (others, *remaining) = pairs
    return (
        rest == remaining
        and tensors.keys() == others.keys()
        and all(torch.equal(tensors[key], others[key]) for key in tensors)
    )


def calibration(typical, shares, spread):
    return Calibration(EnergyLevels(typical, typical, math.inf), torch.tensor(shares), torch.tensor(spread))


def lognormal(rng, subjects, middle, spread):
    return np.exp(rng.normal(math.log(middle), spread, subjects))


def test_levels_are_those_of_the_log_normal_that_the_energies_come_from():
    rng = np.random.default_rng(3)
    levels = EnergyLevels.of(lognormal(rng, 4000, 0.03, 0.4).tolist(), lognormal(rng, 4000, 0.01, 0.4).tolist())
    of_the_new = scipy.stats.lognorm(0.4, scale=0.03)
    assert levels.middle == pytest.approx(of_the_new.median(), rel=0.03)
    assert levels.typical == pytest.approx(of_the_new.ppf(TYPICAL_QUANTILE), rel=0.03)
    assert levels.low == pytest.approx(of_the_new.ppf(1 - TYPICAL_QUANTILE), rel=0.03)
    assert levels.far == pytest.approx(of_the_new.median() * math.exp(FAR_OUT_DEVIATIONS * 0.4), rel=0.08)


def test_two_new_subjects_have_the_middle_and_training_subjects_the_spread():
    rng = np.random.default_rng(4)
    new, training = [0.02, 0.08], lognormal(rng, 500, 0.01, 0.3).tolist()
    levels = EnergyLevels.of(new, training)
    assert levels.middle == pytest.approx(0.04, rel=1e-9)
    pooled = np.sqrt((2 * np.log(2) ** 2 + 499 * np.var(np.log(training), ddof=1)) / 500)
    assert levels.typical == pytest.approx(0.04 * math.exp(1.2815515655 * pooled), rel=1e-6)
    assert levels.typical < EnergyLevels.of(new).typical


def test_one_subject_alone_is_given_some_spread():
    levels = EnergyLevels.of([0.05])
    assert levels.middle == pytest.approx(0.05)
    assert levels.middle < levels.typical < levels.far < 0.1


@pytest.mark.parametrize(
    ("energy", "reading"), [(0.0, "typical"), (0.1, "typical"), (0.11, "shifted"), (0.9, "shifted"), (0.91, "far out")]
)
def test_an_energy_reads_as_typical_shifted_or_far_out(energy, reading):
    assert Calibration(EnergyLevels(0.05, 0.1, 0.9), torch.ones(1), torch.ones(1)).reading(energy) == reading


@pytest.mark.parametrize("subjects", [1, 2, 7, 30])
def test_shares_have_mean_and_deviation(subjects):
    rng = np.random.default_rng(subjects)
    energies, shares = torch.from_numpy(rng.gamma(2, 0.01, subjects)), rng.dirichlet([3, 2, 1], subjects)
    known = Calibration.of({"cnn/a": energies, "cnn/b": 3 * energies}, {}, torch.from_numpy(shares))
    assert known.levels == EnergyLevels.of((2 * energies).tolist())
    np.testing.assert_allclose(known.shares, shares.mean(0), rtol=1e-6)
    np.testing.assert_allclose(known.spread, np.maximum(shares.std(0), 1e-3), rtol=1e-5)


def test_partial_coverage_and_crops_are_remarked():
    masks = [torch.zeros(20, 1, 8, 8, dtype=torch.bool) for _ in range(2)]
    masks[1][..., :2] = True
    shown = Coverage.of([(torch.zeros(slices, 1, 8, 8), mask) for slices, mask in zip((20, 24), masks, strict=True)])
    assert shown.slices == (20, 24)
    assert shown.inside == (0.75, 1.0)
    assert shown.warnings(20, masks[1]) == shown.warnings(10, None) == []
    assert "has 9 slices, source scans have 20 to 24" in shown.warnings(9, None)[0]
    masks[0][..., 2:] = True
    assert "fills 25% of the network's field of view, source scans at least 75%" in shown.warnings(30, masks[0])[0]


def test_oddness_is_the_largest_deviation_of_any_structure():
    shares, spread = [0.5, 0.3, 0.2], [0.1, 0.02, 0.05]
    known = calibration(0.1, shares, spread)
    for counts in ([50, 30, 20], [40, 35, 25], [600, 290, 110], [0, 0, 3]):
        wanted = max(abs(n / sum(counts) - m) / s for n, m, s in zip(counts, shares, spread, strict=True))
        assert known.oddness(torch.tensor(counts)) == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_an_empty_foreground_is_as_odd_as_can_be():
    known = calibration(0.1, [0.5, 0.5], [0.1, 0.1])
    assert known.oddness(torch.zeros(2, dtype=torch.long)) == math.inf


def test_structures_are_counted_without_the_background_and_where_absent():
    labels = torch.tensor([[[0, 1, 1], [3, 0, 1]]])
    assert structure_counts(labels, 4).tolist() == [3, 0, 1, 0]
    assert structure_counts(torch.zeros(2, 3, dtype=torch.long), 2).tolist() == [0, 0]


def test_a_calibration_survives_its_tensors():
    levels = EnergyLevels(*(float(np.float32(value)) for value in (0.01, 0.0221, 0.5)))
    coverage = Coverage((3.0, 9.0), (0.5, 1.0))
    energies = {"cnn/a": torch.rand(3), "pca/b": torch.rand(2)}
    known = Calibration(levels, torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.05]), coverage, energies, energies)
    assert same(Calibration.from_tensors(known.tensors()), known)


def test_a_calibration_of_older_files_knows_the_typical_level_alone():
    known = calibration(float(np.float32(0.0221)), [0.6, 0.4], [0.1, 0.05])
    stored = {name: known.tensors()[name] for name in ("typical", "shares", "spread")}
    again = Calibration.from_tensors(stored)
    assert same(again, known)
    assert again.reading(0.02) == "typical"
    assert again.reading(2.0) == "shifted"
    assert again.readings({"cnn": {"a": 0.02}}) == {}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *(("levels", values) for values in ([0.0, 0.0, 1.0], [0.1, 0.0, 1.0], [0.2, 0.1, 1.0], [0.1, 0.2, 0.15])),
        *(("levels", values) for values in ([-0.1, 0.2, 1.0], [0.1, math.nan, 1.0], [0.1, math.inf, math.inf])),
        *(
            (name, [value, 0.5])
            for name in ("shares", "held-out/cnn/a", "training/cnn/a")
            for value in (math.nan, math.inf)
        ),
        *(("spread", [value, 0.5]) for value in (0.0, -1.0, math.nan)),
        ("coverage", [1.0, math.nan, 0.5, 1.0]),
        ("held-out/cnn/a", [[0.1], [0.2]]),
    ],
)
def test_numbers_that_a_calibration_cannot_hold_are_damage(name, values):
    coverage, energies = Coverage((3.0, 9.0), (0.5, 1.0)), {"cnn/a": torch.tensor([0.1, 0.2])}
    known = Calibration(EnergyLevels(0.1, 0.2, 1.0), torch.ones(2), torch.ones(2), coverage, energies, energies)
    assert name in known.tensors()
    with pytest.raises(InputError, match="calibration is damaged"):
        Calibration.from_tensors(known.tensors() | {name: torch.tensor(values)})
    with pytest.raises(InputError, match="calibration is damaged"):
        Calibration.from_tensors({"typical": torch.zeros(1), "shares": torch.ones(2), "spread": torch.ones(2)})


@pytest.mark.parametrize("energies", [[0.0, 0.0], [0.0, 1e-3], [-1e-9], [1e300, 1e-300], [3e38, 1e-40, 1.0]])
def test_levels_of_any_energies_divide(energies):
    levels = EnergyLevels.of(energies, energies)
    assert levels.sound
    assert 0 <= levels.low <= levels.middle


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
    known = prior.calibration
    energies = [toy.prior.energy(toy.network, volume) for volume, _ in HELD_OUT]
    assert family_energies(known.held_out, "cnn") == pytest.approx(energies, rel=1e-5)
    assert known.levels == EnergyLevels.of(
        family_energies(known.held_out, "cnn"), family_energies(known.training, "cnn")
    )
    assert {len(values) for values in known.held_out.values()} == {len(HELD_OUT)}
    assert {key.split("/")[0] for key in known.held_out} == {"cnn", "pca"}
    volumes = [volume for volume, _ in HELD_OUT] + toy.volumes
    shares = np.stack([predicted_proportions(toy.network, volume) for volume in volumes])
    np.testing.assert_allclose(prior.calibration.shares, shares.mean(0), rtol=1e-6)
    np.testing.assert_allclose(prior.calibration.spread, np.maximum(shares.std(0), 1e-3), rtol=1e-4)


def test_a_training_subject_is_compared_with_a_prior_of_the_others(toy, prior):
    layers = prior.families["cnn"].experts.layers()
    for left in (0, 4):
        others = [volume for number, volume in enumerate(toy.volumes) if number != left]
        refitted = FieldOfExperts.fit(toy.network, others, layers=layers, patches=TOY_PATCHES)
        wanted = refitted.energy(toy.network, toy.volumes[left])
        assert family_energies(prior.calibration.training, "cnn")[left] == pytest.approx(wanted, rel=2e-3)


def test_each_layer_has_a_reading(toy, prior):
    scan = toy_scan(128)[0] ** 3
    energies = prior.energies(prior.statistics(toy.network, scan))
    values = {name: {group: float(v) for group, v in groups.items()} for name, groups in energies.items()}
    readings = prior.calibration.readings(values)
    assert {name: set(groups) for name, groups in readings.items()} == {n: set(g) for n, g in values.items()}
    assert "far out" in readings["cnn"].values()
    usual = {"cnn": {group.removeprefix("cnn/"): float(v.median()) for group, v in prior.calibration.held_out.items()}}
    assert set(prior.calibration.readings(usual)["cnn"].values()) == {"typical"}


def test_a_summarised_prior_tells_of_no_single_subject(prior):
    known = prior.summarised().calibration
    assert known.levels == prior.calibration.levels
    assert not known.held_out and not known.training


def test_padding_of_held_out_subjects_is_left_out_of_their_energy(toy):
    scan = toy_scan(126)[0]
    padded = nn.functional.pad(scan, (0, 0, 16, 0), value=1.0)
    mask = torch.zeros_like(padded, dtype=torch.bool)
    mask[:, :, :16] = True
    (energy,) = family_energies(toy.prior.calibrated(toy.network, [(padded, mask)]).calibration.held_out, "cnn")
    assert energy == pytest.approx(toy.prior.energy(toy.network, padded, mask), rel=1e-5)
    assert energy < 0.2 * toy.prior.energy(toy.network, padded)


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
    kept = prior.calibration.summarised() if change == "summarised" else prior.calibration
    assert same(changed.calibration, kept)
