"""Prepared cases that are kept: the same as new ones, never stale, and safe against damage and other writers."""

import dataclasses
import os
from concurrent.futures import ThreadPoolExecutor

import nibabel
import numpy as np
import pytest
import torch

from scantune.backends.slices import Preprocessing
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.errors import InputError, ScanError
from scantune.runtime.processes import in_parallel
from scantune.training import cache as casecache
from scantune.training.cache import case_key, prepared_cases
from tests.datasets.test_datasets import ODD, image, labels

SMALL = Preprocessing(size=(8, 10), spacing=0.7)


@pytest.fixture
def entries(tmp_path):
    """Three scans with references, and one without."""
    found = []
    for seed, name in enumerate("abcd"):
        layers = () if name == "d" else (LabelLayer(labels(tmp_path / "in" / f"{name}_seg.nii")),)
        path = image(tmp_path / "in" / f"{name}.nii.gz", seed)
        found.append(LayeredEntry(name, name, image=path, layers=layers))
    return found


def equal(one, other):
    """Whether two prepared cases agree in every field."""
    for field in dataclasses.fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        assert type(ours) is type(theirs)
        if isinstance(ours, torch.Tensor):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)
        else:
            assert ours == theirs


@pytest.mark.parametrize(
    "preprocessing", [SMALL, Preprocessing(size=(4, 4)), Preprocessing(size=(8, 10), plane="coronal")]
)
def test_kept_cases_are_those_that_would_be_made(entries, tmp_path, preprocessing):
    for _ in range(2):  # made, then read
        for entry, (name, kept) in zip(entries, prepared_cases(entries, preprocessing, tmp_path / "kept"), strict=True):
            assert name == entry.name
            equal(kept, preprocessing.prepare(entry.read()))
    assert len(list((tmp_path / "kept").iterdir())) == 4


def test_what_is_kept_is_not_prepared_again_wherever_the_files_are(entries, tmp_path, monkeypatch):
    list(prepared_cases(entries, SMALL, tmp_path / "kept"))
    (tmp_path / "in").rename(tmp_path / "moved")
    moved = [
        dataclasses.replace(
            entry,
            split="test",
            image=tmp_path / "moved" / entry.image.name,
            layers=tuple(LabelLayer(tmp_path / "moved" / layer.path.name) for layer in entry.layers),
        )
        for entry in entries
    ]
    os.utime(moved[0].image, (1, 1))
    monkeypatch.setattr(Preprocessing, "prepare", None)
    assert [name for name, _ in prepared_cases(moved, SMALL, tmp_path / "kept")] == list("abcd")


def test_a_run_that_was_stopped_goes_on(entries, tmp_path, monkeypatch):
    running = prepared_cases(entries, SMALL, tmp_path / "kept", workers=1)
    next(running)
    running.close()
    kept = len(list((tmp_path / "kept").iterdir()))
    assert kept < 4
    made = []
    prepare = Preprocessing.prepare
    monkeypatch.setattr(Preprocessing, "prepare", lambda self, case: made.append(case.name) or prepare(self, case))
    list(prepared_cases(entries, SMALL, tmp_path / "kept"))
    assert len(made) == 4 - kept


def test_everything_that_decides_how_a_case_looks_is_in_its_name(entries, monkeypatch):
    entry = entries[0]
    keys = {case_key(entry, SMALL), case_key(entry, Preprocessing(size=(8, 10), spacing=0.71))}
    keys.add(case_key(dataclasses.replace(entry, layers=()), SMALL))
    keys.add(case_key(dataclasses.replace(entry, layers=(LabelLayer(entry.layers[0].path, 7),)), SMALL))
    keys.add(case_key(dataclasses.replace(entry, frame=0), SMALL))
    image(entry.image, 99)
    keys.add(case_key(entry, SMALL))
    labels(entry.layers[0].path, (0, 2))
    keys.add(case_key(entry, SMALL))
    monkeypatch.setattr(casecache, "CACHE_VERSION", casecache.CACHE_VERSION + 1)
    keys.add(case_key(entry, SMALL))
    assert len(keys) == 8
    assert case_key(dataclasses.replace(entry, name="x", subject="y", site="z"), SMALL) in keys


def test_the_files_of_a_folder_are_part_of_the_name(tmp_path, entries):
    (tmp_path / "series").mkdir()
    (tmp_path / "series" / "1.dcm").write_text("one")
    entry = dataclasses.replace(entries[3], image=tmp_path / "series")
    before = case_key(entry, SMALL)
    assert before == case_key(entry, SMALL)
    (tmp_path / "series" / "2.dcm").write_text("two")
    assert case_key(entry, SMALL) != before


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_damaged_files_are_made_again(entries, tmp_path, damage):
    list(prepared_cases(entries[:1], SMALL, tmp_path / "kept"))
    (path,) = (tmp_path / "kept").iterdir()
    whole = path.read_bytes()
    middle = len(whole) // 2
    spoilt = {"cut": whole[:middle], "changed": whole[:middle] + b"\xff\x00\xaa" + whole[middle + 3 :], "empty": b""}
    if damage == "other":
        np.savez(path, volume=np.zeros(3))
    else:
        path.write_bytes(spoilt[damage])
    ((_, case),) = prepared_cases(entries[:1], SMALL, tmp_path / "kept")
    equal(case, SMALL.prepare(entries[0].read()))
    ((_, case),) = prepared_cases(entries[:1], SMALL, tmp_path / "kept")
    equal(case, SMALL.prepare(entries[0].read()))


def test_two_writers_do_not_get_in_each_others_way(entries, tmp_path):
    def run(_):
        return [case for _, case in prepared_cases(entries, SMALL, tmp_path / "kept")]

    with ThreadPoolExecutor(4) as threads:
        for cases in threads.map(run, range(4)):
            for entry, case in zip(entries, cases, strict=True):
                equal(case, SMALL.prepare(entry.read()))
    assert len(list((tmp_path / "kept").iterdir())) == 4  # nothing temporary is left


def test_other_processes_prepare_the_same(entries, tmp_path):
    seen = []
    cases = prepared_cases(entries, SMALL, tmp_path / "kept", workers=2, on_case=lambda *at: seen.append(at))
    for entry, (_, case) in zip(entries, cases, strict=True):
        equal(case, SMALL.prepare(entry.read()))
    assert seen == [(0, 4, ""), (1, 4, "a"), (2, 4, "b"), (3, 4, "c"), (4, 4, "d")]


@pytest.mark.parametrize("folder", [None, "kept"])
def test_all_cases_that_cannot_be_read_are_named(entries, tmp_path, folder):
    entries[1].image.write_text("no image")
    entries[2].layers[0].path.unlink()
    running = prepared_cases(entries, SMALL, folder and tmp_path / folder)
    assert [next(running)[0] for _ in range(2)] == ["a", "d"]
    with pytest.raises(InputError, match=r"2 of 4 scans cannot be used.*\n  b: .*is damaged.*\n  c: .*c_seg.nii"):
        next(running)


def test_a_folder_that_takes_no_files_is_told(entries, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        next(prepared_cases(entries, SMALL, tmp_path / "file" / "kept"))


def test_results_come_in_order_whoever_works():
    words = ["b", "a", "c"]
    assert list(in_parallel(str.upper, words)) == list(in_parallel(str.upper, words, workers=1)) == ["B", "A", "C"]
    assert list(in_parallel(str.upper, [])) == []


def test_a_reference_of_many_labels_is_kept(tmp_path):
    volume = np.arange(6 * 5 * 4).reshape(6, 5, 4) * 9
    path = tmp_path / "s.nii"
    nibabel.save(nibabel.Nifti1Image(volume.astype(np.int16), ODD), path)
    entry = LayeredEntry("a", "a", image=image(tmp_path / "a.nii"), layers=(LabelLayer(path),))
    for _ in range(2):
        ((_, case),) = prepared_cases([entry], Preprocessing(size=(6, 5)), tmp_path / "kept")
        assert int(case.reference.max()) == 119 * 9


def test_a_file_that_vanishes_is_told(entries):
    entries[0].image.unlink()
    with pytest.raises(ScanError, match=r"a.nii.gz cannot be read \(No such file"):
        case_key(entries[0], SMALL)
