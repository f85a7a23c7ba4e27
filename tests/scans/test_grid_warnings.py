"""Warnings about grids: voxel sizes that no scanner has, and forms of NIfTI headers that contradict each other."""

import nibabel
import numpy as np
import pytest

from scantune.scans.io import read_channels, read_scan

STRAIGHT = np.diag([1.0, 1.0, 3.0, 1.0])


def turned(affine, degrees):
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]) @ affine


def moved(affine, mm):
    return affine + np.array([[0, 0, 0, mm], [0] * 4, [0] * 4, [0] * 4])


def written(path, qform=None, sform=None, codes=(0, 0)):
    """Write a scan whose forms are as given; nibabel by itself makes the two agree."""
    header = nibabel.Nifti1Header()
    header.set_data_shape((12, 10, 4))
    header.set_data_dtype(np.float32)
    header.set_zooms((1.0, 1.0, 3.0))
    header["vox_offset"] = 352
    header.set_qform(qform, codes[0])
    header.set_sform(sform, codes[1])
    voxels = np.random.default_rng(0).random((12, 10, 4), np.float32)
    path.write_bytes(header.binaryblock + bytes(4) + voxels.tobytes("F"))
    return path


FLIPPED = STRAIGHT * np.array([-1, 1, 1, 1])


@pytest.mark.parametrize(
    ("qform", "sform", "codes", "told"),
    [
        (STRAIGHT, STRAIGHT, (1, 1), ""),
        (STRAIGHT, None, (1, 0), ""),
        (None, STRAIGHT, (0, 2), ""),
        (moved(STRAIGHT, 0.5), STRAIGHT, (1, 1), ""),
        (moved(STRAIGHT, 30), turned(STRAIGHT, 20), (1, 4), ""),
        (None, None, (0, 0), "neither a qform nor an sform"),
        (moved(STRAIGHT, 30), STRAIGHT, (1, 1), "contradict each other"),
        (turned(STRAIGHT, 45), STRAIGHT, (1, 2), "contradict each other"),
        (FLIPPED, STRAIGHT, (1, 1), "contradict each other"),
        (FLIPPED, STRAIGHT, (1, 4), "contradict each other"),
    ],
)
def test_forms_of_a_header_are_compared(tmp_path, qform, sform, codes, told):
    found = read_scan(written(tmp_path / "a.nii", qform, sform, codes)).warnings
    assert [told in sentence for sentence in found] == ([True] if told else [])


def test_a_damaged_quaternion_contradicts_a_sound_sform(tmp_path):
    path = written(tmp_path / "a.nii", STRAIGHT, STRAIGHT, (1, 1))
    data = bytearray(path.read_bytes())
    data[256:260] = np.float32(7).tobytes()  # quatern_b, whose square may be 1 at most
    path.write_bytes(data)
    assert "contradict each other" in read_scan(path).warnings[0]


@pytest.mark.parametrize(("edge", "odd"), [(1e-4, True), (0.05, True), (0.11, False), (19.0, False), (25.0, True)])
def test_voxels_that_no_scanner_has_are_noticed(tmp_path, edge, odd):
    image = nibabel.Nifti1Image(np.random.rand(6, 5, 4).astype(np.float32), np.diag([1.0, 1.0, edge, 1.0]))
    nibabel.save(image, tmp_path / "a.nii")
    found = read_scan(tmp_path / "a.nii").warnings
    assert len(found) == odd
    assert not odd or f"1 x 1 x {edge:.3g} mm, which is unusual" in found[0]


def test_channels_of_one_scan_have_its_warnings_once(tmp_path):
    files = [written(tmp_path / f"{name}.nii") for name in "ab"]
    assert len(read_channels(files).warnings) == 1
