"""Scans that several processes adapt to: the same results, in order, whatever happens to one of them."""

import time
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch

from scantune import Model
from scantune.adaptation.batch import adapt_scans, choose_workers
from scantune.adaptation.output_folder import OutputFolder
from scantune.adaptation.parallel import side_by_side
from scantune.adaptation.scan_run import ScanObserver
from scantune.adaptation.settings import AdaptSettings
from scantune.backends.slices import Preprocessing
from scantune.errors import InputError
from scantune.scans.manifest import read_manifest
from tests.adaptation.test_adapt import as_case
from tests.toy_run import ToyRun


@pytest.fixture
def scans(tmp_path):
    def make(**texts):
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "out").mkdir(exist_ok=True)
        return {name: (tmp_path / name,) for name in texts}

    return make


class Diary(ScanObserver):
    def __init__(self):
        self.lines = []

    def start(self, name):
        self.lines.append(("start", name))

    def step(self, name, step, steps):
        self.lines.append((name, step, steps))

    def end(self, outcome):
        self.lines.append(("end", outcome.name))


def test_a_process_that_dies_takes_no_other_scan_with_it(scans, tmp_path):
    diary = Diary()
    run = ToyRun(OutputFolder(tmp_path / "out"), diary)
    todo = scans(a="wait fine", b="die", c="die-once", d="fine")
    found = {outcome.name: outcome for outcome in side_by_side(run, todo, 2)}
    assert {name: outcome.status for name, outcome in found.items()} == {**dict.fromkeys("acd", "done"), "b": "failed"}
    assert found["b"].entry["reason"].endswith("its process died twice. Was there enough memory?")
    assert list(read_manifest(tmp_path / "out")["scans"]) == ["a", "b", "c", "d"]
    assert [line for line in diary.lines if "d" in line] == [("start", "d"), ("d", 1, 1), ("end", "d")]
    assert sorted(line for line in diary.lines if line[0] == "end") == [("end", name) for name in "abcd"]


def test_scans_that_the_manifest_knows_keep_their_place(scans, tmp_path):
    run = ToyRun(OutputFolder(tmp_path / "out"))
    todo = scans(a="fine", z="wait fine", b="fine")
    run.noted("z", {"status": "done", "outputs": {}})
    assert {outcome.name for outcome in side_by_side(run, todo, 2)} == {"a", "b", "z"}
    assert list(read_manifest(tmp_path / "out")["scans"]) == ["z", "a", "b"]


def test_what_concerns_all_scans_ends_the_run(scans, tmp_path):
    run = ToyRun(OutputFolder(tmp_path / "out"))
    with pytest.raises(InputError, match="disk is full"):
        list(side_by_side(run, scans(a="full", b="wait fine"), 2))


def test_who_is_stopped_finds_nothing_half_written_and_no_process_left(scans, tmp_path):
    class Impatient(ScanObserver):
        def step(self, name, step, steps):
            if step == 2:
                assert list((tmp_path / "out").iterdir())
                raise KeyboardInterrupt

    run = ToyRun(OutputFolder(tmp_path / "out"), Impatient())
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(run, scans(a="write", b="write"), 2))
    assert time.monotonic() - start < 30
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name != "manifest.json"] == []


def test_how_many_processes_there_are():
    on_cpu = ToyRun(OutputFolder(Path()))
    assert [choose_workers(asked, 3, on_cpu) for asked in (1, 2, 8)] == [1, 2, 3]
    assert choose_workers(None, 3, on_cpu) == choose_workers(2, 0, on_cpu) == 1
    with pytest.raises(InputError, match="workers must be 1 or more, got 0"):
        choose_workers(0, 3, on_cpu)


def test_a_site_and_a_model_in_memory_go_with_one_process():
    site = ToyRun(OutputFolder(Path()), settings=AdaptSettings(device="cpu", site=True))
    assert choose_workers(None, 100, site) == choose_workers(1, 100, site) == 1
    with pytest.raises(InputError, match="--site goes with one worker, got 4"):
        choose_workers(4, 100, site)
    in_memory = ToyRun(OutputFolder(Path()), source=object())
    assert choose_workers(None, 100, in_memory) == 1
    with pytest.raises(InputError, match="give the path of a model file"):
        choose_workers(4, 100, in_memory)


@pytest.mark.parametrize(
    ("scans", "gigabytes", "cores", "workers"),
    [(3, 80, 16, 1), (6, 80, 16, 2), (100, 80, 16, 4), (100, 24, 16, 2), (100, 80, 4, 2), (100, 8, 16, 1)],
)
def test_a_gpu_is_shared_by_as_many_as_it_has_room_and_scans_for(scans, gigabytes, cores, workers, monkeypatch):
    card = SimpleNamespace(total_memory=gigabytes * 2**30)
    monkeypatch.setattr("scantune.runtime.devices.find_device", lambda _name: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _device: card)
    monkeypatch.setattr("scantune.adaptation.batch.cores", lambda: cores)
    assert choose_workers(None, scans, ToyRun(OutputFolder(Path()))) == workers


def test_results_of_scans_side_by_side_are_those_of_one_after_another(toy, tmp_path, monkeypatch):
    shape = {"kind": "unet", "classes": 3, "width": 8}
    model = tmp_path / "toy.safetensors"
    Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(size=(48, 48)), shape, prior=toy.prior).save(model)
    paths = []
    for seed in (1, 2, 3):
        case = as_case(seed, gamma=2.5)
        paths.append(tmp_path / f"s{seed}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(case.image, case.affine), paths[-1])
    paths.insert(1, tmp_path / "torn.nii.gz")
    paths[1].write_bytes(b"no image")
    monkeypatch.setattr("scantune.adaptation.parallel.cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    settings = AdaptSettings(device="cpu", steps=3)
    try:
        one, two = (adapt_scans(paths, model, tmp_path / str(n), settings, workers=n) for n in (1, 2))
    finally:
        torch.set_num_threads(before)
    assert [outcome.name for outcome in two] == ["s1", "torn", "s2", "s3"]
    assert list(read_manifest(tmp_path / "2")["scans"]) == ["s1", "torn", "s2", "s3"]
    for mine, theirs in zip(one, two, strict=True):
        assert mine.status == theirs.status
        for name in set(mine.entry) - {"seconds", "peak_memory_mb"}:
            assert mine.entry[name] == theirs.entry[name], name
        for file in Path(tmp_path / "1").glob(f"{mine.name}_*.nii.gz"):
            image, other = (nibabel.load(tmp_path / folder / file.name) for folder in "12")
            assert np.array_equal(np.asarray(image.dataobj), np.asarray(other.dataobj))
    assert (tmp_path / "2" / "index.html").exists()
