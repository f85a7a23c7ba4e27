"""Every backend: shapes, the way back to the scan's own grid, and what a model file records of it."""

import json
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import torch
from torch import nn

import scantune
from scantune.backends import BACKENDS, Preprocessing, VolumePreprocessing, read_backend
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.io import read_channels

EXAMPLES = {
    "slices": Preprocessing(size=(24, 20), percentiles=(0, 100)),
    "slices of two channels": Preprocessing(size=(24, 20), channels=2, scaling="z-score"),
    "volumes": VolumePreprocessing(window=None),
    "volumes in windows": VolumePreprocessing(window=(8, 12, 16), channels=3, scaling="z-score", content="nonzero"),
    "volumes in larger windows": VolumePreprocessing("sagittal", window=(32, 16, 16), overlap=0.25),
}


def cube(shape=(20, 24, 12), channels=1):
    """A bright box with labels 1 and 2 in a dark scan, each channel with another contrast."""
    labels = np.zeros(shape, np.uint8)
    labels[4:14, 6:18, 3:9] = 1
    labels[7:11, 9:15, 4:8] = 2
    images = [(labels * (30 + 10 * number) + 5 * number).astype(np.float32) for number in range(channels)]
    return Case("cube", images[0], np.diag([1.0, 1.0, 2.0, 1.0]), labels, others=tuple(images[1:]))


def test_every_kind_has_an_example():
    assert {type(backend) for backend in EXAMPLES.values()} == set(BACKENDS.values())


@pytest.mark.parametrize("kind", EXAMPLES)
class TestEveryBackend:
    def test_a_scan_becomes_tensors_of_one_size(self, kind):
        backend = EXAMPLES[kind]
        prepared = backend.prepare(cube(channels=backend.channels))
        slices, _, *spatial = prepared.volume.shape
        assert prepared.volume.dtype == torch.float32
        assert prepared.reference.shape == (slices, *spatial)
        assert prepared.padding is None or prepared.padding.shape == (slices, 1, *spatial)

    def test_windows_are_the_same_each_time_with_their_labels(self, kind):
        backend = EXAMPLES[kind]
        prepared = backend.prepare(cube(channels=backend.channels))
        one, two = (backend.windows(prepared) for _ in range(2))
        assert torch.equal(one.images, two.images)
        assert one.reference.shape == (len(one.images), *one.images.shape[2:])
        assert backend.window is None or tuple(one.images.shape[2:]) == backend.window

    def test_the_reference_comes_back_to_the_scans_own_grid(self, kind):
        backend, case = EXAMPLES[kind], cube(channels=EXAMPLES[kind].channels)
        prepared = backend.prepare(case)
        scores = torch.stack([(prepared.reference == label).float() for label in range(3)], dim=1)
        labels = backend.restore(scores, prepared)
        assert labels.dtype == np.uint8
        np.testing.assert_array_equal(labels, case.reference)

    def test_overlapping_structures_come_back_one_by_one(self, kind):
        backend, case = EXAMPLES[kind], cube(channels=EXAMPLES[kind].channels)
        prepared = backend.prepare(case)
        scores = torch.stack([(prepared.reference >= label).float() for label in (1, 2)], dim=1)
        expected = np.stack([case.reference >= label for label in (1, 2)])
        np.testing.assert_array_equal(backend.restore_each(scores, prepared), expected)

    def test_a_voxel_has_a_volume(self, kind):
        backend, case = EXAMPLES[kind], cube(channels=EXAMPLES[kind].channels)
        prepared = backend.prepare(case)
        foreground = float((prepared.reference > 0).sum()) * backend.voxel_ml(prepared)
        assert foreground == pytest.approx((case.reference > 0).sum() * case.voxel_volume / 1000, rel=0.05)

    def test_its_record_is_json_and_restores_it(self, kind):
        backend = EXAMPLES[kind]
        assert read_backend(json.loads(json.dumps(backend.record()))) == backend

    def test_a_scan_of_other_channels_is_refused(self, kind, toy):
        model = replace(toy.model, backend=EXAMPLES[kind], prior=None)
        wrong = cube(channels=EXAMPLES[kind].channels + 1)
        with pytest.raises(InputError, match=rf"cube has {len(wrong.channels)}. Give one file per channel"):
            scantune.adapt(model, wrong, method="source")


def test_a_record_without_a_kind_is_one_of_slices():
    assert read_backend({"size": [32, 32], "plane": "coronal"}) == Preprocessing("coronal", (32, 32))
    with pytest.raises(InputError, match="of the kind 'waves'; known are slices, volumes"):
        read_backend({"kind": "waves"})


def test_channels_are_read_in_order_on_one_grid(tmp_path):
    case = cube()
    paths = [tmp_path / f"{name}.nii.gz" for name in ("t1", "t2")]
    for factor, path in enumerate(paths, start=1):
        nibabel.save(nibabel.Nifti1Image(factor * case.image, case.affine), path)
    both = read_channels(paths)
    assert both.name == tmp_path.name
    assert both.files == tuple(paths)
    np.testing.assert_array_equal(both.channels[1], 2 * both.channels[0])
    moved = case.affine.copy()
    moved[0, 3] += 10
    nibabel.save(nibabel.Nifti1Image(case.image, moved), paths[1])
    with pytest.raises(InputError, match="t2 must lie on the grid of t1, but is up to 10 mm away"):
        read_channels(paths)


def test_a_mask_strips_all_channels():
    case = cube(channels=2)
    mask = replace(case, name="mask", image=(case.reference > 1).astype(np.float32), others=())
    assert [np.unique(channel).tolist() for channel in case.stripped(mask).channels] == [[0, 60], [0, 85]]


def test_a_backend_without_a_window_predicts_no_windows(toy):
    prepared = EXAMPLES["slices"].prepare(cube())
    with pytest.raises(NotImplementedError, match="has no window"):
        EXAMPLES["slices"].predict(nn.Identity(), prepared, lambda output: output)
