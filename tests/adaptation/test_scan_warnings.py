"""Warnings: input that is wrong is noticed by the bundled model, input of another scanner is not called wrong."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

import scantune
from scantune.adaptation.guard.base import CAUTION, Decision
from scantune.adaptation.prediction import Prediction
from scantune.adaptation.scan_warnings import _energy, prediction_warnings
from scantune.cli.main import main
from scantune.prior.calibration import Calibration, EnergyLevels
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import Readings
from scantune.scans.io import read_scan, write_image
from scantune.simulate import COHORTS
from scantune.tasks import Segmentation, structure_counts

SLICES = 8


@pytest.fixture(scope="module")
def model():
    return scantune.load("brain")


@pytest.fixture(scope="module")
def brain():
    """A simulated brain of the training site, in a few thick slices, as integers like most scans."""
    case = next(COHORTS["contrasts"].cases("source-3T-mprage", "test", count=1, slices=SLICES))
    image = np.round(case.image / case.image.max() * 1000).astype(np.float32)
    return replace(case, image=image, reference=None)


def warnings(model, scan):
    result = scantune.adapt(model, scan, method="source")
    assert result.warnings == result.facts["warnings"]
    assert all(sentence in repr(result) for sentence in result.warnings)
    return result.warnings, result.facts["verdict"]


def with_scalp(case, gap=5, thickness=5):
    """Paint a ring of scalp around a brain, slice by slice."""
    image = np.pad(case.image, ((16, 16), (16, 16), (0, 0)))
    for number in range(image.shape[2]):
        if (image[..., number] > 0).any():
            away = ndimage.distance_transform_edt(image[..., number] == 0)
            image[..., number][(away > gap) & (away <= gap + thickness)] = 1.1 * image.max()
    return replace(case, image=image, header=None)


def test_a_brain_of_the_training_site_gets_no_warning(model, brain):
    assert warnings(model, brain)[0] == []


def test_a_ring_of_scalp_is_noticed(model, brain):
    found, verdict = warnings(model, with_scalp(brain))
    assert any("Give a brain mask" in sentence for sentence in found)
    assert verdict != "fine"


def test_a_head_in_air_is_noticed(model, brain):
    noise = np.random.default_rng(0).rayleigh(20, brain.image.shape).astype(np.float32)
    found, _ = warnings(model, replace(brain, image=np.where(brain.image == 0, noise, brain.image)))
    assert any("trained on scans that are 0 outside the brain" in sentence for sentence in found)


def test_a_cropped_head_is_noticed(model, brain):
    part = brain.image[:, :, : SLICES // 3]
    found, _ = warnings(model, replace(brain, image=part))
    assert any("it covers only a part" in sentence for sentence in found)


def test_another_contrast_is_noticed(model, brain):
    """As in FLAIR, white matter is darker than grey matter and fluid is black."""
    image, high = brain.image, float(brain.image.max())
    flair = np.where(image == 0, 0, np.where(image < 0.3 * high, 1, 1.4 * high - image)).astype(np.float32)
    found, verdict = warnings(model, replace(brain, image=flair))
    assert any("unlike the training scans" in sentence for sentence in found)
    assert verdict != "fine"


def test_a_spinal_cord_is_noticed(model):
    cord = next(COHORTS["spine"].cases("PM", "test", count=1, slices=4))
    found, verdict = warnings(model, replace(cord, reference=None))
    assert any("unlike the training scans" in sentence for sentence in found)
    assert verdict != "fine"


def test_a_model_of_zeros_gives_an_empty_segmentation_and_says_so(model, brain):
    broken = scantune.load("brain")
    for weights in broken.network.parameters():
        weights.data.zero_()
    found, _ = warnings(broken, brain)
    assert "The segmentation is empty." in found


def test_warnings_are_on_the_screen_in_the_manifest_and_on_the_page_and_count_when_strict(brain, tmp_path, capsys):
    write_image(tmp_path / "tiny.nii.gz", brain.image[:, :, :2], replace(brain, image=brain.image[:, :, :2]))
    words = [str(tmp_path / "tiny.nii.gz"), "--model", "brain", "--out", str(tmp_path / "out"), "--method", "source"]
    assert main(["adapt", *words]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny: warning: ")]
    entry = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["scans"]["tiny"]
    assert [line.removeprefix("tiny: warning: ") for line in told] == entry["warnings"] != []
    page = (tmp_path / "out" / "tiny_page.html").read_text(encoding="utf-8")
    assert all(f"<strong>Warning:</strong> {sentence}" in page for sentence in entry["warnings"])
    assert ">warning</span>" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    statistics = json.loads((tmp_path / "out" / "statistics.json").read_text(encoding="utf-8"))
    assert statistics["scans"]["tiny"]["warnings"] == entry["warnings"]
    assert main(["adapt", *words, "--strict"]) == 3


# Volumes


def prediction(*voxels):
    """Return a prediction with a number of voxels of each structure."""
    labels = torch.zeros(2000, dtype=torch.long)
    start = 0
    for value, count in enumerate(voxels, 1):
        labels[start : start + count] = value
        start += count
    scores = torch.nn.functional.one_hot(labels, len(voxels) + 1).T.reshape(1, -1, 40, 50).float()
    return Prediction(scores, Segmentation(), {})


def home(*people):
    contacts = tuple((1.0,) + (0.0,) * len(people[0]) for _ in people[0])
    return HomeReadings.fit([Readings(person, {}, contacts) for person in people])


@pytest.mark.parametrize("size", [(40, 6, 7), (1, 40, 6, 7)])
@pytest.mark.parametrize("task", [Segmentation(), Segmentation(overlapping=True)])
def test_voxels_are_counted_part_by_part_as_in_the_whole_label_map(size, task):
    slices, *spatial = size
    scores = torch.rand(slices, 3, *spatial, generator=torch.Generator().manual_seed(0))
    found = Prediction(scores, task, {})
    assert found.counts() == structure_counts(found.labels, found.structures).tolist()
    shifted = replace(found, activation=lambda part: part - 0.4)
    assert shifted.counts() == structure_counts(task.labels(scores - 0.4), found.structures).tolist()


ORGANS = home((100.0, 50.0), (110.0, 60.0), (120.0, 55.0))


@pytest.mark.parametrize(
    ("voxels", "told"),
    [
        ((110, 55), []),
        ((190, 55), []),
        ((240, 55), ["The GM is implausibly large: 240 mL, at home 110 mL."]),
        ((110, 20), ["The WM is implausibly small: 20 mL, at home 55 mL."]),
        ((110, 0), ["No WM was found."]),
        ((0, 0), ["The segmentation is empty."]),
    ],
)
def test_volumes_are_compared_with_those_at_home(voxels, told):
    assert prediction_warnings(prediction(*voxels), ORGANS, 1.0, ["GM", "WM"]) == told


def test_a_volume_is_absurd_beyond_a_factor_of_two_and_four_deviations():
    people = [(math.exp(4 + 0.3 * value),) for value in (-1.4, -0.7, 0.0, 0.7, 1.4)]
    middle, deviation = (float(value) for value in home(*people).size[:, 0])
    for beyond in (1.0, 3.9, -3.9, 4.1, -4.1):
        voxels = round(math.exp(middle + beyond * deviation))
        assert bool(prediction_warnings(prediction(voxels), home(*people), 1.0)) == (abs(beyond) > 4)


def test_lesions_may_be_absent_and_nothing_is_known_of_other_models():
    lesions = home((0.0,), (5.0,), (0.0,))
    assert prediction_warnings(prediction(0), lesions, 1.0) == []
    assert prediction_warnings(prediction(1500), None, 1.0) == []
    assert prediction_warnings(prediction(0), None, 1.0) == ["The segmentation is empty."]


# Energies


@pytest.mark.parametrize(
    ("energy", "verdict", "warned"),
    [
        (0.05, "failed", False),
        (0.07, "failed", True),
        (0.07, "doubtful", True),
        (0.07, "fine", False),
        (0.17, "", False),
        (0.19, "", True),
    ],
)
def test_a_scan_that_is_far_out_is_noticed_unless_its_prediction_is_fine(energy, verdict, warned):
    known = Calibration(EnergyLevels(0.02, 0.03, 0.06), torch.ones(1), torch.ones(1))
    scores = torch.zeros(1, 2, 4, 4)
    seen = Prediction(scores, Segmentation(), {"cnn": {"layer": energy}})
    assert bool(_energy(known, seen, verdict)) == warned


# The verdict


def test_a_scan_with_warnings_is_doubtful_at_best():
    fine = Decision("left alone", "so", assessment={"verdict": "fine", "verdict_before": "fine", "expected": 0.9})
    assert fine.cautioned([]) is fine
    found = fine.cautioned(["odd"])
    assert (found.action, found.reason) == ("left alone", CAUTION)
    assert found.assessment == {"verdict": "doubtful", "verdict_before": "doubtful", "expected": 0.9}
    failed = Decision("unsolved", "so", assessment={"verdict": "failed", "verdict_before": "failed"})
    assert failed.cautioned(["odd"]) is failed


# Real scans


@pytest.fixture
def data():
    if "SCANTUNE_DATA" not in os.environ:
        pytest.skip("SCANTUNE_DATA is not set: there are no real scans")
    return Path(os.environ["SCANTUNE_DATA"])


def thin(path, slices=8):
    """Read a scan of few thick slices, every so many of its own."""
    case = read_scan(path)
    step = max(case.shape[2] // slices, 1)
    return replace(case, image=case.image[:, :, step // 2 :: step], affine=case.affine @ np.diag([1, 1, step, 1]))


@pytest.mark.parametrize(
    ("pattern", "odd"),
    [
        ("oasis/1000_T1w.nii.gz", False),
        ("oasis/1012_T1w.nii.gz", False),
        ("gm-challenge/sub-9418/anat/*run-1_T2starw.nii.gz", True),
        ("gm-challenge/sub-9669/anat/*run-1_T2starw.nii.gz", True),
        ("lgg/CS_4944_FLAIR.nii.gz", True),
        ("lgg/HT_7605_FLAIR.nii.gz", True),
    ],
)
def test_of_real_scans_those_of_other_body_parts_and_contrasts_alone_get_a_warning(model, data, pattern, odd):
    (path,) = data.glob(pattern)
    assert bool(warnings(model, thin(path))[0]) == odd
