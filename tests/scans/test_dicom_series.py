"""Several DICOM series in a folder, and DICOM files with a whole volume."""

import numpy as np
import pytest

from scantune.errors import ScanError
from scantune.scans.header import read_grid
from scantune.scans.io import read_scan
from tests.toy_dicom import PATIENT, STRAIGHT, STUDY, write_multiframe, write_report, write_series

OBLIQUE = np.array([[0.48, -0.1, 0.9, 3], [0.13, 0.73, 0.4, -5], [-0.06, 0.14, 2.8, 7], [0, 0, 0, 1]])
OBLIQUE[:3, :3] = np.linalg.qr(OBLIQUE[:3, :3])[0] * [-0.5, -0.75, 3.0]
OBLIQUE[:3, 2] *= np.sign(np.linalg.det(OBLIQUE[:3, :3]))


@pytest.fixture
def volume():
    return np.random.default_rng(0).integers(0, 1000, (6, 5, 4)).astype(np.uint16)


@pytest.fixture
def study(tmp_path, volume):
    """A folder with three series and a report."""
    folder = write_series(tmp_path / "DICOM", volume, number=2, description="T1 MPRAGE", series="1")
    write_series(folder, volume[..., :3] + 1, number=5, description="FLAIR \x1b[31mred", series="2")
    write_series(folder, volume[..., :1] + 2, number=12, description="", series="3")
    write_report(folder / "report.dcm")
    return folder


def refusal(path, **more):
    with pytest.raises(ScanError) as caught:
        read_scan(path, **more)
    return caught.value


@pytest.mark.parametrize("word", ["2", "T1 MPRAGE", "t1*", f"{STUDY}.1"])
def test_a_series_is_chosen_by_number_description_or_uid(study, volume, word):
    case = read_scan(study, series=word)
    np.testing.assert_array_equal(case.image, volume)
    np.testing.assert_allclose(case.affine, STRAIGHT, atol=1e-6)
    assert [path.name[:2] for path in case.dicom] == ["1-"] * 4


def test_without_a_choice_the_series_are_listed_with_number_description_and_slices(study):
    error = refusal(study)
    assert "it holds 3: number 2, T1 MPRAGE (4 slices); number 5, FLAIR [31mred (3 slices); " in str(error)
    assert "number 12, without description (1 slice). Choose one by --series" in str(error)
    assert "\x1b" not in str(error)


def test_what_is_kept_of_the_error_names_no_description(study):
    error = refusal(study)
    assert "MPRAGE" not in error.recorded
    assert "it holds 3 (with 4, 3, 1 slices)" in error.recorded
    assert PATIENT not in str(error)


@pytest.mark.parametrize(("word", "count"), [("7", 0), ("*", 3), ("T2*", 0)])
def test_a_word_that_names_no_series_or_several_is_refused_with_the_listing(study, word, count):
    words = str(refusal(study, series=word))
    assert f"{count} of 3 series are" in words
    assert "T1 MPRAGE" in words


def test_series_of_one_number_and_description_are_told_apart_by_their_uids(tmp_path, volume):
    for series in "12":
        write_series(tmp_path, volume, series=series)
    words = str(refusal(tmp_path, series="T1*"))
    assert f"{STUDY}.1; " in words
    assert np.array_equal(read_scan(tmp_path, series=f"{STUDY}.2").image, volume)


def test_a_report_beside_the_only_series_is_no_matter(tmp_path, volume):
    write_report(write_series(tmp_path, volume) / "report.dcm")
    np.testing.assert_array_equal(read_scan(tmp_path).image, volume)


def test_a_word_must_name_the_only_series_too(tmp_path, volume):
    folder = write_series(tmp_path, volume)
    assert "0 of 1 series" in str(refusal(folder, series="FLAIR"))
    np.testing.assert_array_equal(read_scan(folder, series="1").image, volume)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 1, 3)], ids=["up", "down", "interleaved"])
@pytest.mark.parametrize("affine", [STRAIGHT @ np.diag([-1, -1, 1, 1]), OBLIQUE], ids=["straight", "oblique"])
def test_a_multi_frame_file_is_read_in_the_order_of_its_places(tmp_path, volume, order, affine):
    case = read_scan(write_multiframe(tmp_path / "scan.dcm", volume, affine, order))
    np.testing.assert_array_equal(case.image, volume)
    np.testing.assert_allclose(case.affine, affine, atol=1e-5)
    assert case.dicom == (tmp_path / "scan.dcm",)
    np.testing.assert_allclose(read_grid(tmp_path / "scan.dcm").affine, affine, atol=1e-5)


def test_a_multi_frame_file_in_a_folder_is_the_same_scan(tmp_path, volume):
    path = write_multiframe(tmp_path / "DICOM" / "IM1", volume, slopes=(2.0,))
    by_folder, by_file = read_scan(path.parent), read_scan(path)
    np.testing.assert_array_equal(by_folder.image, 2 * volume)
    np.testing.assert_array_equal(by_file.image, by_folder.image)
    np.testing.assert_array_equal(by_file.affine, by_folder.affine)
    assert (by_folder.name, by_file.name) == ("DICOM", "IM1")


def test_a_multi_frame_series_is_listed_by_its_frames(tmp_path, volume):
    write_multiframe(tmp_path / "IM1", volume)
    write_series(tmp_path, volume, description="T2")
    assert "number 3, T1 enhanced (4 slices)" in str(refusal(tmp_path))
    np.testing.assert_array_equal(read_scan(tmp_path, series="3").image, volume)


def drop(name):
    return lambda file: delattr(file, name)


def at_one_place(file):
    frames = file.PerFrameFunctionalGroupsSequence
    frames[2].PlanePositionSequence = frames[0].PlanePositionSequence


def turned(file):
    frame, orientation = file.PerFrameFunctionalGroupsSequence[1], file.SharedFunctionalGroupsSequence[0]
    frame.PlaneOrientationSequence = type(orientation.PlaneOrientationSequence)([type(frame)()])
    frame.PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, 0, 1]


def far(file):
    file.PerFrameFunctionalGroupsSequence[3].PlanePositionSequence[0].ImagePositionPatient = [0, 0, 900]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (drop("PerFrameFunctionalGroupsSequence"), "must say where they lie"),
        (at_one_place, "lie at one place"),
        (turned, "share their direction"),
        (far, "evenly spaced"),
        (lambda file: file.PerFrameFunctionalGroupsSequence.pop(), "finite numbers"),
        (lambda file: setattr(file, "PixelData", file.PixelData[:-20]), "cut short"),
    ],
)
def test_multi_frame_files_that_are_no_volume_are_refused(tmp_path, volume, change, words):
    assert words in str(refusal(write_multiframe(tmp_path / "scan.dcm", volume, change=change)))


def test_frames_of_several_scales_are_refused(tmp_path, volume):
    assert "share the scale" in str(refusal(write_multiframe(tmp_path / "a.dcm", volume, slopes=(1.0, 2.0))))


def test_a_single_slice_is_read_by_its_file_as_by_its_folder(tmp_path, volume):
    folder = write_series(tmp_path, volume[..., :1])
    (path,) = folder.iterdir()
    for where in (folder, path):
        case = read_scan(where)
        np.testing.assert_array_equal(case.image, volume[..., :1])
        np.testing.assert_allclose(case.affine, STRAIGHT, atol=1e-6)
