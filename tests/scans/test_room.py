"""Volumes that no memory holds are refused by their headers, whatever the format, before they are unpacked."""

import gzip

import nibabel
import numpy as np
import pytest

from scantune.errors import ScanError, describe_error
from scantune.scans import room
from scantune.scans.header import read_grid
from scantune.scans.io import read_scan

HUGE = (1600, 1600, 1200)


def nifti(path, shape):
    header = nibabel.Nifti1Header()
    header.set_data_shape(shape)
    header.set_data_dtype(np.int16)
    header["magic"] = b"n+1"
    header["vox_offset"] = 352
    path.write_bytes(gzip.compress(header.binaryblock + b"\0" * 1000))


def freesurfer(path, shape):
    header = nibabel.freesurfer.MGHImage(np.zeros((2, 2, 2), np.float32), np.eye(4)).header
    header["dims"][:3] = shape
    block = header.binaryblock + b"\0" * 1000
    path.write_bytes(gzip.compress(block) if path.suffix == ".mgz" else block)


def nrrd(path, shape):
    sizes, packed = " ".join(map(str, shape)), gzip.compress(b"\0" * 1000)
    text = f"NRRD0004\ntype: short\ndimension: 3\nsizes: {sizes}\nencoding: gzip\nendian: little\n\n"
    path.write_bytes(text.encode() + packed)


def metaimage(path, shape):
    sizes = " ".join(map(str, shape))
    text = f"ObjectType = Image\nNDims = 3\nDimSize = {sizes}\nElementType = MET_SHORT\nCompressedData = True\n"
    path.write_bytes(f"{text}ElementDataFile = LOCAL\n".encode() + b"\0" * 1000)


FORMATS = {"a.nii.gz": nifti, "a.mgz": freesurfer, "a.mgh": freesurfer, "a.nrrd": nrrd, "a.mha": metaimage}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("read", [read_scan, read_grid])
def test_more_voxels_than_scans_have_are_refused_by_the_header(name, read, tmp_path):
    path = tmp_path / name
    FORMATS[name](path, HUGE)
    with pytest.raises(ScanError, match=r"at most 1073741824 voxels, but its header gives the shape \(1600, 1600"):
        read(path)


@pytest.mark.parametrize("name", FORMATS)
def test_a_volume_that_the_memory_does_not_hold_is_refused_by_the_header(name, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "free_memory", lambda: 2 * 10**8)
    path = tmp_path / name
    FORMATS[name](path, (500, 400, 300))
    with pytest.raises(ScanError, match=r"takes 0\.[34] GB of memory, but only 0.2 GB are free. Crop"):
        read_scan(path)


def test_a_packed_header_is_read_without_what_follows(tmp_path, monkeypatch):
    """Of FreeSurfer's files nibabel unpacks all to find the end, which takes a minute for 12 GB."""
    freesurfer(tmp_path / "a.mgz", HUGE)
    monkeypatch.setattr(nibabel, "load", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(ScanError, match="at most"):
        read_scan(tmp_path / "a.mgz")


def test_a_volume_that_fits_is_read(tmp_path):
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    nibabel.save(nibabel.freesurfer.MGHImage(image, np.eye(4)), tmp_path / "a.mgz")
    assert np.array_equal(read_scan(tmp_path / "a.mgz").image, image)
    assert room.free_memory() > 10**6


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (MemoryError(), "Close other programs, or crop or resample the scan."),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "or crop or resample the scan."),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "or use --device cpu."),
    ],
)
def test_advice_on_memory_names_the_cpu_only_where_the_gpu_was_short(error, advice):
    sentence = describe_error(error, "a.nii")
    assert sentence.endswith(advice)
    assert ("--device cpu" in sentence) == ("CUDA" in str(error))
