"""Faults around the program: files that are hard to use, folders that are not alone, runs that are cut off."""

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from fuzz.dicom import SECRET, elements, whole_file
from fuzz.dicom import Dicom as MadeUpSeries
from fuzz.model import toy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import scantune
from scantune.adaptation.output_folder import OutputFolder
from scantune.cli.main import main
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.scans.files import write_text
from scantune.scans.io import read_labels, read_scan, write_image, write_labels
from scantune.scans.manifest import read_manifest
from scantune.scans.tensors import write_tensors

SOURCE = Path(scantune.__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "toy.safetensors"
    toy().save(path)
    return path


def picture(shape=(12, 10, 2), seed=0):
    image = np.random.default_rng(seed).random(shape, dtype=np.float32)
    image[tuple(slice(n // 4, n // 2 + 1) for n in shape[:2])] += 2
    return image


def save(path, image, affine=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(image, np.diag([1.0, 1, 3, 1]) if affine is None else affine), path)
    return path


def adapt(model, out, *scans, method="source"):
    words = ["adapt", *map(str, scans), "--model", str(model), "--out", str(out), "--method", method, "--no-page"]
    return main([*words, "--steps", "1"])


def entries(out):
    return json.loads((out / "manifest.json").read_text("utf-8"))["scans"]


# Hard scans


HARD = {
    "one pixel a slice": picture((1, 1, 9)),
    "one row": picture((1, 30, 2)),
    "one slice": picture((12, 10, 1)),
    "inverted contrast": -picture(),
    "wrong anatomy": np.indices((12, 10, 2)).sum(0).astype(np.float32) % 3,
    "sixteen bits to the brim": np.linspace(-32768, 32767, 240).reshape(12, 10, 2).astype(np.int16),
    "tiny numbers": picture() * 1e-30,
    "huge numbers": picture() * 1e30,
}


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("method", ["source", "foe-cnn"])
def test_a_hard_scan_is_decided_on(model, tmp_path, name, method, capsys):
    scan = save(tmp_path / "hard.nii.gz", HARD[name])
    code = adapt(model, tmp_path / "out", scan, method=method)
    entry = entries(tmp_path / "out")["hard"]
    assert "traceback" not in entry
    assert code == (2 if entry["status"] == "failed" else 0)
    if code == 0:
        assert entry["decision"] in ("adapted", "unsolved", "left alone")
        labels = read_labels(tmp_path / "out" / "hard_seg.nii.gz")
        assert labels.shape == HARD[name].shape
        np.testing.assert_allclose(labels.affine, read_scan(scan).affine, atol=1e-6)
    else:
        assert "scantune: error: " in capsys.readouterr().err


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(image=arrays.arrays(np.float32, st.tuples(*[st.integers(0, 4)] * 3), elements=st.floats(width=32)))
def test_whatever_the_voxels_are_a_scan_is_read_as_it_is_or_refused(tmp_path, image):
    path = save(tmp_path / "scan.nii", image)
    if image.size and np.isfinite(image).all() and image.min() < image.max():
        np.testing.assert_array_equal(read_scan(path).image, image)
    else:
        with pytest.raises(InputError):
            read_scan(path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(linear=arrays.arrays(np.float64, (3, 3), elements=st.floats(-4, 4, width=32)))
def test_whatever_the_grid_is_results_lie_on_it_or_the_scan_is_refused(tmp_path, linear):
    affine = np.eye(4)
    affine[:3, :3] = linear
    header = nibabel.Nifti1Header()
    header.set_sform(affine, "scanner")
    nibabel.save(nibabel.Nifti1Image(picture(), None, header), tmp_path / "scan.nii")
    try:
        case = read_scan(tmp_path / "scan.nii")
    except InputError:
        assert np.linalg.matrix_rank(linear, tol=1e-3) < 3 or np.linalg.norm(linear, axis=0).min() < 1e-4
        return
    write_labels(tmp_path / "seg.nii", (case.image > 1).astype(np.uint8), case)
    np.testing.assert_allclose(read_labels(tmp_path / "seg.nii").affine, case.affine, rtol=1e-6)


@pytest.mark.parametrize("name", ["a b", "scän ☃", "[bold]x", "a\nb", "-x", "\udcff"])
def test_file_names_may_be_odd(model, tmp_path, name):
    folder = tmp_path / f"in {name}"
    scan = save(tmp_path / "plain.nii.gz", picture())
    folder.mkdir()
    scan.rename(folder / f"{name}.nii.gz")
    assert adapt(model, tmp_path / "out", folder) == 0
    assert list(entries(tmp_path / "out")) == [name]
    written = (tmp_path / "out" / f"{name}_seg.nii.gz").stat().st_mtime_ns
    assert adapt(model, tmp_path / "out", folder) == 0
    assert (tmp_path / "out" / f"{name}_seg.nii.gz").stat().st_mtime_ns == written


def test_pages_of_names_that_are_no_text_are_linked_by_their_bytes(model, tmp_path):
    save(tmp_path / "plain.nii.gz", picture()).rename(tmp_path / "\udcff.nii.gz")
    words = ["adapt", str(tmp_path / "\udcff.nii.gz"), "--model", str(model), "--out", str(tmp_path / "out")]
    assert main([*words, "--method", "source"]) == 0
    assert 'href="%FF_page.html"' in (tmp_path / "out" / "index.html").read_text("utf-8")


def test_a_name_that_is_too_long_is_the_users_fault(model, tmp_path, capsys):
    assert adapt(model, tmp_path / "out", tmp_path / ("n" * 300)) == 2
    assert "cannot be used" in capsys.readouterr().err


# Disks


class FullDisk:
    """Lets so many bytes through, then tells that there is no room."""

    def __init__(self, monkeypatch, room):
        self.room = room
        monkeypatch.setattr(Path, "write_bytes", lambda path, data: self.write_bytes(path, data))

    def write_bytes(self, path, data):
        with path.open("wb") as stream:
            stream.write(data[: self.room])
        if len(data) > self.room:
            raise OSError(28, "No space left on device", str(path))


def test_a_full_disk_leaves_the_old_manifest_whole(tmp_path, monkeypatch):
    folder = OutputFolder(tmp_path)
    folder.note("a", {"status": "done", "outputs": {}}, {})
    FullDisk(monkeypatch, 20)
    with pytest.raises(InputError, match="No space left"):
        folder.note("b", {"status": "done", "outputs": {}}, {})
    monkeypatch.undo()
    assert list(read_manifest(tmp_path)["scans"]) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
@pytest.mark.parametrize("kind", ["image", "text", "tensors"])
def test_a_full_disk_is_told_in_a_sentence(tmp_path, kind):
    """The device /dev/full takes no byte; a link to it stands for a file on a full disk."""

    def fill(path):
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")

    touch = Path.touch
    case = Case("a", picture(), np.eye(4))
    writers = {
        "image": lambda: write_image(tmp_path / "x.nii", case.image, case),
        "text": lambda: write_text(tmp_path / "x.txt", "words" * 10000),
        "tensors": lambda: write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(100000)}, {}),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "touch", lambda self, *rest: fill(self) if self.parent == tmp_path else touch(self, *rest))
        if kind == "tensors":
            full = lambda stored, path, metadata: path.open("wb").write(b"0" * 99999)  # noqa: E731
            patch.setattr("scantune.scans.tensors.save_file", full)
        with pytest.raises(InputError, match="No space left on device"):
            writers[kind]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes into every folder")
def test_a_read_only_folder_is_told_before_the_work(model, tmp_path, capsys):
    (tmp_path / "out").mkdir(mode=0o500)
    assert adapt(model, tmp_path / "out", save(tmp_path / "a.nii.gz", picture())) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_folder_that_refuses_files_is_told_before_the_work(model, tmp_path, capsys):
    """Under /proc not even root makes files."""
    assert adapt(model, "/proc/scantune", save(tmp_path / "a.nii.gz", picture())) == 2
    assert "cannot be written" in capsys.readouterr().err


# Others at work


def test_two_runs_into_one_folder_lose_nothing(tmp_path):
    folder = OutputFolder(tmp_path)

    def note(first):
        for number in range(first, first + 25):
            folder.note(f"scan{number}", {"status": "done", "outputs": {}}, {})

    threads = [threading.Thread(target=note, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_manifest(tmp_path)["scans"]) == 75
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_what_a_killed_process_left_long_ago_is_removed(model, tmp_path):
    scan = save(tmp_path / "a.nii.gz", picture())
    out = tmp_path / "out"
    out.mkdir()
    for name in (".0123abcd-a_seg.nii.gz", ".89abcdef-b_seg.nii.gz", ".mine", "notes.txt"):
        (out / name).write_text("half")
    for name in (".0123abcd-a_seg.nii.gz", ".mine"):
        os.utime(out / name, (0, 0))
    assert adapt(model, out, scan) == 0
    left = {path.name for path in out.iterdir()}
    assert ".0123abcd-a_seg.nii.gz" not in left
    assert {".89abcdef-b_seg.nii.gz", ".mine", "notes.txt"} <= left


RUN = """
import sys, time
from scantune.adaptation import batch
from scantune.cli import main as cli
from scantune.adaptation import output_folder as outputs
slow = outputs.OutputFolder.note
def note(self, *more):
    slow(self, *more)
    print("noted", flush=True)
    time.sleep(1)
outputs.OutputFolder.note = note
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_run_that_is_told_to_end_leaves_nothing_half_written_and_goes_on(model, tmp_path):
    scans = [str(save(tmp_path / "in" / f"{name}.nii.gz", picture(seed=n))) for n, name in enumerate("abc")]
    words = ["adapt", *scans, "--model", str(model), "--out", str(tmp_path / "out"), "--method", "source", "--no-page"]
    with subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout.readline() == b"noted\n"
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert b"Traceback" not in said
    assert b"stopped. What is finished is kept" in said
    done = entries(tmp_path / "out")
    assert 1 <= len(done) < 3
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
    assert main(words) == 0
    assert sorted(entries(tmp_path / "out")) == ["a", "b", "c"]


def test_the_handling_of_signals_is_put_back(model):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["info", str(model)]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--seed", "99999999999999999999", "seed must be"),
        ("--seed", "-1", "seed must be"),
        ("--device", "meta", "device"),
    ],
)
def test_seeds_and_devices_that_cannot_be_are_told(model, tmp_path, capsys, flag, value, told):
    scan = save(tmp_path / "a.nii.gz", picture())
    assert main(["adapt", str(scan), "--model", str(model), "--out", str(tmp_path / "out"), flag, value]) == 2
    assert told in capsys.readouterr().err


def test_an_experiment_that_is_no_text_is_told(tmp_path, capsys):
    (tmp_path / "e.toml").write_bytes(b"\xff\xfe")
    assert main(["bench", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out")]) == 2
    assert "not a text file" in capsys.readouterr().err


# What must not happen


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 2000], ids=["digits", "brackets"])
def test_texts_that_python_itself_gives_up_on_are_told(model, tmp_path, capsys, value):
    """A number of more digits than Python reads, and brackets in brackets beyond its depth."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f"[data]\nseed = {value}\n")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text(f'{{"format": {value}')
    scan = str(save(tmp_path / "a.nii", picture()))
    for words in (
        ["train", str(recipe), "--out", str(tmp_path / "m")],
        ["simulate", "spine", "--out", str(tmp_path / "s"), "--protocols", str(recipe)],
        ["check", str(tmp_path), "--options", f"images={value}"],
        ["adapt", scan, "--model", str(model), "--out", str(manifest.parent)],
    ):
        assert main(words) == 2, words[0]
        told = capsys.readouterr().err
        assert "unforeseen" not in told
        assert "Traceback" not in told


def test_nothing_goes_to_the_network(model, tmp_path, monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    assert adapt(model, tmp_path / "out", save(tmp_path / "a.nii.gz", picture()), method="foe-cnn") == 0


def calls(tree):
    """Names that are called or imported, with their module where that is written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            safe = any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)
            yield ast.unparse(node.func) + (" of weights" if safe else "")


def test_nothing_in_a_file_can_run():
    forbidden = re.compile(
        r"^(pickle(?!\.UnpicklingError$)|dill|joblib|marshal|shelve)(\.|$)|^(eval|exec|compile|torch\.load|os\.system)$"
    )
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    assert len(texts) > 100
    found = {name: [call for call in calls(ast.parse(text)) if forbidden.search(call)] for name, text in texts.items()}
    assert {name: called for name, called in found.items() if called} == {}
    assert [name for name, text in texts.items() if "allow_pickle=True" in text] == []


def test_no_patient_name_is_written_or_said(model, tmp_path, capfd, caplog):
    caplog.set_level("DEBUG")
    series = MadeUpSeries(tmp_path)
    for bad, folder in ((False, tmp_path / "head"), (True, tmp_path / "cut")):
        folder.mkdir()
        for number in range(3):
            data = whole_file(elements(number, series.packings[0]), series.packings[0].syntax)
            assert SECRET.encode() in data
            (folder / f"{number}.dcm").write_bytes(data[:-9] if bad else data)
    assert adapt(model, tmp_path / "out", tmp_path / "head", tmp_path / "cut") == 3
    said = capfd.readouterr()
    texts = [said.out, said.err, caplog.text, (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")]
    assert not [text for text in texts if "Secret" in text]
    written = [path for path in (tmp_path / "out").iterdir() if b"Secret" in path.read_bytes()]
    assert written == []


def test_results_that_are_not_finite_are_written_as_valid_json(model, tmp_path):
    result = scantune.adapt(scantune.load(model), save(tmp_path / "a.nii.gz", picture()), method="source")
    odd = replace(result, facts=result.facts | {"odd": float("nan")})
    odd.save(tmp_path / "out")

    def refuse(word):
        raise AssertionError(word)

    json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"), parse_constant=refuse)
