"""DICOM series that are damaged, and the process that reads them: a sentence or the right voxels, never a crash."""

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK
from fuzz.dicom import PIXELS, SECRET, UNCOMPRESSED, Dicom, Element, elements, whole_file

from scantune.errors import InputError, ScanError
from scantune.scans import itk
from scantune.scans.dicom.headers import read_slice_header
from scantune.scans.io import read_scan
from scantune.scans.itk import ReaderError, read_itk, read_itk_header


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
    (0x0018, 0x0050): lambda number: "3",
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


def reader():
    return itk._readers[os.getpid()]


def test_a_reader_that_dies_is_a_sentence_and_the_next_scan_is_read(made, series, tmp_path, monkeypatch):
    folder = series()
    read_scan(folder)
    running = reader()
    os.kill(running.process.pid, signal.SIGSTOP)  # it cannot answer before it is killed
    threading.Timer(0.5, running.process.kill).start()
    assert "cannot be read as an image" in refusal(folder)
    assert os.getpid() not in itk._readers
    np.testing.assert_array_equal(read_scan(folder).image, made.volume)


def test_a_relative_path_is_read_after_a_change_of_the_working_folder(made, series, monkeypatch):
    folder = series()
    read_scan(folder)
    monkeypatch.chdir(folder.parent)
    np.testing.assert_array_equal(read_scan(folder.name).image, made.volume)
    monkeypatch.chdir(folder)
    assert read_scan("0.dcm").shape == (16, 12, 1)


def test_a_reader_that_was_ended_meanwhile_is_started_again(made, series):
    folder = series()
    read_scan(folder)
    reader().process.kill()
    reader().process.join()
    np.testing.assert_array_equal(read_scan(folder).image, made.volume)


def crash(path):
    os.kill(os.getpid(), signal.SIGSEGV)


def work_for_ever(path):
    itk.signal.setitimer(signal.ITIMER_PROF, 0.1)
    while True:
        pass


def modules(path):
    return sorted(sys.modules), sys.modules["__main__"].__name__, os.environ.get("PYTHONSAFEPATH")


@pytest.mark.parametrize("task", [crash, work_for_ever])
def test_a_crash_or_too_much_time_is_an_error_of_the_reader_alone(made, series, task):
    with pytest.raises(ReaderError, match="its process ended"):
        itk._in_worker(task, series())
    np.testing.assert_array_equal(read_scan(series()).image, made.volume)


def test_the_process_that_reads_does_without_torch_and_the_main_module(tmp_path):
    names, main, safe = itk._in_worker(modules, tmp_path)
    assert "numpy" in names
    assert not {"torch", "pytest.__main__", "scantune.cli"} & set(names)
    assert (main, safe) == ("__main__", "1")
    assert "PYTHONSAFEPATH" not in os.environ or os.environ["PYTHONSAFEPATH"] != ""
    assert sys.modules["__main__"].__name__ == "__main__"


SCRIPT = """
import os, sys, time
print("running", flush=True)
from pathlib import Path
from scantune.scans import itk
from scantune.scans.io import read_scan
print(read_scan(sys.argv[1]).image.shape, itk._readers[os.getpid()].process.pid, flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_a_script_without_a_guard_reads_once_and_takes_the_reader_with_it(series, tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script, series(), "0"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("running\n(16, 12, 3)")
    assert done.stdout.count("running") == 1
    assert done.stderr == ""
    with subprocess.Popen([sys.executable, script, series(), "60"], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "running\n"
        pid = int(run.stdout.readline().split()[-1])
        run.kill()
    for _ in range(100):
        if not is_running(pid):
            return
        time.sleep(0.1)
    raise AssertionError("the reader outlives its parent")


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def read_here(folder):
    return read_scan(folder).image.sum()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_daemons_and_forks_read_by_a_process_of_their_own(made, series, method):
    folder = series()
    read_scan(folder)
    ours = reader().process.pid
    with multiprocessing.get_context(method).Pool(1) as pool:  # its processes are daemons
        assert pool.apply_async(read_here, (folder,)).get(60) == made.volume.sum()
    read_scan(folder)
    assert reader().process.pid == ours


def test_the_end_of_a_program_that_is_interrupted_does_not_wait_for_its_reader(made, series):
    folder = series()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a pool's processes end as programs do
    try:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply_async(read_here, (folder,)).get(60) == made.volume.sum()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_reader_that_cannot_be_started_is_a_sentence(series, monkeypatch):
    def refuse(*_):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(itk, "_readers", {})
    monkeypatch.setattr(itk._Worker, "start", refuse)
    with pytest.raises(InputError, match="cannot be started .Resource temporarily unavailable."):
        read_scan(series())
    monkeypatch.setattr(itk, "ProcessPoolExecutor", refuse)
    with pytest.raises(InputError, match="cannot be started"):
        read_scan(series())


def test_errors_of_the_reader_reach_the_one_who_asks(tmp_path):
    (tmp_path / "a.mha").write_text("hello")
    with pytest.raises(ReaderError):
        read_itk(tmp_path / "a.mha")


def test_the_reader_returns_the_grid_and_the_voxels(tmp_path):
    voxels = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), tmp_path / "a.mha")
    image = read_itk(tmp_path / "a.mha")
    assert (tuple(image.size), image.voxels.dtype) == ((4, 3, 2), np.int16)
    np.testing.assert_array_equal(image.voxels, voxels)
    header = read_itk_header(tmp_path / "a.mha")
    assert (tuple(header.size), header.components, header.voxels) == ((4, 3, 2), 1, None)


def test_the_reader_outlives_what_cannot_be_read_and_ends_when_it_has_grown(tmp_path, monkeypatch):
    lost = tmp_path / "lost.mha"
    monkeypatch.setattr(itk, "limit", lambda path: None)
    monkeypatch.setattr(itk, "_ceiling", 10**9)
    monkeypatch.setattr(itk, "_memory", iter([10**6, 10**12]).__next__)
    answers = [itk._run(itk._read_file, str(lost)) for _ in range(2)]
    assert [answer.failure is None for answer in answers] == [False, False]
    assert [answer.grown for answer in answers] == [False, True]


def grown(task, path):
    return itk._Answer(failure="damaged", grown=True)


def test_a_reader_that_has_grown_is_replaced(made, series, monkeypatch):
    read_scan(series())
    ours = reader().process.pid
    monkeypatch.setattr(itk, "_run", grown)
    with pytest.raises(ReaderError, match="damaged"):
        read_itk(series())
    monkeypatch.undo()
    np.testing.assert_array_equal(read_scan(series()).image, made.volume)
    assert reader().process.pid != ours


def test_the_header_of_a_slice_holds_no_more_than_is_asked(series):
    header = read_slice_header(series() / "0.dcm")
    assert header.complete
    assert SECRET not in str(header)
    assert header.texts[0x00200032].strip() == "-3.5\\2\\7"
    assert set(header.texts) == {int(f"{group:04x}{element:04x}", 16) for group, element in TEXTS}


def test_a_damaged_header_does_not_take_the_machines_memory(tmp_path):
    limited = (
        "import resource, sys; from pathlib import Path; from scantune.scans.itk import limit; "
        "limit(Path(sys.argv[1])); print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    )
    (tmp_path / "a.dcm").write_bytes(b"0" * 1000)
    done = subprocess.run([sys.executable, "-c", limited, str(tmp_path)], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 4 * 2**30


def test_a_packing_without_pixels_is_no_series(tmp_path, made):
    dataset = [element for element in elements(0, made.packings[0]) if element.tag != PIXELS]
    (tmp_path / "0.dcm").write_bytes(whole_file(dataset, UNCOMPRESSED))
    assert refusal(tmp_path)
