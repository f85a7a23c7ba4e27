"""DICOM series that are damaged, and the process that reads them: a sentence or the right voxels, never a crash."""

import io
import json
import os
import signal
import struct
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import SimpleITK
from fuzz.dicom import PIXELS, SECRET, UNCOMPRESSED, Dicom, Element, elements, whole_file

from scantune.errors import ScanError
from scantune.scans import itk_client as itkclient
from scantune.scans import itk_server as itkserver
from scantune.scans.io import read_scan
from scantune.scans.itk_client import ReaderError, ask


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Volumes and transfer syntaxes of tiny series."""
    return Dicom(tmp_path_factory.mktemp("dicom"))


@pytest.fixture
def series(tmp_path, made):
    """Writes a series; files can be changed by number."""

    def write(packing=None, change=lambda number, data: data):
        packing = packing or made.packings[0]
        for number in range(3):
            data = whole_file(elements(number, packing), packing.syntax)
            (tmp_path / f"{number}.dcm").write_bytes(change(number, data))
        return tmp_path

    return write


def refusal(path):
    with pytest.raises(ScanError) as caught:
        read_scan(path)
    return str(caught.value)


@pytest.mark.parametrize("number", range(5), ids=["explicit", "implicit", "rle", "jpeg2000", "jpeg"])
def test_every_packing_of_pixels_is_read(made, series, number):
    np.testing.assert_array_equal(read_scan(series(made.packings[number])).image, made.volume)


@pytest.mark.parametrize("number", range(5), ids=["explicit", "implicit", "rle", "jpeg2000", "jpeg"])
def test_a_slice_that_is_cut_short_is_named_not_filled_up(made, series, number):
    packing = made.packings[number]
    for missing in (2, 40):
        folder = series(packing, lambda n, data, m=missing: data[:-m] if n == 1 else data)
        assert "1.dcm" in refusal(folder)


def test_a_slice_of_more_rows_than_it_has_pixels_is_refused(series):
    tall = Element((0x0028, 0x0010), "US", struct.pack("<H", 12)).explicit()
    folder = series(change=lambda n, data: data.replace(tall, tall[:-2] + struct.pack("<H", 13)))
    assert "pixels are missing" in refusal(folder)


def test_a_damaged_slice_is_named_not_left_out(series):
    def damage(number, data):
        spacing = data.find(b"\x28\x00\x30\x00DS")
        return data[: spacing + 4] + b"SQ" + data[spacing + 6 :] if number == 1 else data

    assert "1.dcm" in refusal(series(change=damage))


def test_a_folder_may_have_a_directory_of_its_files_and_notes_beside_them(made, series):
    folder = series()
    (folder / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    (folder / "notes.txt").write_text("scanned in the morning")
    np.testing.assert_array_equal(read_scan(folder).image, made.volume)


def test_pixels_are_found_behind_sequences_of_untold_length(made, series):
    item, end = struct.pack("<HHI", 0xFFFE, 0xE000, 0xFFFFFFFF), struct.pack("<HHI", 0xFFFE, 0xE00D, 0)
    inner = item + elements(0, made.packings[0])[0].explicit() + end + struct.pack("<HHI", 0xFFFE, 0xE0DD, 0)
    sequence = Element((0x0040, 0x0275), "SQ", inner, length=-1).explicit()
    start = struct.pack("<HH", *PIXELS) + b"OW"

    def change(number, data, less=0):
        whole = data.replace(start, sequence + start)
        return whole[: len(whole) - less] if number == 2 else whole

    np.testing.assert_array_equal(read_scan(series(change=change)).image, made.volume)
    assert "2.dcm" in refusal(series(change=lambda n, data: change(n, data, less=4)))


@pytest.mark.parametrize("position", ["nan\\2\\10", "1e400\\2\\10"])
def test_positions_that_are_no_place_are_refused(series, position):
    old = Element((0x0020, 0x0032), "DS", b"-3.5\\2\\10 ").explicit()
    new = Element((0x0020, 0x0032), "DS", position.encode() + b" " * (len(position) % 2)).explicit()
    folder = series(change=lambda n, data: data.replace(old, new))
    assert "DICOM" in refusal(folder) or "affine" in refusal(folder)


TEXTS = {
    (0x0020, 0x0032): lambda number: f"-3.5\\2\\{7 + 3 * number}",
    (0x0020, 0x0037): lambda number: "1\\0\\0\\0\\1\\0",
    (0x0028, 0x0030): lambda number: "0.75\\0.5",
    (0x0028, 0x1052): lambda number: "0",
    (0x0028, 0x1053): lambda number: "1",
    (0x0018, 0x0088): lambda number: "3",
}


def replaced(tag, text, only=None):
    """What puts another text into an element of all slices, or of one."""

    def element(words):
        return Element(tag, "DS", (words + " " * (len(words) % 2)).encode()).explicit()

    def change(number, data):
        old = element(TEXTS[tag](number))
        assert data.count(old) == 1
        return data.replace(old, element(text)) if only in (None, number) else data

    return change


@pytest.mark.parametrize("only", [None, 1], ids=["all", "one"])
@pytest.mark.parametrize(
    ("tag", "text"),
    [
        *(((0x0028, 0x0030), text) for text in ("\0\\0.5", "none\\0.5", " \\0.5", "0.75", "0\\0.5", "nan\\0.5", "")),
        *(((0x0020, 0x0037), text) for text in ("x\\0\\0\\0\\1\\0", "0\\0\\0\\0\\1\\0", "1\\0\\0", "")),
        *(((0x0020, 0x0032), text) for text in ("\\2\\10", "1\\2", "x\\2\\10")),
        *(((0x0028, tag), text) for tag in (0x1052, 0x1053) for text in ("  ", "x", "1e400", "1\\2")),
    ],
)
def test_numbers_of_a_slice_that_are_damaged_are_told_not_guessed(series, tag, text, only):
    """GDCM would take them for 1 mm, for the default direction, or for what lies in memory."""
    words = refusal(series(change=replaced(tag, text, only)))
    assert "damaged" in words or "valid one" in words
    assert SECRET not in words


@pytest.mark.parametrize("tag", [0x1052, 0x1053])
def test_a_scale_that_is_left_empty_is_none(made, series, tag):
    np.testing.assert_array_equal(read_scan(series(change=replaced((0x0028, tag), ""))).image, made.volume)


def test_slices_must_share_their_spacing_and_direction(series):
    for tag, text in (((0x0028, 0x0030), "0.75\\0.6"), ((0x0020, 0x0037), "0\\1\\0\\1\\0\\0")):
        assert "must share" in refusal(series(change=replaced(tag, text, only=2)))


def test_a_negative_distance_of_slices_does_not_mirror_the_scan(series):
    assert "negative" in refusal(series(change=replaced((0x0018, 0x0088), "-3")))


def test_slices_that_scale_values_differently_are_read_only_where_nothing_is_cut_off(made, series):
    slope = (0x0028, 0x1053)
    assert "cut off" in refusal(series(change=replaced(slope, "0.5", only=2)))
    halves = [replaced(slope, text, only=number) for number, text in enumerate(("0.5", "0.25", "0.5"))]
    image = read_scan(series(change=lambda number, data: halves[number](number, data))).image
    np.testing.assert_array_equal(image, made.volume * np.array([0.5, 0.25, 0.5]))


def test_files_of_several_frames_each_are_no_volume(made, tmp_path):
    frames = Element((0x0028, 0x0008), "IS", b"2 ")
    for number in range(3):
        data = [replace(e, value=2 * e.value) if e.tag == PIXELS else e for e in elements(number, made.packings[0])]
        whole = whole_file(sorted([*data, frames], key=lambda element: element.tag), UNCOMPRESSED)
        (tmp_path / f"{number}.dcm").write_bytes(whole)
    assert "3D" in refusal(tmp_path)


def test_the_thickness_of_a_single_slice_must_be_a_number(series):
    folder = series(change=replaced((0x0018, 0x0088), "  "))
    for number in (1, 2):
        (folder / f"{number}.dcm").unlink()
    assert "thickness" in refusal(folder)


def test_a_reader_that_dies_is_a_sentence_and_the_next_scan_is_read(made, series, tmp_path, monkeypatch):
    folder = series()
    read_scan(folder)
    running = itkclient._current[0]
    monkeypatch.setattr(itkclient, "_running", lambda: running)
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait()
    assert "cannot be read as an image" in refusal(folder)
    monkeypatch.undo()
    np.testing.assert_array_equal(read_scan(folder).image, made.volume)


def test_a_reader_that_was_ended_meanwhile_is_started_again(made, series):
    folder = series()
    read_scan(folder)
    itkclient._current[0].process.kill()
    itkclient._current[0].process.wait()
    np.testing.assert_array_equal(read_scan(folder).image, made.volume)


def test_errors_of_the_reader_reach_the_one_who_asks(tmp_path):
    (tmp_path / "a.mha").write_text("hello")
    with pytest.raises(ReaderError):
        ask("file", tmp_path / "a.mha")


def answers(monkeypatch, *requests):
    """What the reader's process answers, without the process."""
    monkeypatch.setattr(itkserver, "limit", lambda path: None)
    out = io.BytesIO()
    itkserver.serve(io.BytesIO(b"".join(json.dumps(request).encode() + b"\n" for request in requests)), out)
    out.seek(0)
    return out


def test_the_server_tells_the_grid_then_the_voxels(tmp_path, monkeypatch):
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), tmp_path / "a.mha")
    path = str(tmp_path / "a.mha")
    out = answers(monkeypatch, {"what": "file", "path": path}, {"what": "header", "path": path})
    told = json.loads(out.readline())
    assert (told["size"], told["dtype"], told["last"]) == ([4, 3, 2], "<i2", False)
    assert out.read(voxels.nbytes) == voxels.tobytes()
    assert json.loads(out.readline())["components"] == 1


def test_the_server_outlives_what_cannot_be_read_and_ends_when_it_has_grown(series, tmp_path, monkeypatch):
    monkeypatch.setattr(itkserver, "_memory", iter([0, 10**6, 10**12]).__next__)
    lost = {"what": "file", "path": str(tmp_path / "lost.mha")}
    lines = answers(monkeypatch, lost, lost, lost).readlines()
    assert ["error" in json.loads(line) for line in lines] == [True, True]
    assert [json.loads(line)["last"] for line in lines] == [False, True]


def test_the_server_tells_of_slices_no_more_than_is_asked(series, monkeypatch):
    line = answers(monkeypatch, {"what": "series", "path": str(series())}).readline()
    assert b"Secret" not in line
    assert json.loads(line)["tags"]["0020|0032"][0].strip() == "-3.5\\2\\7"


def test_a_damaged_header_does_not_take_the_machines_memory(tmp_path):
    limited = (
        "import resource, sys; from pathlib import Path; from scantune.itkserver import limit; limit(Path(sys.argv[1]))"
    )
    code = f"{limited}; print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    (tmp_path / "a.dcm").write_bytes(b"0" * 1000)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 4 * 2**30


def test_a_packing_without_pixels_is_no_series(tmp_path, made):
    dataset = [element for element in elements(0, made.packings[0]) if element.tag != PIXELS]
    (tmp_path / "0.dcm").write_bytes(whole_file(dataset, UNCOMPRESSED))
    assert refusal(tmp_path)
