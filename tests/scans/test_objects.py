"""Images of nibabel and SimpleITK in memory: the same scan as from their files."""

import nibabel
import numpy as np
import pytest
import SimpleITK

from scantune.errors import InputError
from scantune.scans.io import read_scan
from scantune.scans.objects import case_from_image, is_image

IMAGE = np.random.default_rng(0).random((6, 5, 4)).astype(np.float32)
AFFINE = np.array([[0, 1.5, 0, -9], [-1.5, 0, 0, 4], [0, 0, 4, 2], [0, 0, 0, 1.0]])


def images(path):
    nibabel.save(nibabel.Nifti1Image(IMAGE, AFFINE), path)
    return nibabel.load(path), nibabel.MGHImage(IMAGE, AFFINE), SimpleITK.ReadImage(str(path))


def test_an_image_in_memory_is_the_scan_of_its_file(tmp_path):
    expected = read_scan(tmp_path / "a.nii") if (tmp_path / "a.nii").exists() else None
    for image in images(tmp_path / "a.nii"):
        expected = expected or read_scan(tmp_path / "a.nii")
        case = case_from_image(image)
        assert is_image(image)
        assert np.array_equal(case.image, expected.image)
        assert np.allclose(case.affine, expected.affine, atol=1e-5)
        assert case.name == "scan"


def test_what_is_no_single_volume_is_refused():
    four = nibabel.Nifti1Image(np.zeros((3, 3, 3, 2)), np.eye(4))
    vector = SimpleITK.GetImageFromArray(np.zeros((3, 3, 3, 2)), isVector=True)
    for image in (four, vector):
        with pytest.raises(InputError, match="one 3D volume"):
            case_from_image(image)


@pytest.mark.parametrize("value", [3, IMAGE, {"a": 1}, None])
def test_other_values_are_no_images(value):
    assert not is_image(value)
