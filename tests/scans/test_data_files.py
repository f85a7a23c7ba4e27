"""Data files that headers name: found, hashed, and refused if they lie elsewhere or are no regular files."""

import hashlib
import os
import time

import nibabel
import numpy as np
import pytest
import SimpleITK

from scantune.errors import ScanError
from scantune.scans.data_files import content_hash, data_files
from scantune.scans.header import read_grid
from scantune.scans.io import read_scan
from scantune.scans.itk import ReaderError, _in_worker

VOXELS = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
META = "ObjectType = Image\nNDims = 3\nDimSize = 5 4 3\nElementType = MET_SHORT\nElementByteOrderMSB = False\n"
NRRD = "NRRD0004\ntype: short\ndimension: 3\nsizes: 5 4 3\nendian: little\nencoding: raw\n"


def meta(folder, name, entry="ElementDataFile"):
    path = folder / "scan.mhd"
    path.write_text(f"{META}{entry} = {name}\n")
    return path


def nrrd(folder, name, entry="data file"):
    path = folder / "scan.nhdr"
    path.write_text(f"{NRRD}{entry}: {name}\n")
    return path


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "scans"
    inside.mkdir()
    VOXELS.tofile(inside / "voxels.raw")
    VOXELS.tofile(tmp_path / "secret.raw")
    return inside


@pytest.mark.parametrize("header", [meta, nrrd])
def test_a_data_file_beside_its_header_is_found_and_read(header, folder):
    path = header(folder, "voxels.raw")
    assert data_files(path) == [folder / "voxels.raw"]
    assert np.array_equal(read_scan(path).image, VOXELS.T)


@pytest.mark.parametrize("header", [meta, nrrd])
def test_the_hash_changes_with_the_data_file_and_is_of_both(header, folder):
    path = header(folder, "voxels.raw")
    before = content_hash(path)
    both = path.read_bytes() + (folder / "voxels.raw").read_bytes()
    assert before == hashlib.sha256(both).hexdigest()[:16]
    VOXELS[::-1].tofile(folder / "voxels.raw")
    assert content_hash(path) != before


def test_the_hash_of_a_pair_covers_the_image_file(folder):
    path = folder / "pair.hdr"
    nibabel.Nifti1Pair(VOXELS, np.eye(4)).to_filename(path)
    before = content_hash(path)
    nibabel.Nifti1Pair(VOXELS[::-1].copy(), np.eye(4)).to_filename(path)
    assert content_hash(path) != before


def test_files_that_are_complete_have_no_data_files(folder):
    image = SimpleITK.GetImageFromArray(VOXELS)
    for name in ("a.mha", "a.nrrd", "a.nii"):
        SimpleITK.WriteImage(image, str(folder / name))
        assert data_files(folder / name) == []
        assert content_hash(folder / name) == hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize("header", [meta, nrrd])
@pytest.mark.parametrize(
    "name", ["../secret.raw", "sub/../../secret.raw", "{outside}/secret.raw", "C:\\secret.raw", "/dev/stdin"]
)
def test_a_data_file_elsewhere_is_refused_and_not_read(header, name, folder):
    path = header(folder, name.format(outside=folder.parent))
    for read in (read_scan, read_grid):
        with pytest.raises(ScanError, match="must name a data file in its own folder"):
            read(path)


@pytest.mark.parametrize("entry", ["ElementDataFile", "elementdatafile", "  ElementDataFile"])
def test_every_entry_that_may_name_the_voxels_is_checked(entry, folder):
    path = folder / "scan.mha"
    path.write_text(f"{META}Comment = x {entry} = ../secret.raw\nElementDataFile = voxels.raw\n")
    with pytest.raises(ScanError, match="secret"):
        data_files(path)
    path.write_text(f"{META}{entry} = ../secret.raw\nElementDataFile = voxels.raw\n")
    with pytest.raises(ScanError, match="secret"):
        data_files(path)


@pytest.mark.parametrize("header", [meta, nrrd])
def test_lists_and_patterns_are_followed(header, folder):
    for number in range(3):
        VOXELS[number].tofile(folder / f"slice{number}.raw")
    slices = [folder / f"slice{number}.raw" for number in range(3)]
    listed = "LIST\nslice0.raw\nslice1.raw\nslice2.raw"
    assert data_files(header(folder, listed)) == slices
    assert data_files(header(folder, "slice%d.raw 0 2 1")) == slices
    with pytest.raises(ScanError, match="secret"):
        data_files(header(folder, "LIST\nslice0.raw\n../secret.raw"))


@pytest.mark.parametrize("header", [meta, nrrd])
def test_a_pipe_is_refused_at_once_and_a_link_of_the_user_is_followed(header, folder):
    os.mkfifo(folder / "pipe.raw")
    started = time.monotonic()
    with pytest.raises(ScanError, match="not a regular file"):
        read_scan(header(folder, "pipe.raw"))
    assert time.monotonic() - started < 5
    (folder / "link.raw").symlink_to(folder.parent / "secret.raw")
    assert np.array_equal(read_scan(header(folder, "link.raw")).image, VOXELS.T)


def test_a_header_without_an_end_is_refused(folder):
    for name, sentence in (("scan.mha", "first 1048576 bytes"), ("scan.nrrd", "first 1048576 bytes")):
        (folder / name).write_bytes(b"Comment = x\n" * 100_000)
        with pytest.raises(ScanError, match=sentence):
            data_files(folder / name)


def test_reading_that_waits_ends_by_the_clock(folder, monkeypatch):
    path = meta(folder, "voxels.raw")
    read_scan(path)  # starts the process that reads, which takes time of its own
    with monkeypatch.context() as patch:
        patch.setattr("scantune.scans.itk.WALL_SECONDS", 1.0)
        with pytest.raises(ReaderError, match="in 1 seconds"):
            _in_worker(_wait, path)
    assert read_scan(path).shape == (5, 4, 3)


def _wait(path):
    time.sleep(100)


def test_a_small_file_that_claims_a_huge_volume_is_refused_by_its_header(tmp_path):
    path = tmp_path / "bomb.nii"
    nibabel.Nifti1Image(np.zeros((2, 2, 2), np.int16), np.eye(4)).to_filename(path)
    header = bytearray(path.read_bytes())
    header[40:48] = np.array([3, 1600, 1600, 1200], "<i2").tobytes()
    path.write_bytes(header)
    for read in (read_scan, read_grid):
        with pytest.raises(ScanError, match="at most 1073741824 voxels"):
            read(path)
