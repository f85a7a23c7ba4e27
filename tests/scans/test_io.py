"""Scans in and out: geometry, headers, and every way in which a file can be wrong."""

import gzip
import itertools
import json
import os
import re
import zlib
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import SimpleITK
import torch

from scantune.errors import InputError, ScanError
from scantune.scans import header, io
from scantune.scans.case import LARGEST_SHIFT, Case, LabelMap, grid_shift, require_same_grid
from scantune.scans.files import write_text
from scantune.scans.header import read_grid
from scantune.scans.io import read_labels, read_scan, write_image, write_labels
from scantune.scans.tensors import write_tensors

SHAPE = (6, 5, 4)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def image(rng):
    return rng.normal(100, 20, SHAPE).astype(np.float32)


def oblique_affine(spacing=(0.7, 1.3, 4.0), angle=0.3):
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    affine = np.eye(4)
    affine[:3, :3] = turn * spacing
    affine[:3, 3] = -31.7, 12.25, 88.1
    return affine


def save(path, array, affine=None, **forms):
    nifti = nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine)
    if "sform" in forms:
        nifti.set_sform(*forms["sform"])
    if "qform" in forms:
        nifti.set_qform(*forms["qform"])
    nifti.header.set_xyzt_units(forms.get("units", "mm"))
    nibabel.save(nifti, path)
    return path


def refusal(call, *arguments, error=ScanError):
    """The message of the one sentence or two that the call must end in."""
    with pytest.raises(error) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def as_itk(image, affine=None):
    """The same volume as SimpleITK holds it, by nibabel's LPS rules written out."""
    affine = np.eye(4) if affine is None else affine
    lps = np.diag([-1, -1, 1, 1]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    volume = SimpleITK.GetImageFromArray(image.transpose(2, 1, 0))
    volume.SetSpacing(spacing.tolist())
    volume.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    volume.SetOrigin(lps[:3, 3].tolist())
    return volume


# Reading


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_a_nifti_scan_keeps_its_voxels_affine_and_name(tmp_path, image, suffix):
    affine = oblique_affine()
    case = read_scan(save(tmp_path / f"sub-01_T1w{suffix}", image, affine))
    np.testing.assert_array_equal(case.image, image)
    np.testing.assert_allclose(case.affine, affine, atol=1e-5)
    assert (case.name, case.subject, case.image.dtype) == ("sub-01_T1w", "sub-01_T1w", np.float32)
    np.testing.assert_allclose(case.spacing, (0.7, 1.3, 4.0), rtol=1e-6)
    assert case.voxel_volume == pytest.approx(0.7 * 1.3 * 4.0)


def test_slope_and_intercept_are_applied(tmp_path, rng):
    stored = rng.integers(0, 100, SHAPE).astype(np.int16)
    nifti = nibabel.Nifti1Image(stored, np.eye(4))
    nifti.header.set_slope_inter(2.0, -7.0)
    path = tmp_path / "scaled.nii"
    nibabel.save(nifti, path)
    np.testing.assert_allclose(read_scan(path).image, nibabel.load(path).get_fdata())
    assert nibabel.load(path).dataobj.slope == 2.0


@pytest.mark.parametrize("suffix", [".mha", ".mhd", ".nrrd"])
def test_formats_of_simpleitk_have_the_same_geometry_as_nifti(tmp_path, image, suffix):
    affine = oblique_affine()
    SimpleITK.WriteImage(as_itk(image, affine), tmp_path / f"scan.v2{suffix}")
    case = read_scan(tmp_path / f"scan.v2{suffix}")
    assert case.name == "scan.v2"
    np.testing.assert_array_equal(case.image, image)
    np.testing.assert_allclose(case.affine, affine, atol=1e-6)


def test_nifti_through_simpleitk_and_through_nibabel_agree(tmp_path, image):
    path = save(tmp_path / "scan.nii.gz", image, oblique_affine(), qform=(oblique_affine(), 1))
    ours = read_scan(path)
    array, affine, _ = io._read_other(path)
    np.testing.assert_array_equal(ours.image, array)
    np.testing.assert_allclose(ours.affine, affine, atol=1e-4)


def test_units_of_the_affine_become_millimetres(tmp_path, image):
    case = read_scan(save(tmp_path / "a.nii", image, np.diag([0.001, 0.001, 0.003, 1]), units="meter"))
    np.testing.assert_allclose(case.spacing, (1, 1, 3), rtol=1e-6)


def test_a_flat_picture_is_one_slice_and_trailing_axes_of_one_go(tmp_path, image):
    flat = save(tmp_path / "flat.nii", image[..., 0])
    long = save(tmp_path / "long.nii", image[..., None, None])
    assert read_scan(flat).image.shape == (6, 5, 1)
    np.testing.assert_array_equal(read_scan(long).image, image)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(np.arange(20, dtype=np.uint8).reshape(5, 4)), tmp_path / "p.png")
    assert read_scan(tmp_path / "p.png").image.shape == (4, 5, 1)
    SimpleITK.WriteImage(SimpleITK.JoinSeries([as_itk(image, oblique_affine())]), tmp_path / "long.nrrd")
    np.testing.assert_array_equal(read_scan(tmp_path / "long.nrrd").image, image)
    np.testing.assert_allclose(read_scan(tmp_path / "long.nrrd").affine, oblique_affine(), atol=1e-6)


def write_dicom(folder, volume, affine, series="1", slices=None):
    """One file per slice, numbered out of order, with a patient's name in the header."""
    folder.mkdir(exist_ok=True)
    lps = np.diag([-1, -1, 1, 1]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    directions = lps[:3, :3] / spacing
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    count = volume.shape[2]
    for index in range(count) if slices is None else slices:
        picture = SimpleITK.GetImageFromArray(np.ascontiguousarray(volume[:, :, index].T))
        picture.SetSpacing(spacing[:2].tolist())
        corner = (lps @ [0, 0, index, 1])[:3]
        tags = {
            "0008|0016": "1.2.840.10008.5.1.4.1.1.4",
            "0008|0018": f"1.2.826.{series}.{index + 1}",
            "0008|0060": "MR",
            "0010|0010": "Secret^Name",
            "0020|000d": "1.2.826.99",
            "0020|000e": f"1.2.826.{series}",
            "0020|0013": str(index + 1),
            "0020|0032": "\\".join(f"{value:.6f}" for value in corner),
            "0020|0037": "\\".join(f"{value:.8f}" for value in (*directions[:, 0], *directions[:, 1])),
        }
        for tag, value in tags.items():
            picture.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"{series}-{index * 3 % count:03d}.dcm"))
        writer.Execute(picture)
    return folder


@pytest.mark.parametrize("affine", [np.diag([-0.5, -0.75, 3, 1]), oblique_affine()], ids=["straight", "oblique"])
def test_a_dicom_series_is_read_in_spatial_order_and_without_identity(tmp_path, rng, affine):
    volume = rng.integers(0, 1000, (6, 5, 7)).astype(np.int16)
    case = read_scan(write_dicom(tmp_path / "head", volume, affine))
    np.testing.assert_array_equal(case.image, volume)
    np.testing.assert_allclose(case.affine, affine, atol=1e-4)
    assert (case.name, case.subject) == ("head", "head")
    assert "Secret" not in repr(case)


def test_a_dicom_folder_must_hold_exactly_one_series(tmp_path, rng):
    volume = rng.integers(0, 1000, (6, 5, 7)).astype(np.int16)
    folder = write_dicom(tmp_path / "head", volume, np.eye(4))
    write_dicom(folder, volume[..., :5], np.eye(4), series="2")
    message = refusal(read_scan, folder)
    assert str(folder) in message
    assert "holds 2: number unknown, without description (7 slices), 1.2.826.1; number unknown" in message
    assert "Secret" not in message
    (tmp_path / "empty").mkdir()
    assert "holds none that can be read" in refusal(read_scan, tmp_path / "empty")


def test_a_dicom_series_with_a_missing_slice_is_refused(tmp_path, rng):
    volume = rng.integers(0, 1000, (6, 5, 7)).astype(np.int16)
    folder = write_dicom(tmp_path / "head", volume, np.diag([1, 1, 3, 1]), slices=[0, 1, 2, 4, 5, 6])
    assert "evenly spaced" in refusal(read_scan, folder)


# What cannot be read


def test_a_missing_file_is_named(tmp_path):
    path = tmp_path / "none.nii.gz"
    assert f"{path} does not exist" in refusal(read_scan, path)


def bytes_that_are_no_image(rng):
    nifti = nibabel.Nifti1Image(rng.normal(size=(20, 20, 20)).astype(np.float32), np.eye(4)).to_bytes()
    packed = gzip.compress(nifti)
    wrong_type = bytearray(nifti)
    wrong_type[70:72] = (999).to_bytes(2, "little")
    return {
        "text.nii.gz": b"hello",
        "text.nii": b"hello" * 200,
        "text.mha": b"hello",
        "text.txt": b"hello",
        "nothing.nii": b"",
        "nothing.nii.gz": b"",
        "nothing.nrrd": b"",
        "headless.nii": nifti[:100],
        "half.nii": nifti[: len(nifti) // 2],
        "half.nii.gz": packed[: len(packed) // 2],
        "end.nii.gz": packed[:-40],
        "type.nii": bytes(wrong_type),
        "no-size.mhd": b"NDims = 3\n",
        "half.mha": b"NDims = 3\nDimSize = 9 9 9\nElementType = MET_FLOAT\nElementDataFile = LOCAL\nabc",
    }


@pytest.mark.parametrize("name", bytes_that_are_no_image(np.random.default_rng(0)))
def test_damaged_files_and_other_kinds_are_one_sentence(tmp_path, rng, capfd, name):
    path = tmp_path / name
    path.write_bytes(bytes_that_are_no_image(rng)[name])
    assert f"{path} cannot be read as an image" in refusal(read_scan, path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads every file")
def test_a_file_without_permission_is_told_so(tmp_path, image):
    path = save(tmp_path / "a.nii", image)
    path.chmod(0)
    assert "permission denied" in refusal(read_scan, path)


def test_permission_errors_of_the_reader_are_told_so(tmp_path, image, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(io, "read_nifti", refuse)
    assert "permission denied" in refusal(read_scan, save(tmp_path / "a.nii", image))


def test_reading_leaves_the_standard_error_as_it_was(tmp_path, image, capfd):
    SimpleITK.WriteImage(as_itk(image), tmp_path / "a.mha")
    read_scan(tmp_path / "a.mha")
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


@pytest.mark.parametrize("shape", [(4, 4, 4, 2), (4, 4, 1, 1, 3)])
def test_volumes_of_more_than_three_axes_are_refused(tmp_path, shape):
    path = save(tmp_path / "a.nii.gz", np.zeros(shape, np.float32))
    assert str(shape) in refusal(read_scan, path)


@pytest.mark.parametrize("axes", ["4294967296", "-1", "0", "100", "2.5", "nan", "x", "", "3\nNDims = 99"])
@pytest.mark.parametrize("read", [read_scan, read_grid])
def test_a_metaimage_without_a_number_of_axes_is_not_given_to_the_reader(tmp_path, image, monkeypatch, axes, read):
    """Its reader writes beyond its memory then: it crashes, or goes on for minutes."""
    path = tmp_path / "a.mha"
    SimpleITK.WriteImage(as_itk(image), str(path))
    assert read(path).shape == image.shape
    path.write_bytes(path.read_bytes().replace(b"NDims = 3\n", f"NDims = {axes}\n".encode()))
    monkeypatch.setattr(io, "read_itk", None)
    monkeypatch.setattr(header, "read_itk_header", None)
    assert "NDims" in refusal(read, path)


@pytest.mark.parametrize("suffix", [".mha", ".mhd"])
def test_packed_voxels_of_a_metaimage_are_read_whole_or_not_at_all(tmp_path, image, suffix):
    """SimpleITK gives what lies in memory for those behind the damage."""
    path = tmp_path / f"a{suffix}"
    SimpleITK.WriteImage(as_itk(image), str(path), useCompression=True)
    np.testing.assert_array_equal(read_scan(path).image, image)
    file = path if suffix == ".mha" else tmp_path / "a.zraw"
    whole = file.read_bytes()
    start = 0 if suffix == ".mhd" else whole.find(b"LOCAL\n") + 6
    for place in range(start, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        assert "compressed voxels" in refusal(read_scan, path) or "cannot be read" in refusal(read_scan, path)


def test_a_packed_metaimage_that_does_not_tell_its_size_is_not_guessed(tmp_path, image):
    path = tmp_path / "a.mha"
    SimpleITK.WriteImage(as_itk(image), str(path), useCompression=True)
    path.write_bytes(re.sub(rb"CompressedDataSize = \d+\n", b"", path.read_bytes()))
    assert "CompressedDataSize" in refusal(read_scan, path)


LISTED = "ObjectType = Image\nNDims = 3\nDimSize = 4 3 2\nElementType = MET_SHORT\nElementDataFile = "


@pytest.fixture
def listed(tmp_path, rng):
    """Voxels in a file for each slice, and what writes a header that lists them."""
    voxels = rng.integers(1, 100, (4, 3, 2)).astype(np.int16)
    for number in range(2):
        (tmp_path / f"{number}.raw").write_bytes(voxels[:, :, number].tobytes(order="F"))

    def write(entry):
        (tmp_path / "a.mhd").write_text(LISTED + entry)
        return tmp_path / "a.mhd"

    return voxels, write


@pytest.mark.parametrize("entry", ["LIST\n0.raw\n1.raw\n", "%d.raw 0 1 1\n"])
def test_a_metaimage_may_list_its_slices(listed, entry):
    voxels, write = listed
    np.testing.assert_array_equal(read_scan(write(entry)).image, voxels)


@pytest.mark.parametrize("entry", ["LIST\n", "LIST\n0.raw\n", "%d.raw 1 0 -1\n", "%d.raw 0 0 1\n"])
def test_a_list_that_lacks_slices_is_not_filled_up_with_what_lies_in_memory(listed, entry):
    _, write = listed
    words = refusal(read_scan, write(entry))
    assert "lists data files" in words or "cannot be read" in words


@pytest.mark.parametrize("entry", ["CompressedData\n False", "CompressedData = maybe", "CompressedData ="])
def test_an_unclear_word_on_compression_is_not_guessed(tmp_path, entry):
    header = LISTED.replace("DimSize", f"{entry}\nDimSize")
    (tmp_path / "a.mha").write_bytes((header + "LOCAL\n").encode() + bytes(range(48)))
    words = refusal(read_scan, tmp_path / "a.mha")
    assert "whether its voxels are compressed" in words or "cannot be read" in words


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_packed_metaimages_of_both_byte_orders_are_read(tmp_path, rng, dtype):
    voxels = rng.integers(1, 100, (4, 3, 2)).astype(dtype)
    for order in "<>":
        packed = zlib.compress(voxels.T.astype(voxels.dtype.newbyteorder(order)).tobytes())
        kind = {"h": "MET_SHORT", "f": "MET_FLOAT", "d": "MET_DOUBLE"}[voxels.dtype.char]
        header = (
            f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = {order == '>'}\n"
            f"CompressedData = True\nCompressedDataSize = {len(packed)}\nDimSize = 4 3 2\nElementType = {kind}\n"
        )
        (tmp_path / "a.mha").write_bytes((header + "ElementDataFile = LOCAL\n").encode() + packed)
        np.testing.assert_array_equal(read_scan(tmp_path / "a.mha").image, voxels)


def test_a_pipe_is_no_scan(tmp_path):
    os.mkfifo(tmp_path / "a.nii")
    assert "must be a file" in refusal(read_scan, tmp_path / "a.nii")


def test_several_values_per_voxel_are_refused(tmp_path):
    colours = np.zeros((5, 4, 3), np.uint8)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(colours, isVector=True), tmp_path / "colour.png")
    assert "(4, 5, 1, 3)" in refusal(read_scan, tmp_path / "colour.png")
    rgb = np.zeros(SHAPE, [("R", "u1"), ("G", "u1"), ("B", "u1")])
    assert "one real number" in refusal(read_scan, save(tmp_path / "rgb.nii", rgb))
    assert "complex64" in refusal(read_scan, save(tmp_path / "c.nii", np.zeros(SHAPE, np.complex64)))


def test_an_empty_volume_is_refused(tmp_path):
    path = save(tmp_path / "a.nii.gz", np.zeros((0, 3, 4), np.float32))
    message = refusal(read_scan, path)
    assert "empty" in message
    assert str(path) in message


def test_a_constant_volume_is_refused(tmp_path):
    path = save(tmp_path / "a.nii.gz", np.full(SHAPE, 3.5, np.float32))
    assert f"{path} must hold a picture, but every voxel is 3.5" in refusal(read_scan, path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_voxels_that_are_not_finite_are_counted(tmp_path, image, bad):
    image[0, 0, :3] = bad
    assert "3 of 120 voxels" in refusal(read_scan, save(tmp_path / "some.nii", image))
    image[:] = bad
    assert "all 120 voxels" in refusal(read_scan, save(tmp_path / "all.nii", image))


def test_values_beyond_float32_are_refused_without_a_warning(tmp_path, image):
    assert "infinite" in refusal(read_scan, save(tmp_path / "a.nii", image.astype(np.float64) * 1e300))


@pytest.mark.parametrize("third", [(0, 0, 0), (1, 0, 0), (np.nan, 0, 1)], ids=["zero", "parallel", "nan"])
def test_a_grid_that_cannot_be_inverted_is_refused(tmp_path, image, third):
    path = tmp_path / "a.nii"
    header = nibabel.Nifti1Header()
    header["sform_code"] = 1
    header["srow_x"][:], header["srow_y"][:], header["srow_z"][:] = np.c_[np.eye(3)[:, :2], third, np.zeros(3)]
    nibabel.save(nibabel.Nifti1Image(image, None, header), path)
    assert "affine" in refusal(read_scan, path)


@pytest.mark.parametrize(("edge", "away"), [(1e9, 0), (1e-7, 0), (1, 1e12)])
def test_a_grid_of_a_size_no_scanner_sees_is_refused(tmp_path, image, edge, away):
    affine = np.diag([edge, 1.0, 1.0, 1.0])
    affine[0, 3] = away
    assert "Repair the header" in refusal(read_scan, save(tmp_path / "a.nii", image, affine))


# Label maps


def test_labels_are_read_as_small_whole_numbers(tmp_path, rng):
    labels = rng.integers(0, 4, SHAPE)
    found = read_labels(save(tmp_path / "seg.nii.gz", labels.astype(np.float32), oblique_affine()), allowed=range(4))
    np.testing.assert_array_equal(found.labels, labels)
    assert (found.name, found.labels.dtype) == ("seg", np.uint8)
    assert found.voxel_volume == pytest.approx(0.7 * 1.3 * 4.0)


def test_unknown_labels_are_named(tmp_path, rng):
    labels = np.zeros(SHAPE, np.int16)
    labels[0, 0, :3] = 1, 7, 300
    path = save(tmp_path / "seg.nii.gz", labels)
    message = refusal(read_labels, path, {0, 1, 2})
    assert str(path) in message
    assert "0, 1, 2" in message
    assert "7, 300" in message
    assert read_labels(path).labels.dtype == np.uint16


def test_many_unknown_labels_are_cut_short(tmp_path):
    path = save(tmp_path / "seg.nii.gz", np.arange(120, dtype=np.uint8).reshape(SHAPE))
    assert "and 111 more" in refusal(read_labels, path, {0})


@pytest.mark.parametrize("bad", [0.5, -1, np.nan, 1e30])
def test_what_is_no_label_is_refused(tmp_path, bad):
    labels = np.zeros(SHAPE, np.float32)
    labels[1, 2, 3] = bad
    assert re.search(
        r"whole numbers from 0 to 4294967295, but holds \S+\.", refusal(read_labels, save(tmp_path / "s.nii", labels))
    )


def test_a_reference_must_lie_on_the_grid_of_its_scan(tmp_path, image, rng):
    case = read_scan(save(tmp_path / "scan.nii", image, oblique_affine()))
    labels = rng.integers(0, 3, SHAPE).astype(np.uint8)
    good = read_labels(save(tmp_path / "good.nii", labels, oblique_affine()))
    np.testing.assert_array_equal(case.with_reference(good).reference, labels)
    assert "(6, 5, 3)" in refusal(case.with_reference, replace(good, labels=labels[..., :3]))
    moved = oblique_affine()
    moved[0, 3] += 2.5
    assert "2.5 mm" in refusal(require_same_grid, replace(good, affine=moved), case)


def test_on_grids_that_count_as_one_every_label_stays_in_its_voxel(image, rng):
    """A map turned about its first corner, as rounding does, read where the scan's voxels are."""
    from scipy import ndimage

    labels = rng.integers(0, 3, SHAPE).astype(np.uint8)
    case = Case("scan", image, oblique_affine())
    for angle in np.linspace(0, 0.2, 41):
        turn = np.eye(4)
        turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        found = LabelMap("map", labels, case.affine @ turn)
        corner = np.array([n - 1 for n in SHAPE] + [1])
        assert grid_shift(found, case) >= np.abs((turn @ corner - corner)[:3]).max() - 1e-9
        if grid_shift(found, case) <= LARGEST_SHIFT:
            require_same_grid(found, case)
            relation = np.linalg.inv(turn)
            read = ndimage.affine_transform(labels, relation[:3, :3], relation[:3, 3], order=0, mode="grid-constant")
            np.testing.assert_array_equal(read, labels)
        else:
            assert "must lie on the grid of scan" in refusal(require_same_grid, found, case)


# Writing


def forms():
    straight, other = oblique_affine(), oblique_affine((0.7, 1.3, 4.0), 0.1)
    return {
        "both": {"sform": (straight, 1), "qform": (straight, 1)},
        "both differ": {"sform": (straight, 4), "qform": (other, 2)},
        "sform alone": {"sform": (straight, 2), "qform": (None, 0)},
        "qform alone": {"sform": (None, 0), "qform": (straight, 3)},
        "neither": {"sform": (None, 0), "qform": (None, 0)},
        "microns": {"sform": (straight, 1), "qform": (straight, 1), "units": "micron"},
        "unknown unit": {"sform": (straight, 1), "qform": (straight, 1), "units": "unknown"},
    }


@pytest.mark.parametrize("form", forms())
def test_written_labels_have_the_grid_of_the_scan(tmp_path, image, form):
    path = save(tmp_path / "scan.nii.gz", image, oblique_affine(), **forms()[form])
    labels = (image > 100).astype(np.int64) * 3
    write_labels(tmp_path / "seg.nii.gz", labels, read_scan(path))
    scan, seg = nibabel.load(path), nibabel.load(tmp_path / "seg.nii.gz")
    np.testing.assert_array_equal(np.asarray(seg.dataobj), labels)
    np.testing.assert_allclose(seg.affine, scan.affine, rtol=0, atol=1e-6)
    for get in ("get_sform", "get_qform"):
        (one, code), (other, expected_code) = getattr(seg, get)(coded=True), getattr(scan, get)(coded=True)
        assert code == expected_code
        assert one is other is None or np.allclose(one, other, rtol=0, atol=1e-6)
    assert seg.header.get_xyzt_units() == scan.header.get_xyzt_units()
    assert seg.get_data_dtype() == np.uint8
    assert (seg.dataobj.slope, seg.dataobj.inter, seg.shape) == (1, 0, scan.shape)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 4, 1)])
def test_written_labels_have_the_shape_of_the_file(tmp_path, rng, shape):
    case = read_scan(save(tmp_path / "scan.nii", rng.normal(size=shape).astype(np.float32)))
    write_labels(tmp_path / "seg.nii", np.ones(case.shape, np.uint8), case)
    assert nibabel.load(tmp_path / "seg.nii").shape == shape


def test_nifti_2_stays_nifti_2_with_its_double_precision(tmp_path, image):
    affine = oblique_affine()
    affine[:3, 3] += 1e-9 / 3
    nibabel.save(nibabel.Nifti2Image(image, affine), tmp_path / "scan.nii")
    case = read_scan(tmp_path / "scan.nii")
    write_image(tmp_path / "out.nii", case.image, case)
    out = nibabel.load(tmp_path / "out.nii")
    assert isinstance(out, nibabel.Nifti2Image)
    np.testing.assert_array_equal(out.affine, affine)
    np.testing.assert_array_equal(out.get_fdata(dtype=np.float32), image)


def test_big_endian_files_are_read_and_answered(tmp_path, image):
    header = nibabel.Nifti1Header(endianness=">")
    nibabel.save(nibabel.Nifti1Image(image, oblique_affine(), header), tmp_path / "scan.nii")
    case = read_scan(tmp_path / "scan.nii")
    np.testing.assert_array_equal(case.image, image)
    write_image(tmp_path / "out.nii", image, case)
    np.testing.assert_array_equal(nibabel.load(tmp_path / "out.nii").affine, nibabel.load(tmp_path / "scan.nii").affine)


@pytest.mark.parametrize(("top", "dtype"), [(1, np.uint8), (255, np.uint8), (256, np.uint16), (70000, np.uint32)])
def test_labels_are_written_in_the_smallest_unsigned_type(tmp_path, image, top, dtype):
    case = Case("made-up", image, np.diag([1.0, 2, 3, 1]))
    labels = np.zeros(SHAPE, np.int64)
    labels[1, 1, 1] = top
    write_labels(tmp_path / "seg.nii.gz", labels, case)
    seg = nibabel.load(tmp_path / "seg.nii.gz")
    assert seg.get_data_dtype() == dtype
    np.testing.assert_array_equal(np.asarray(seg.dataobj), labels)


def test_axes_that_are_too_long_for_the_older_format_are_written_in_the_newer(tmp_path):
    long = np.arange(40000, dtype=np.float32).reshape(40000, 1, 1)
    write_image(tmp_path / "a.nii", long, Case("a", long, np.eye(4)))
    np.testing.assert_array_equal(read_scan(tmp_path / "a.nii").image, long)


def test_scans_from_elsewhere_get_both_forms_unless_they_are_sheared(tmp_path, image):
    affine = oblique_affine()
    write_image(tmp_path / "a.nii", image, Case("a", image, affine))
    written = nibabel.load(tmp_path / "a.nii")
    np.testing.assert_allclose(written.get_qform(), affine, atol=1e-4)
    assert [int(written.header[code]) for code in ("qform_code", "sform_code")] == [1, 1]
    assert written.header.get_xyzt_units()[0] == "mm"
    affine[0, 1] += 0.5
    write_image(tmp_path / "b.nii", image, Case("b", image, affine))
    written = nibabel.load(tmp_path / "b.nii")
    np.testing.assert_allclose(written.affine, affine, atol=1e-5)
    assert int(written.header["qform_code"]) == 0


def test_a_scan_that_was_moved_or_cut_is_written_where_it_is_now(tmp_path, image):
    case = read_scan(save(tmp_path / "scan.nii", image, oblique_affine()))
    moved = replace(case, affine=np.diag([1.0, 2, 3, 1]))
    write_image(tmp_path / "moved.nii", image, moved)
    np.testing.assert_allclose(nibabel.load(tmp_path / "moved.nii").affine, moved.affine)
    cut = replace(case, image=image[:3])
    write_image(tmp_path / "cut.nii", cut.image, cut)
    assert nibabel.load(tmp_path / "cut.nii").shape == (3, 5, 4)


def test_a_written_scan_is_read_back_the_same(tmp_path, image):
    for index, signs in enumerate(itertools.product((1, -1), repeat=3)):
        case = Case("a", image, oblique_affine() * [*signs, 1])
        write_image(tmp_path / f"{index}.nii.gz", image, case)
        again = read_scan(tmp_path / f"{index}.nii.gz")
        np.testing.assert_array_equal(again.image, image)
        np.testing.assert_allclose(again.affine, case.affine, atol=1e-5)


def test_what_is_no_label_map_of_the_scan_is_not_written(tmp_path, image):
    case = Case("a", image, np.eye(4))
    for labels in (np.full(SHAPE, 0.5), np.full(SHAPE, -1), np.full(SHAPE, np.nan), np.zeros((6, 5, 3))):
        refusal(write_labels, tmp_path / "seg.nii", labels, case, error=InputError)
    assert ".nii.gz" in refusal(write_image, tmp_path / "seg.mha", image, case, error=InputError)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_cannot_be_written_is_named(tmp_path, image):
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "seg.nii.gz"
    assert f"{path} cannot be written" in refusal(
        write_labels, path, np.ones(SHAPE, np.uint8), Case("a", image, np.eye(4)), error=InputError
    )
    assert f"{path} cannot be written" in refusal(write_text, path, "{}", error=InputError)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_is_left(tmp_path, image, monkeypatch, failure):
    def fail_halfway(nifti, path):
        path.write_bytes(b"half")
        raise failure

    monkeypatch.setattr(nibabel, "save", fail_halfway)
    (tmp_path / "seg.nii.gz").write_text("before")
    with pytest.raises((InputError, KeyboardInterrupt)):
        write_labels(tmp_path / "seg.nii.gz", np.ones(SHAPE, np.uint8), Case("a", image, np.eye(4)))
    assert [path.name for path in tmp_path.iterdir()] == ["seg.nii.gz"]
    assert (tmp_path / "seg.nii.gz").read_text(encoding="utf-8") == "before"


def test_text_is_written_whole_into_new_folders_and_over_old_files(tmp_path):
    path = tmp_path / "new" / "folder" / "manifest.json"
    write_text(path, "old")
    write_text(path, json.dumps({"structure": "ä"}, ensure_ascii=False))
    assert json.loads(path.read_text(encoding="utf-8")) == {"structure": "ä"}
    assert [entry.name for entry in path.parent.iterdir()] == ["manifest.json"]


@pytest.mark.skipif(os.name == "nt", reason="Windows knows no umask")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
@pytest.mark.parametrize("kind", ["nii.gz", "safetensors", "txt"])
def test_files_have_the_permissions_that_open_gives(tmp_path, kind, mask):
    def write(path):
        if kind == "txt":
            write_text(path, "words")
        elif kind == "nii.gz":
            write_labels(path, np.zeros(SHAPE, int), Case("a", np.zeros(SHAPE, np.float32), np.eye(4)))
        else:
            write_tensors(path, {"a": torch.zeros(2)}, {})

    before = os.umask(mask)
    try:
        (tmp_path / "opened").open("w").close()
        write(tmp_path / f"new.{kind}")
        (tmp_path / f"old.{kind}").touch(0o640)
        (tmp_path / f"old.{kind}").chmod(0o640)
        write(tmp_path / f"old.{kind}")
    finally:
        os.umask(before)
    modes = {path.stem.split(".")[0]: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert modes == {"opened": oct(0o666 & ~mask), "new": oct(0o666 & ~mask), "old": "0o640"}
