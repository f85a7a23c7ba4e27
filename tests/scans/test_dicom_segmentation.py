"""Segmentations in DICOM: right voxels at the right places, valid by an independent program, named as the source."""

import shutil
import subprocess
from dataclasses import replace

import highdicom
import numpy as np
import pydicom
import pytest
from pydicom.sr._concepts_dict import concepts

from scantune.errors import InputError
from scantune.scans.dicom.codes import OWN, STRUCTURE_CODES, structure_codes
from scantune.scans.dicom.segmentation import Segment, write_dicom_segmentation
from scantune.scans.io import read_scan
from tests.scans.test_dicom_series import OBLIQUE
from tests.toy_dicom import PATIENT, STRAIGHT, STUDY, lps, write_multiframe, write_series

SEGMENTS = [Segment("GM", 2, (213, 94, 0)), Segment("odd one, x", 5, (86, 180, 233))]
SHAPE = (6, 5, 4)


@pytest.fixture
def volume():
    return np.random.default_rng(0).integers(0, 1000, SHAPE).astype(np.uint16)


@pytest.fixture
def labels():
    """Labels 2 and 5, of which the second slice has none."""
    found = np.random.default_rng(1).choice([0, 2, 5], SHAPE).astype(np.uint8)
    found[..., 1] = 0
    return found


SOURCES = {
    "series": lambda folder, volume: write_series(folder / "series", volume),
    "oblique": lambda folder, volume: write_series(folder / "series", volume, OBLIQUE),
    "multi-frame": lambda folder, volume: write_multiframe(folder / "a.dcm", volume, order=(0, 2, 1, 3)),
    "downwards": lambda folder, volume: write_multiframe(folder / "a.dcm", volume, OBLIQUE, order=(3, 2, 1, 0)),
}


@pytest.fixture(params=SOURCES)
def written(request, tmp_path, volume, labels):
    """A scan, and the file that answers it."""
    case = read_scan(SOURCES[request.param](tmp_path, volume))
    path = tmp_path / "out" / "scan_seg.dcm"
    write_dicom_segmentation(path, labels, case, SEGMENTS)
    return case, path


def voxels_by_place(path, case):
    """The segments of a file as labels on a scan's grid, by the places that its frames give, with pydicom alone."""
    file = pydicom.dcmread(path)
    shared = file.SharedFunctionalGroupsSequence[0]
    spacing = [float(v) for v in shared.PixelMeasuresSequence[0].PixelSpacing]
    direction = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float)
    found = np.zeros(case.shape, int)
    values = [segment.value for segment in SEGMENTS]
    pixels = file.pixel_array.reshape(-1, file.Rows, file.Columns)
    for frame, groups in zip(pixels, file.PerFrameFunctionalGroupsSequence, strict=True):
        origin = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float)
        number = groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        for row, column in np.argwhere(frame):
            place = origin + column * spacing[1] * direction[:3] + row * spacing[0] * direction[3:]
            voxel = np.linalg.solve(lps(case.affine), [*place, 1])[:3]
            assert np.abs(voxel - voxel.round()).max() < 1e-3
            found[tuple(voxel.round().astype(int))] = values[number - 1]
    return found


def test_every_voxel_lies_where_the_scan_has_it(written, labels):
    case, path = written
    np.testing.assert_array_equal(voxels_by_place(path, case), labels)


def test_highdicom_reads_the_same_volume_on_the_same_grid(written, labels):
    case, path = written
    volume = highdicom.seg.segread(path).get_volume(combine_segments=True)
    to_voxels = np.linalg.inv(lps(case.affine)) @ volume.affine
    found = np.zeros(case.shape, int)
    for place in np.ndindex(volume.array.shape):
        voxel = (to_voxels @ [*place, 1])[:3]
        assert np.abs(voxel - voxel.round()).max() < 1e-3
        found[tuple(voxel.round().astype(int))] = volume.array[place]
    np.testing.assert_array_equal(found, np.searchsorted([0, 2, 5], labels))


def test_the_file_refers_to_its_source_and_names_its_patient(written):
    _, path = written
    file = pydicom.dcmread(path)
    assert str(file.PatientName) == PATIENT
    assert (file.PatientID, file.StudyInstanceUID, file.FrameOfReferenceUID) == ("4711", STUDY, f"{STUDY}.99")
    assert file.ReferencedSeriesSequence[0].SeriesInstanceUID.startswith(STUDY)
    assert file.SeriesInstanceUID != file.ReferencedSeriesSequence[0].SeriesInstanceUID
    assert file.SeriesNumber > 1000


def test_segments_have_names_codes_and_colours(written):
    _, path = written
    first, second = highdicom.seg.segread(path).SegmentSequence
    assert (first.SegmentLabel, second.SegmentLabel) == ("GM", "odd one, x")
    assert first.SegmentedPropertyTypeCodeSequence[0].CodeValue == "389081007"
    own = second.SegmentedPropertyTypeCodeSequence[0]
    assert (own.CodeValue, own.CodingSchemeDesignator, own.CodeMeaning) == ("ODD-ONE-X", OWN, "odd one, x")
    for segment, wanted in zip((first, second), SEGMENTS, strict=True):
        lightness, green_red, blue_yellow = cie_lab(wanted.colour)
        stored = segment.RecommendedDisplayCIELabValue
        assert stored == pytest.approx(
            [lightness / 100 * 65535, (green_red + 128) / 255 * 65535, (blue_yellow + 128) / 255 * 65535], abs=200
        )


def cie_lab(colour):
    """CIELab of an sRGB colour under the white D65, by the formulas of the standard IEC 61966-2-1."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in np.array(colour) / 255]
    matrix = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = (
        ratio ** (1 / 3) if ratio > (6 / 29) ** 3 else ratio / (3 * (6 / 29) ** 2) + 4 / 29
        for ratio in np.array(matrix) @ linear / [0.9505, 1, 1.089]
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy of dicom3tools is not installed")
def test_dciodvfy_finds_no_error(written):
    _, path = written
    done = subprocess.run(["dciodvfy", path], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    assert "Segmentation" in lines
    assert not [line for line in lines if line.startswith("Error")]
    assert not [line for line in lines if line.startswith("Warning") and OWN not in line]


@pytest.mark.parametrize("name", STRUCTURE_CODES)
def test_codes_are_those_of_snomed_by_the_dictionary_of_pydicom(name):
    for code in (STRUCTURE_CODES[name].category, STRUCTURE_CODES[name].type):
        meanings = {
            about[0] for entry in concepts["SCT"].values() for value, about in entry.items() if value == code.value
        }
        assert code.meaning in meanings


@pytest.mark.parametrize(
    ("name", "value"), [("GM", "389081007"), ("Brain_Stem", "119238007"), ("spleen", "SPLEEN"), ("é", "LABEL-7")]
)
def test_names_find_their_codes(name, value):
    found = structure_codes(name, 7).type
    assert found.value == value
    assert len(found.value) <= 16


def test_a_segmentation_without_a_voxel_is_written_without_a_word(tmp_path, volume, caplog):
    case = read_scan(write_series(tmp_path / "series", volume))
    write_dicom_segmentation(tmp_path / "a.dcm", np.zeros(SHAPE, np.uint8), case, SEGMENTS)
    assert not pydicom.dcmread(tmp_path / "a.dcm").pixel_array.any()
    assert not caplog.records


def test_scans_that_are_no_dicom_and_headers_that_lack_something_are_told(tmp_path, volume, labels):
    case = read_scan(write_series(tmp_path / "series", volume, STRAIGHT))
    with pytest.raises(InputError, match="not read from DICOM"):
        write_dicom_segmentation(tmp_path / "a.dcm", labels, replace(case, dicom=()), SEGMENTS)
    file = pydicom.dcmread(case.dicom[1])
    del file.FrameOfReferenceUID
    file.save_as(case.dicom[1])
    with pytest.raises(InputError, match="must have FrameOfReferenceUID"):
        write_dicom_segmentation(tmp_path / "a.dcm", labels, case, SEGMENTS)
    assert not (tmp_path / "a.dcm").exists()
