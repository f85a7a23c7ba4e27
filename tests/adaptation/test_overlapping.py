"""Structures that may overlap: masks in place of a label map, from the output to the files."""

import json
from dataclasses import replace
from itertools import pairwise

import nibabel
import numpy as np
import pytest
import torch
from torch import nn

import scantune
from scantune import FieldOfExperts, InputError, Model
from scantune.adaptation.batch import adapt_scans
from scantune.adaptation.guard.stability import StabilityReading
from scantune.adaptation.output_names import BidsNames
from scantune.adaptation.settings import AdaptSettings
from scantune.backends import Preprocessing, VolumePreprocessing
from scantune.evaluation.evaluate import evaluate
from scantune.prior.label_readings import Readings, contact_shares, overlaps
from scantune.prior.prediction_reader import HomeScan
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation, painted, structure_counts, task_from_record, task_record
from tests.conftest import TOY_PATCHES, toy_scan

REGIONS = Segmentation(overlapping=True)
NAMES = {"whole": 1, "the core": 2}


def regions(labels):
    """The masks of a toy scan: all of the disc, and its core within it, `(slices, 2, height, width)`."""
    return torch.stack([labels > 0, labels == 2], 1)


class Rising(nn.Module):
    """Scores of two channels that rise with the intensity, from below to above 0."""

    def forward(self, x):
        return torch.cat([x[:, :1] - x[:, :1].mean(), 2 * (x[:, :1] - x[:, :1].amax() / 2)], 1)


@pytest.fixture(scope="module")
def network():
    """A network that gives logits of both regions."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 2, 1),
    )
    optimiser = torch.optim.Adam(layers.parameters(), 0.03)
    for iteration in range(100):
        images, labels = toy_scan(iteration)
        loss = nn.functional.binary_cross_entropy_with_logits(layers(images), regions(labels).float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return layers.eval()


@pytest.fixture(scope="module")
def prior(network):
    volumes = [toy_scan(seed)[0] for seed in range(4)]
    fitted = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES, task=REGIONS)
    held_out = [toy_scan(seed) for seed in range(50, 55)]
    return fitted.calibrated(network, [HomeScan(Volume(x, reference=regions(y))) for x, y in held_out])


@pytest.fixture(scope="module")
def model(network, prior):
    return Model(network, NAMES, Preprocessing(size=(48, 48)), {"kind": "custom"}, REGIONS, prior)


def write_scan(path, seed=90):
    """Write a toy scan `(x, y, z)`, and return it as slices."""
    images, labels = toy_scan(seed)
    affine = np.diag([-1.0, -1.0, 2.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(200 * images[:, 0].permute(2, 1, 0).numpy(), affine), path)
    return images, labels


def test_the_prior_tells_how_the_output_is_read(network, prior, tmp_path):
    prior.save(tmp_path / "prior.safetensors")
    loaded = FieldOfExperts.load(tmp_path / "prior.safetensors")
    scan, labels = toy_scan(90)
    result = scantune.adapt(network, scan, prior=loaded, device="cpu")
    assert torch.equal(result.source_prediction, network(scan).sigmoid() > 0.5)
    assert result.prediction.shape == (4, 2, 48, 48)
    truth = regions(labels)
    assert min(overlaps(result.prediction, truth, 2)) > 0.9
    assert bool((result.prediction[:, 1] & result.prediction[:, 0]).any())


def test_the_assessment_reads_each_structure(network, prior):
    scan, _ = toy_scan(91)
    home = prior.calibration.home
    assert home.dice.shape == (2,)
    assert float(home.dice.min()) > 0.8
    result = scantune.adapt(network, scan, prior=prior, device="cpu")
    assert result.facts["verdict_before"] == "fine"
    assert result.facts["estimate"] == "dice"
    bad = scantune.adapt(network, -scan, prior=prior, device="cpu")
    assert bad.facts["verdict_before"] != "fine"
    assert bad.facts["expected_before"] < result.facts["expected_before"]


def test_a_label_map_is_no_reference_for_them(network, prior):
    held_out = [HomeScan(Volume(*toy_scan(50)[:1], reference=toy_scan(50)[1]))]
    assert prior.calibrated(network, held_out).calibration.home.dice is None


def test_masks_of_training_subjects_are_read_where_nobody_was_held_out(network):
    volumes = [toy_scan(seed)[0] for seed in range(6)]
    fitted = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES, task=REGIONS)
    result = scantune.adapt(network, toy_scan(91)[0], prior=fitted, device="cpu")
    assert result.decision.action == "left alone"
    assert result.facts["estimate"] == "agreement"


def test_an_adaptation_without_home_readings_is_judged_by_masks(network):
    volumes = [toy_scan(seed)[0] for seed in range(3)]
    bare = FieldOfExperts.fit(network, volumes, patches=TOY_PATCHES, task=REGIONS, read=0)
    assert bare.home is None
    result = scantune.adapt(network, toy_scan(92)[0] ** 2, prior=bare, steps=3, device="cpu")
    assert 0 < result.facts["guard"]["stability_before"] <= 1
    assert result.prediction.dtype == torch.bool


def test_a_file_gets_a_file_for_each_structure(model, network, tmp_path):
    _, labels = write_scan(tmp_path / "s1.nii.gz")
    result = scantune.adapt(model, tmp_path / "s1.nii.gz", guard=False, steps=2, device="cpu")
    entry = result.save(tmp_path / "out")
    masks = result.prediction
    assert masks.shape == (2, 48, 48, 4)
    assert entry["outputs"] == {
        "segmentation whole": "s1_seg_whole.nii.gz",
        "segmentation the core": "s1_seg_the-core.nii.gz",
        "source whole": "s1_source_seg_whole.nii.gz",
        "source the core": "s1_source_seg_the-core.nii.gz",
        "page": "s1_page.html",
    }
    for number, name in enumerate(["whole", "the-core"]):
        written = nibabel.load(tmp_path / "out" / f"s1_seg_{name}.nii.gz")
        assert np.array_equal(np.asarray(written.dataobj), masks[number])
    found = torch.from_numpy(masks > 0).permute(3, 0, 2, 1)
    assert min(overlaps(found, regions(labels), 2)) > 0.8
    volumes = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))["volumes_ml"]
    assert volumes == {name: pytest.approx(masks[n - 1].sum() * 2 / 1000, abs=1e-3) for name, n in NAMES.items()}
    assert volumes["the core"] < volumes["whole"]
    assert result.view(entry).volumes_ml("whole")[1] == volumes["whole"]  # the core hides a part of it on a label map
    assert result.view(entry).volume_ml(result.view(entry).after, "whole") < volumes["whole"]
    truth = labels.permute(2, 1, 0).numpy().astype(np.uint8)
    nibabel.save(nibabel.Nifti1Image(truth, written.affine), tmp_path / "truth.nii.gz")
    made_of = {"whole": (1, 2), "the core": 2}
    scored = [
        evaluate(
            tmp_path / "out" / entry["outputs"][f"segmentation {name}"], tmp_path / "truth.nii.gz", structures=made_of
        )
        for name in made_of
    ]
    dice = [row.score.dice for each in scored for row in each.rows]
    assert dice == pytest.approx(overlaps(found, regions(labels), 2))


def test_commands_know_the_files_of_structures(model, tmp_path):
    write_scan(tmp_path / "s1.nii.gz")
    settings = AdaptSettings("source", device="cpu")
    runs = [adapt_scans([tmp_path / "s1.nii.gz"], model, tmp_path / "out", settings, pages=False) for _ in range(2)]
    assert [outcome.status for (outcome,) in runs] == ["done", "already done"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "s1_seg_whole.nii.gz").write_text("mine")
    (refused,) = adapt_scans([tmp_path / "s1.nii.gz"], model, tmp_path / "other", settings, pages=False)
    assert refused.status == "failed"
    assert "s1_seg_whole.nii.gz already exists" in refused.entry["reason"]


def test_masks_are_named_as_bids_has_them():
    names = BidsNames()
    path = names.path("sub-01_ses-2_T1w", "segmentation", "the core")
    assert path == "sub-01/ses-2/anat/sub-01_ses-2_label-thecore_desc-scantuneT1w_mask.nii.gz"
    assert names.path("sub-01_T1w", "source", "gm") == "sub-01/anat/sub-01_label-gm_desc-sourceT1w_mask.nii.gz"


def test_files_of_structures_do_not_outlive_a_run_that_writes_a_label_map(model, network, tmp_path):
    write_scan(tmp_path / "s1.nii.gz")
    settings = AdaptSettings("source", device="cpu")
    one_map = replace(model, task=Segmentation("sigmoid", exclusive=False))
    for chosen in (model, one_map):
        (outcome,) = adapt_scans([tmp_path / "s1.nii.gz"], chosen, tmp_path / "out", settings, pages=False)
        assert outcome.status == "done"
    written = {path.name for path in (tmp_path / "out").glob("*.nii.gz")}
    assert written == {"s1_seg.nii.gz", "s1_source_seg.nii.gz"}


def test_structures_whose_files_would_be_one_are_refused(model, tmp_path):
    write_scan(tmp_path / "s1.nii.gz")
    alike = replace(model, labels={"core part": 1, "core-part": 2})
    result = scantune.adapt(alike, tmp_path / "s1.nii.gz", method="source", device="cpu")
    with pytest.raises(InputError, match="Two structures would be written to s1_seg_core-part.nii.gz"):
        result.save(tmp_path / "out")


@pytest.mark.parametrize("backend", [Preprocessing(size=(48, 48)), VolumePreprocessing(window=None)])
def test_the_likeliest_of_independent_channels_reaches_the_file(network, backend, tmp_path):
    """Without a background channel, the first channel is a structure."""
    if isinstance(backend, VolumePreprocessing):
        network = nn.Sequential(nn.Conv3d(1, 2, 1), Rising())
    write_scan(tmp_path / "s1.nii.gz")
    task = Segmentation("sigmoid", exclusive=False)
    model = Model(network, NAMES, backend, {"kind": "custom"}, task)
    result = scantune.adapt(model, tmp_path / "s1.nii.gz", method="source", guard=False, device="cpu")
    labels = result.source.labels
    along = labels if isinstance(backend, Preprocessing) else labels[0]
    assert np.array_equal(result.prediction, along.permute(2, 1, 0).numpy().astype(np.uint8))
    assert len(np.unique(result.prediction)) > 1


def test_overlapping_structures_are_sigmoids():
    assert (REGIONS.activation, REGIONS.exclusive) == ("sigmoid", False)
    assert Segmentation("none", overlapping=True).activation == "none"
    assert task_from_record(json.loads(json.dumps(task_record(REGIONS)))) == REGIONS


def test_readings_of_masks_are_those_of_each_mask_alone(rng):
    one, other = (torch.rand(2, 3, 9, 9, generator=rng) > 0.5 for _ in range(2))
    each = [overlaps(one[:, n].long(), other[:, n].long(), 1)[0] for n in range(3)]
    assert overlaps(one, other, 3) == pytest.approx(each)
    readings = Readings.of(one, {"moved": other}, 3, voxel_ml=0.5)
    assert readings.sizes == tuple(0.5 * float(one[:, n].sum()) for n in range(3))
    assert readings.steadiness["moved"] == pytest.approx(each)
    assert StabilityReading.at([one, other], 3).stability == pytest.approx(each)
    assert structure_counts(one, 3).tolist() == [int(one[:, n].sum()) for n in range(3)]


def test_masks_without_overlap_have_the_contacts_of_their_label_map(rng):
    labels = torch.randint(0, 4, (2, 8, 8), generator=rng)
    masks = torch.stack([labels == value for value in (1, 2, 3)], 1)
    assert torch.allclose(contact_shares(masks, 3), contact_shares(labels, 3))


def test_contacts_of_masks_are_counted_face_by_face(rng):
    masks = torch.rand(1, 3, 6, 5, generator=rng) > 0.6
    faces = np.zeros((3, 4))
    stack = masks[0].numpy()
    places = [((r, c), (r + 1, c)) for r in range(5) for c in range(5)]
    places += [((r, c), (r, c + 1)) for r in range(6) for c in range(4)]
    for one, other in [*places, *((b, a) for a, b in places)]:
        beyond = [n + 1 for n in range(3) if stack[n][other]] or [0]
        for inside in (n for n in range(3) if stack[n][one] and not stack[n][other]):
            for target in beyond:
                faces[inside, target] += 1 / len(beyond)
    expected = faces / np.maximum(faces.sum(1, keepdims=True), 1)
    assert np.allclose(contact_shares(masks, 3).numpy(), expected)


def test_a_picture_shows_smaller_structures_on_top(rng):
    masks = torch.rand(1, 3, 8, 8, generator=rng) > torch.tensor([0.2, 0.8, 0.5]).view(1, 3, 1, 1)
    order = structure_counts(masks, 3).argsort().tolist()
    assert [int(structure_counts(masks, 3)[n]) for n in order] == sorted(structure_counts(masks, 3).tolist())
    shown = painted(masks)
    for row, column in np.ndindex(8, 8):
        there = [n + 1 for n in order if masks[0, n, row, column]]
        assert int(shown[0, row, column]) == (there[0] if there else 0)
    assert all(a != b for a, b in pairwise(order))
