"""Rescue of failed scans: the choice of a stage on made-up readings, and whole runs on a toy network."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import scantune
from scantune.adaptation.adapt import INVERTED
from scantune.adaptation.guard.rescue import (
    AS_USUAL,
    CANDIDATES,
    NO_HELP,
    RELIABLE,
    TOO_VARIABLE,
    Rescue,
    Stage,
    best_stage,
    candidate_steps,
)
from scantune.methods.expert_statistics import ExpertStatistics
from scantune.networks import AdaptableNetwork, Inversion
from scantune.prior.assessment import assess
from scantune.prior.home_readings import HomeReadings
from scantune.prior.prediction_reader import HomeScan, PredictionReader
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import dice, toy_scan
from tests.toy_labels import RADII, disc, readings_of

GOOD, SHIFTED = readings_of(disc(12, 6), disc(12, 6, shift=1)), readings_of(disc(4, 0))


@pytest.fixture
def home() -> HomeReadings:
    people = [readings_of(disc(radius, radius / 2), disc(radius, radius / 2, shift=1)) for radius in RADII]
    return HomeReadings.fit(people, [[0.94, 0.90]] * len(RADII))


def settle(source, stages, home, complete):
    """Choose among stages, and decide; `complete` are the readings of the chosen stage by every perturbation."""
    reader = PredictionReader(torch.zeros(2, 1, 40, 40), (0, 1), Segmentation(), 2, 1e-3)
    rescue = Rescue(reader, home, (), source, assess(source, home))
    stage = rescue.choose([Stage(number, {}, readings) for number, readings in enumerate(stages)])
    return rescue.settle(None if stage is None else complete), stage


def test_stages_are_chosen_by_a_sufficient_rise_and_early():
    assert best_stage(0.30, [0.5, 0.88, 0.895, 0.8], 0.92) == 1
    assert best_stage(0.30, [0.5, 0.55], 0.92) is None
    assert best_stage(0.88, [0.92], 0.92) is None
    assert best_stage(0.30, [], 0.92) is None


def test_candidates_are_few_and_end_with_the_last():
    assert candidate_steps(3) == [1, 2, 3]
    chosen = candidate_steps(60)
    assert len(chosen) <= CANDIDATES
    assert (chosen[0], chosen[-1]) == (2, 60)


def test_a_fine_scan_is_left_alone(home):
    decision, _ = settle(GOOD, [], home, SHIFTED)
    assert (decision.action, decision.reason, decision.keeps_adapted) == ("left alone", RELIABLE, False)


def test_a_scan_that_is_as_usual_for_a_poor_network_is_left_alone_and_not_called_reliable(home):
    poor = replace(home, dice=torch.tensor([0.5, 0.5], dtype=torch.double))
    decision, _ = settle(GOOD, [GOOD], poor, GOOD)
    assert (decision.action, decision.reason, decision.assessment["verdict"]) == ("left alone", AS_USUAL, "doubtful")


def test_structures_that_vary_are_not_adapted_to_by_a_network_that_is_poor_at_home(home):
    poor = replace(home, dice=torch.tensor([0.5, 0.5], dtype=torch.double))
    lesions = replace(poor, size=torch.stack([poor.size[0], torch.ones(2, dtype=torch.double)]))
    decision, _ = settle(SHIFTED, [SHIFTED, GOOD], lesions, GOOD)
    assert (decision.action, decision.reason, decision.keeps_adapted) == ("unsolved", TOO_VARIABLE, False)
    decision, _ = settle(SHIFTED, [SHIFTED, GOOD], poor, GOOD)
    assert decision.keeps_adapted


def test_a_failed_scan_is_rescued_by_a_plausible_stage(home):
    decision, stage = settle(SHIFTED, [SHIFTED, GOOD, SHIFTED], home, GOOD)
    assert stage is not None
    assert (decision.action, stage.step, decision.assessment["verdict"]) == ("adapted", 1, "fine")


def test_a_failed_scan_is_solved_only_if_it_is_fine_afterwards(home):
    fair = readings_of(disc(12, 6), disc(12, 6, shift=2))
    assert assess(fair, home).verdict == "doubtful"
    decision, stage = settle(SHIFTED, [fair], home, fair)
    assert stage is not None
    assert (decision.action, decision.keeps_adapted) == ("unsolved", True)


def test_no_dice_is_expected_of_a_scan_that_had_failed_and_is_not_fine(home):
    fair = readings_of(disc(12, 6), disc(12, 6, shift=2))
    decision, _ = settle(SHIFTED, [fair], home, fair)
    facts = decision.assessment
    assert (facts["verdict"], facts["expected"], facts["expected_by_structure"]) == ("doubtful", None, {})
    assert facts["expected_range"] == [0.0, assess(fair, home).high]
    assert facts["expected_before"] == assess(SHIFTED, home).expected
    assert "expected_after" not in decision.numbers


def test_a_steady_prediction_of_an_unusual_size_is_not_given_up_for_a_usual_one(home):
    large = readings_of(disc(15, 7.5), disc(15, 7.5, shift=1))
    assert assess(large, home).verdict == "doubtful"
    assert settle(large, [GOOD], home, GOOD)[1] is None


def test_a_failed_prediction_that_is_steady_is_given_up(home):
    remnant = readings_of(disc(4, 2), disc(4, 2))
    assert assess(remnant, home).verdict == "failed"
    assert settle(remnant, [GOOD], home, GOOD)[0].action == "adapted"


def test_a_scan_that_nothing_helps_is_unsolved(home):
    empty = readings_of(torch.zeros(2, 40, 40, dtype=torch.long))
    decision, stage = settle(empty, [empty], home, empty)
    assert stage is None
    assert (decision.action, decision.reason, decision.keeps_adapted) == ("unsolved", NO_HELP, False)


def test_readings_that_did_not_choose_a_stage_can_refuse_it(home):
    before = readings_of(disc(12, 6), disc(12, 6, shift=4))
    shaky = replace(GOOD, steadiness=GOOD.steadiness | {"mirrored": (0.01, 0.01)})
    decision, stage = settle(before, [GOOD], home, shaky)
    assert stage is not None
    assert not decision.keeps_adapted


def test_a_rise_that_only_other_readings_see_counts_if_the_result_is_fine(home):
    """Mirroring, which does not compare stages, says that the source prediction is poor."""
    before = replace(GOOD, steadiness=GOOD.steadiness | {"mirrored": (0.55, 0.55)})
    better = replace(GOOD, steadiness=GOOD.steadiness | {"mirrored": (0.7, 0.7)})
    assert assess(better, home).verdict == "doubtful"
    assert settle(before, [GOOD], home, GOOD)[0].action == "adapted"
    assert settle(before, [better], home, better)[0].action == "unsolved"


@pytest.fixture(scope="module")
def calibrated(toy):
    """The toy prior, with readings of eight held-out scans."""
    scans = [toy_scan(seed) for seed in range(100, 108)]
    return toy.prior.calibrated(toy.network, [HomeScan(Volume(images, reference=labels)) for images, labels in scans])


def test_a_scan_of_the_source_is_left_alone_without_a_step(toy, calibrated):
    result = scantune.adapt(toy.network, toy_scan(200)[0], calibrated)
    assert (result.decision.action, result.facts["verdict"], result.facts["steps"]) == ("left alone", "fine", 0)
    assert torch.equal(result.prediction, result.source_prediction)


def test_without_labels_the_estimate_is_of_an_agreement(toy, calibrated):
    """The same as with labels but for the Dice at home, which is close to 1 here."""
    volumes = [(toy_scan(seed)[0], None) for seed in range(100, 108)]
    prior = toy.prior.calibrated(toy.network, volumes)
    images, _ = toy_scan(201)
    result, labelled = (scantune.adapt(toy.network, images**2, known) for known in (prior, calibrated))
    assert result.decision.action == "adapted"
    assert (result.facts["estimate"], labelled.facts["estimate"]) == ("agreement", "dice")
    assert result.facts["expected_before"] == pytest.approx(labelled.facts["expected_before"] / 0.98, abs=0.02)
    assert prior.calibration.home.people == 8


def test_a_normaliser_that_half_precision_wraps_during_the_run_is_rescued_all_the_same(toy, calibrated, monkeypatch):
    """As on a GPU: what is kept of a stage must have the names that the parameters had before."""

    def wrapped(statistics, volume, objective, moving):
        statistics.use_half_precision(volume.images[:, 0].numel())
        monkeypatch.setattr(statistics.precision, "running", nullcontext)
        monkeypatch.setattr(statistics.precision, "lifted", dict)

    images, labels = toy_scan(201)
    plain = scantune.adapt(toy.network, images**2, calibrated)
    monkeypatch.setattr(ExpertStatistics, "choose_precision", wrapped)
    result = scantune.adapt(toy.network, images**2, calibrated)
    assert result.decision.action == "adapted"
    assert dice(result.prediction, labels) == pytest.approx(dice(plain.prediction, labels), abs=0.05)


@pytest.fixture
def inverted() -> tuple[torch.Tensor, torch.Tensor]:
    """A scan whose dark background is bright, and its labels."""
    images, labels = toy_scan(201)
    return 0.9 - images, labels


def test_an_inverted_scan_starts_from_its_inversion(toy, calibrated, inverted):
    images, labels = inverted
    result = scantune.adapt(toy.network, images, calibrated)
    assert dice(result.source_prediction, labels) < 0.5
    assert (result.decision.action, result.facts["remarks"][-1]) == ("adapted", INVERTED)
    assert dice(result.prediction, labels) > 0.8
    with torch.no_grad():
        again = result.network(images).argmax(1)
    assert torch.equal(again, torch.as_tensor(result.prediction))


def test_a_scan_of_the_usual_contrast_starts_as_it_is(toy, calibrated):
    images, _ = toy_scan(201)
    result = scantune.adapt(toy.network, images**2, calibrated)
    assert result.decision.action == "adapted"
    assert INVERTED not in result.facts["remarks"]
    assert not isinstance(result.network.curve, Inversion)
    assert result.state


def test_the_next_scan_of_a_site_does_not_start_from_an_inversion(toy, calibrated, inverted):
    assert scantune.adapt(toy.network, inverted[0], calibrated).state == {}


def test_only_failed_scans_of_one_channel_start_from_an_inversion(toy, calibrated, inverted):
    network, (images, _) = AdaptableNetwork.around(toy.network), inverted
    reader = PredictionReader.of(Volume(images), Segmentation(), 2)
    source = reader.read(network)
    rescue = Rescue(reader, calibrated.home, (), source, assess(source, calibrated.home))
    assert rescue.start(network, Volume(images)) is not None
    assert rescue.start(network, Volume(images.repeat(1, 2, 1, 1))) is None
    doubtful = replace(rescue, before=replace(rescue.before, verdict="doubtful"))
    assert doubtful.start(network, Volume(images)) is None


def test_a_method_that_knows_its_answer_is_kept_where_it_helps(toy, calibrated):
    """Batch-norm statistics are no parameters that a gradient moves."""
    images, labels = toy_scan(201)
    result = scantune.adapt(toy.network, images**2, calibrated, method="batchnorm")
    assert dice(result.source_prediction, labels) < 0.7
    assert result.decision.keeps_adapted
    assert dice(result.prediction, labels) > dice(result.source_prediction, labels) + 0.2


def test_a_failed_scan_is_rescued_and_its_estimate_is_near_the_truth(toy, calibrated):
    images, labels = toy_scan(201)
    result = scantune.adapt(toy.network, images**2, calibrated)
    before, after = dice(result.source_prediction, labels), dice(result.prediction, labels)
    assert before < 0.7 < after
    assert result.decision.action == "adapted"
    assert result.facts["expected"] == pytest.approx(after, abs=0.1)
    assert result.facts["expected_before"] == pytest.approx(before, abs=0.25)


@pytest.mark.parametrize(("in_voxels", "verdict"), [(True, "failed"), (False, "fine")])
def test_sizes_in_ml_do_not_count_for_a_tensor_whose_voxels_have_an_unknown_size(toy, calibrated, in_voxels, verdict):
    home = calibrated.calibration.home
    assert home.in_voxels
    large = replace(home, size=home.size + torch.tensor([[9.0], [0.0]]), in_voxels=in_voxels)
    prior = replace(calibrated, calibration=replace(calibrated.calibration, home=large))
    result = scantune.adapt(toy.network, toy_scan(200)[0], prior, steps=1)
    assert result.facts["verdict_before"] == verdict


def test_the_home_readings_survive_the_prior_file(toy, calibrated, tmp_path):
    calibrated.save(tmp_path / "prior.safetensors")
    again = scantune.FieldOfExperts.load(tmp_path / "prior.safetensors").calibration.home
    for name, values in calibrated.calibration.home.tensors().items():
        assert torch.equal(again.tensors()[name], values)


def test_steadiness_is_the_overlap_with_the_prediction_of_the_moved_scan(toy):
    images, _ = toy_scan(202)
    reader = PredictionReader.of(Volume(images), Segmentation(), 2, voxel_ml=0.5)
    readings = reader.read(toy.network)
    with torch.no_grad():
        own = toy.network(images).argmax(1)
        moved = toy.network(images.roll((3, 3), (-2, -1))).argmax(1).roll((-3, -3), (-2, -1))
    for value in (1, 2):
        one, other = own == value, moved == value
        assert readings.sizes[value - 1] == 0.5 * int(one.sum())
        overlap = 2 * int((one & other).sum()) / int(one.sum() + other.sum())
        assert readings.steadiness["moved"][value - 1] == pytest.approx(overlap)
