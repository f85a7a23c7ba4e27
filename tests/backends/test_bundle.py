"""What a bundle shows a network of a scan, and the way back, for inferers and scans of several kinds."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import scantune
from scantune.errors import InputError, ScanError
from scantune.scans.case import LabelMap
from scantune.scans.io import read_channels, read_scan
from tests.toy_bundle import AFFINE, CONFIG, METADATA, infer_by_hand, toy_volume, write_bundle, write_volume

INVERT, SAVE = (CONFIG["postprocessing"]["transforms"][place] for place in (1, 3))

INFERERS = {
    "windows": CONFIG["inferer"],
    "larger than the scan": {**CONFIG["inferer"], "roi_size": [32, 32, 32], "mode": "gaussian"},
    "whole": {"_target_": "SimpleInferer"},
}

ZOO = {
    "labels, then the way back with interpolation": [
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        {"_target_": "LabelFilterd", "keys": "pred", "applied_labels": [1, 2]},
        {**INVERT, "meta_key_postfix": "meta_dict"},
        SAVE,
    ],
    "labels, then the way back to the nearest": [
        {"_target_": "Activationsd", "keys": "pred", "softmax": True},
        {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
        {**INVERT, "nearest_interp": True},
        SAVE,
    ],
}
"""Orders of postprocessing that bundles of the model zoo have."""


def bundle(root, iterations=0, **changes):
    return write_bundle(root, {**copy.deepcopy(CONFIG), **changes}, iterations=iterations)


@pytest.fixture
def scan(tmp_path):
    image, labels = toy_volume(7)
    case = read_scan(write_volume(tmp_path / "scan.nii.gz", image))
    return replace(case, files=(tmp_path / "scan.nii.gz",)).with_reference(LabelMap("labels", labels, AFFINE))


@pytest.fixture
def backend(tmp_path):
    return scantune.load(bundle(tmp_path / "b"), trust=True).backend


@pytest.mark.parametrize("kind", INFERERS)
def test_every_inferer_predicts_as_monai_does(kind, tmp_path):
    spatial = {"_target_": "SpatialPadd", "keys": "image", "spatial_size": [24, 24, 24]}
    transforms = [*CONFIG["preprocessing"]["transforms"], spatial]
    root = bundle(
        tmp_path / "b", 20, inferer=INFERERS[kind], preprocessing={"_target_": "Compose", "transforms": transforms}
    )
    file = write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    model = scantune.load(root, trust=True)
    theirs = np.asarray(infer_by_hand(root, [file], tmp_path / "eval").dataobj)
    assert np.array_equal(scantune.adapt(model, file, method="source").prediction, theirs)
    assert len(np.unique(theirs)) > 1


@pytest.mark.parametrize("kind", ZOO)
def test_every_postprocessing_gives_what_monai_writes(kind, tmp_path):
    root = bundle(tmp_path / "b", 20, postprocessing={"_target_": "Compose", "transforms": ZOO[kind]})
    file = write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    theirs = np.asarray(infer_by_hand(root, [file], tmp_path / "eval").dataobj)
    ours = scantune.adapt(scantune.load(root, trust=True), file, method="source").prediction
    assert np.array_equal(ours, np.rint(theirs))
    assert (theirs % 1 != 0).any() == ("interpolation" in kind)


REGIONS = [
    {"_target_": "Activationsd", "keys": "pred", "sigmoid": True},
    INVERT,
    {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5},
]


def regions(root, *further):
    """A bundle of two regions that overlap, with further transforms of its postprocessing."""
    network = {**CONFIG["network_def"], "out_channels": 2}
    transforms = [*REGIONS, *further, SAVE]
    changes = {"network_def": network, "postprocessing": {"_target_": "Compose", "transforms": transforms}}
    metadata = copy.deepcopy(METADATA)
    metadata["network_data_format"]["outputs"]["pred"]["channel_def"] = {"0": "organ", "1": "core"}
    return write_bundle(root, {**copy.deepcopy(CONFIG), **changes}, metadata, iterations=20)


def test_regions_that_overlap_stay_apart_as_monai_writes_them(tmp_path):
    root, file = regions(tmp_path / "b"), write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    theirs = np.asarray(infer_by_hand(root, [file], tmp_path / "eval").dataobj)
    result = scantune.adapt(scantune.load(root, trust=True), file, method="source")
    assert np.array_equal(np.moveaxis(result.prediction, 0, -1), theirs)
    assert (theirs[..., 0] * theirs[..., 1]).any()
    outputs = result.save(tmp_path / "out")["outputs"]
    assert [outputs[f"segmentation {name}"] for name in ("organ", "core")] == [
        "scan_seg_organ.nii.gz",
        "scan_seg_core.nii.gz",
    ]


def test_regions_that_the_postprocessing_joins_are_a_label_map(tmp_path):
    join = {"_target_": "Lambdad", "keys": "pred", "func": "$lambda x: x.sum(0, keepdim=True)"}
    root, file = regions(tmp_path / "b", join), write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    theirs = np.asarray(infer_by_hand(root, [file], tmp_path / "eval").dataobj)
    ours = scantune.adapt(scantune.load(root, trust=True), file, method="source").prediction
    assert np.array_equal(ours, theirs)
    assert np.unique(ours).tolist() == [0, 1, 2]


@pytest.mark.parametrize("shift", [0.25, -0.25])
def test_what_a_probability_of_a_half_tells_is_read_from_logits(tmp_path, shift):
    """Logits of either side of 0 and below a half: probabilities that postprocessing finds above and below a half."""
    root, file = regions(tmp_path / "b"), write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    model = scantune.load(root, trust=True)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
        list(model.network.parameters())[-1].fill_(shift)  # the bias of the last convolution
    result = scantune.adapt(model, file, method="source")
    assert bool(result.prediction.all()) == bool(result.prediction.any()) == (shift > 0)
    assert bool(result.source.labels.all()) == bool(result.source.labels.any()) == (shift > 0)
    assert any("empty" in warning for warning in result.warnings) == (shift < 0)


def test_scores_are_found_in_a_dictionary_by_the_names_that_are_looked_for_elsewhere(tmp_path):
    root, file = bundle(tmp_path / "b", 20), write_volume(tmp_path / "scan.nii.gz", toy_volume(7)[0])
    model = scantune.load(root, trust=True)
    plain = scantune.adapt(model, file, method="source").prediction

    class Named(torch.nn.Module):
        def __init__(self, name):
            super().__init__()
            self.inner, self.name = model.network, name

        def forward(self, images):
            scores = self.inner(images)
            return {"features": -scores, self.name: scores}

    found = scantune.adapt(replace(model, network=Named("pred")), file, method="source").prediction
    assert np.array_equal(found, plain)
    with pytest.raises(InputError, match=r"a dictionary of features: .*, scores: .* expected a tensor"):
        scantune.adapt(replace(model, network=Named("scores")), file, method="source")


def test_a_network_of_slices_sees_slices(tmp_path, scan):
    network = {**CONFIG["network_def"], "spatial_dims": 2}
    inferer = {"_target_": "SliceInferer", "roi_size": [16, 16], "spatial_dim": 2}
    root = bundle(tmp_path / "b", network_def=network, inferer=inferer)
    model = scantune.load(root, trust=True)
    seen = model.backend.windows(model.backend.prepare(scan))
    assert seen.images.shape[1:] == (1, 16, 16)
    assert model.backend.window == (16, 16)
    theirs = np.asarray(infer_by_hand(root, [tmp_path / "scan.nii.gz"], tmp_path / "eval").dataobj)
    assert np.array_equal(scantune.adapt(model, tmp_path / "scan.nii.gz", method="source").prediction, theirs)


def test_windows_are_those_of_the_inferer(backend, scan):
    prepared = backend.prepare(scan)
    seen = backend.windows(prepared)
    # By hand: the volume of 24 x 21 x 17 is cut at multiples of half a window, the last one at the border.
    starts = [(x, y, z) for x in (0, 8) for y in (0, 5) for z in (0, 1)]
    assert prepared.volume.shape == (1, 1, 24, 21, 17)
    for name, whole in (("images", prepared.volume[0]), ("reference", prepared.reference)):
        cut = [whole[:, x : x + 16, y : y + 16, z : z + 16] for x, y, z in starts]
        expected = torch.stack(cut) if name == "images" else torch.cat(cut)
        assert torch.equal(getattr(seen, name), expected)
    assert seen.share == pytest.approx(24 * 21 * 17 / (8 * 16**3))
    assert seen.padding is None
    assert backend.window == (16, 16, 16)


def test_many_windows_are_thinned_to_a_bounded_number(backend, scan, monkeypatch):
    monkeypatch.setattr("scantune.backends.tiling.MOST_VOXELS", 16**3)
    all_of_them = [torch.tensor([0, 2, 5, 7])]
    prepared = backend.prepare(scan)
    few = backend.windows(prepared)
    monkeypatch.setattr("scantune.backends.tiling.MOST_VOXELS", 2**24)
    assert torch.equal(few.images, backend.windows(prepared).images[all_of_them[0]])


def test_padding_is_what_the_scan_does_not_show(tmp_path, scan):
    spatial = {"_target_": "SpatialPadd", "keys": "image", "spatial_size": [24, 21, 25]}
    transforms = [*CONFIG["preprocessing"]["transforms"], spatial]
    root = bundle(tmp_path / "b", preprocessing={"_target_": "Compose", "transforms": transforms})
    backend = scantune.load(root, trust=True).backend
    prepared = backend.prepare(scan)
    assert prepared.padding.shape == prepared.volume.shape == (1, 1, 24, 21, 25)
    expected = torch.ones(25, dtype=torch.bool)
    expected[4:21] = False
    assert torch.equal(prepared.padding[0, 0].flatten(0, 1).all(0), expected)
    assert torch.equal(prepared.padding[0, 0].flatten(0, 1).any(0), expected)
    assert backend.windows(prepared).padding.any()


def test_a_reference_is_where_the_image_is(backend, scan):
    """Labels as the image: moved by MONAI in another way, they agree but for what interpolation does at edges."""
    prepared = backend.prepare(replace(scan, files=(), image=(scan.reference > 0).astype(np.float32)))
    moved = prepared.volume[0, 0] > 0.5
    overlap = 2 * (moved & (prepared.reference[0] > 0)).sum() / (moved.sum() + (prepared.reference[0] > 0).sum())
    assert overlap > 0.9
    assert backend.voxel_ml(prepared) == pytest.approx(1.5 * 1.5 * 2 / 1000)


def test_a_scan_without_files_is_prepared_as_that_of_its_file(backend, scan):
    with_file, without = (backend.prepare(replace(scan, files=files)) for files in (scan.files, ()))
    assert torch.equal(with_file.volume, without.volume)


def test_a_brain_mask_counts(tmp_path, scan):
    model = scantune.load(bundle(tmp_path / "b"), trust=True)
    mask = np.zeros(scan.shape)
    mask[8:18, 8:18] = 1
    result = scantune.adapt(model, tmp_path / "scan.nii.gz", method="source", brain_mask=mask)
    assert float((result.prepared.volume == 0).float().mean()) > 0.5


def test_several_channels_come_from_several_files(tmp_path):
    network = {**CONFIG["network_def"], "in_channels": 2}
    metadata = copy.deepcopy(METADATA)
    metadata["network_data_format"]["inputs"]["image"]["num_channels"] = 2
    root = write_bundle(tmp_path / "b", {**CONFIG, "network_def": network}, metadata, iterations=10)
    files = [write_volume(tmp_path / f"{n}.nii.gz", toy_volume(7)[0] * np.float32(n)) for n in (1, 0.5)]
    model = scantune.load(root, trust=True)
    theirs = np.asarray(infer_by_hand(root, files, tmp_path / "eval").dataobj)
    assert model.backend.channels == 2
    assert np.array_equal(scantune.adapt(model, files, method="source").prediction, theirs)
    prepared = model.backend.prepare(replace(read_channels(files), files=()))
    assert torch.allclose(prepared.volume[:, 1], prepared.volume[:, 0] / 2)


def test_without_a_way_back_scantune_adds_one(tmp_path, scan):
    post = [one for one in CONFIG["postprocessing"]["transforms"] if one["_target_"] != "Invertd"]
    root = bundle(tmp_path / "b", postprocessing={"_target_": "Compose", "transforms": post})
    result = scantune.adapt(scantune.load(root, trust=True), tmp_path / "scan.nii.gz", method="source")
    assert result.prediction.shape == scan.shape


@pytest.mark.parametrize(
    ("part", "key", "function", "told"),
    [
        ("preprocessing", "other", "$len", "preprocessing of the bundle b fails on scan .KeyError: 'Key `other`"),
        ("postprocessing", "other", "$len", "postprocessing of the bundle b fails .KeyError: 'Key `other`"),
        ("postprocessing", "pred", "$lambda x: x - 1", "must give labels from 0"),
        ("postprocessing", "pred", "$lambda x: x[:, :3]", "must give labels from 0"),
    ],
)
def test_what_fails_in_a_bundle_is_told_in_a_sentence(part, key, function, told, tmp_path, scan):
    transforms = [*CONFIG[part]["transforms"], {"_target_": "Lambdad", "keys": key, "func": function}]
    root = bundle(tmp_path / "b", **{part: {"_target_": "Compose", "transforms": transforms}})
    with pytest.raises(ScanError, match=told):
        assert scantune.adapt(scantune.load(root, trust=True), tmp_path / "scan.nii.gz", method="source").prediction
