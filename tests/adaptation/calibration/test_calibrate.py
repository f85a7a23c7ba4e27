"""Calibration of the assessment of a toy network, and the margin on made-up adaptations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import scantune
from scantune.adaptation.calibration import calibrate as module
from scantune.adaptation.calibration import rehearsal
from scantune.adaptation.calibration.calibrate import calibrate, rehearse
from scantune.adaptation.calibration.margin import GAINS, Rehearsed, fit_gain
from scantune.adaptation.calibration.rehearsal import Stand, thinned, without_bias
from scantune.adaptation.guard.rescue import Margins, Rescue, Stage
from scantune.backends.slices import Preprocessing
from scantune.model.describe import describe_model
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.prediction_reader import HomeScan, PredictionReader
from scantune.scans.case import Case
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation
from tests.conftest import toy_scan
from tests.toy_labels import RADII, disc, readings_of


def case_of(seed) -> Case:
    images, labels = toy_scan(seed)
    image, reference = (part.numpy().transpose(2, 1, 0) for part in (images[:, 0], labels))
    return Case(f"toy{seed}", image, np.diag([1.0, 1.0, 3.0, 1.0]), reference.astype(np.uint8))


CASES = [case_of(seed) for seed in range(100, 108)]


@pytest.fixture(scope="module")
def model(toy):
    """The toy model, with home readings of eight people."""
    made = replace(toy.model, backend=Preprocessing(size=(48, 48), percentiles=(0, 100)))
    prepared = [made.backend.prepare(case) for case in CASES]
    scans = [HomeScan(Volume(each.volume, reference=each.reference), made.backend.voxel_ml(each)) for each in prepared]
    return replace(made, prior=toy.prior.calibrated(toy.network, scans, task=toy.task))


@pytest.fixture(scope="module")
def progress():
    return []


@pytest.fixture(scope="module")
def calibrated(model, progress):
    """The model calibrated on few degradations, and few steps of few adaptations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rehearsal, "SEVERITIES", (0.5,))
        for name, value in {"FAMILIES": ("gamma", "inverted"), "ADAPTATIONS": 1, "STEPS": 2}.items():
            patch.setattr(module, name, value)
        return calibrate(model, CASES, "cpu", lambda *report: progress.append(report))


def test_a_calibration_counts_what_it_was_fitted_to_and_travels(calibrated, tmp_path):
    local = calibrated.prior.calibration.home.local
    assert (local.counts.people, local.counts.families, local.counts.adaptations) == (8, 2, 8)
    assert local.counts.predictions == 8 * (1 + 2 + 2)
    assert 0 < local.error.local < 0.3
    calibrated.prior.save(tmp_path / "prior.safetensors")
    again = scantune.FieldOfExperts.load(tmp_path / "prior.safetensors").calibration.home.local
    for name, values in local.tensors().items():
        torch.testing.assert_close(again.tensors()[name], values)


def test_the_progress_ends_with_all_parts(calibrated, progress):
    done, parts = zip(*progress, strict=True)
    assert calibrated is not None
    assert len(set(parts)) == 1
    assert (done[0], done[-1]) == (0, parts[0])
    assert list(done) == sorted(done)


def test_a_description_says_which_coefficients_count(model, calibrated):
    local = calibrated.prior.calibration.home.local
    text = " ".join(describe_model(calibrated).split())
    assert f"(error {local.error.local:.3f} local, {local.error.shipped:.3f} shipped)" in text
    assert "home readings of 8 scans, shipped coefficients" in " ".join(describe_model(model).split())


def test_with_few_people_or_without_labels_the_shipped_coefficients_stay(model):
    def with_home(**changes):
        known = model.prior.calibration
        prior = replace(model.prior, calibration=replace(known, home=replace(known.home, **changes)))
        return replace(model, prior=prior)

    def unread():
        raise AssertionError
        yield

    for spare in (with_home(people=7), with_home(dice=None), replace(model, prior=None)):
        assert calibrate(spare, unread()) is spare
    same_person = [replace(case, subject="one") for case in CASES]
    assert calibrate(model, same_person) is model


def test_a_rehearsed_prediction_is_that_of_the_network_and_graded(toy, model):
    stand = Stand.of(model, CASES[0], "cpu", steps=2)
    readings = stand.read(CASES[0])
    with torch.no_grad():
        labels = toy.network((prepared := model.backend.prepare(CASES[0])).volume).argmax(1)
    truth = prepared.reference
    for value in (1, 2):
        both = int(((labels == value) & (truth == value)).sum())
        total = int((labels == value).sum() + (truth == value).sum())
        assert readings.dice[value - 1] == pytest.approx(2 * both / total)
        assert readings.sizes[value - 1] == pytest.approx(0.003 * int((labels == value).sum()))


def test_home_readings_of_a_person_are_those_of_the_others(model, monkeypatch):
    monkeypatch.setattr(module, "FAMILIES", ())
    monkeypatch.setattr(module, "ADAPTATIONS", 0)
    found = rehearse(model, CASES, "cpu")
    assert [each.home.people for each in found.predictions] == [7] * 8
    sizes = sorted(each.readings.sizes[0] for each in found.predictions[1:])
    median = float(found.predictions[0].home.size[0, 0].exp())
    assert median == pytest.approx(sizes[3])


def test_thin_scans_have_slices_at_equal_distances():
    image = np.arange(10, dtype=np.float32) * np.ones((4, 4, 1), np.float32)
    case = Case("a", image, np.diag([1.0, 1.0, 2.0, 1.0]))
    few = thinned(case, Preprocessing(), 4)
    assert few.image[0, 0].tolist() == [0, 3, 6, 9]
    assert few.spacing[2] == 6
    assert without_bias(case, Preprocessing()) is case


GOOD, BAD = disc(12, 6), disc(4, 0)


def graded(labels, dice, moved=None):
    readings = readings_of(labels, moved)
    return GradedReadings(readings.sizes, readings.steadiness, readings.contacts, (dice, dice))


@pytest.fixture(scope="module")
def home() -> HomeReadings:
    people = [readings_of(disc(radius, radius / 2), disc(radius, radius / 2, shift=1)) for radius in RADII]
    return HomeReadings.fit(people, [[0.94, 0.90]] * len(RADII))


def run(home, person, before, after):
    """An adaptation that looks like a rescue."""
    reader = PredictionReader(torch.zeros(2, 1, 40, 40), (0, 1), Segmentation(), 2, 1e-3)
    stages = [Stage(2, {}, graded(GOOD, after, disc(12, 6, shift=1)))]
    return Rehearsed(person, f"family {person % 4}", home, reader, graded(BAD, before), stages)


def test_the_gain_is_that_of_the_whole_procedure(home):
    assert run(home, 0, 0.2, 0.9).gain(Margins()) == pytest.approx(0.7)
    assert run(home, 0, 0.2, 0.9).gain(Margins(gain=0.95)) == 0


def test_the_shipped_margin_stays_where_all_do_alike(home):
    gain, value = fit_gain([run(home, person, 0.2, 0.9) for person in range(8)])
    assert gain == Margins().gain
    assert value.local == value.shipped == pytest.approx(0.7)
    assert fit_gain([])[0] is None


def test_a_margin_that_keeps_harm_out_wins(home, monkeypatch):
    """Rises of what is expected by less than 0.1 lose Dice here, greater ones gain."""
    rises = {0: (0.06, -0.2), 1: (0.3, 0.3)}

    def gain(self, margins):
        rise, truth = rises[self.person % 2]
        return truth if rise > margins.gain else 0.0

    monkeypatch.setattr(Rehearsed, "gain", gain)
    margin, value = fit_gain([run(home, person, 0.2, 0.9) for person in range(8)])
    assert margin == GAINS[3] == 0.08
    assert value.local == pytest.approx(0.15)
    assert value.shipped == pytest.approx(0.15 - 3 * 0.1)


def test_a_rescue_takes_the_margin_of_its_home(toy, calibrated):
    home = calibrated.prior.calibration.home
    local = replace(home.local, gain=0.12, value=replace(home.local.value, local=1.0, shipped=0.0))
    assert Margins.of(replace(home, local=local)) == Margins(gain=0.12)
    assert Margins.of(replace(home, local=replace(local, value=home.local.value.__class__(0.0, 0.0)))) == Margins()
    assert Rescue.__dataclass_fields__["margins"].default_factory is Margins
