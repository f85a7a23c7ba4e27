"""The gallery: examples of a store by a rule that sees no score, and a page of two parts that are written alone."""

import csv
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from scantune.benchmark.expand import expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.store import Store
from tests.benchmark.test_run import run
from tests.toy_experiment import write_experiment

ROOT = Path(__file__).parents[2]
METHODS = 'methods = ["plain, default", "strong, default"]'
ROW = """
[experiment.rows."{name}, default"]
method = "foe-cnn-pca"
network = "{network}"
preset = "fast"
steps = 2
guard = true
at_home = true
"""
KIB = 1024


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def scripts():
    examples, *_ = script("gallery_examples"), script("few_colours")
    return examples, script("gallery")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A store whose experiment `rescue-toy` is finished."""
    path = write_experiment(tmp_path_factory.mktemp("scans"), iterations=20, every=20)
    text = re.sub(r"methods = .*", METHODS, path.read_text(encoding="utf-8").partition("\n[experiment.rows")[0])
    rows = [ROW.format(name=name, network=network) for name, network in (("plain", "none"), ("strong", "strong"))]
    path.write_text("".join([text, *rows]), encoding="utf-8")
    out = tmp_path_factory.mktemp("finished")
    summary, _ = run(path, out)
    assert not summary.failed
    shutil.copy(path, out / "rescue-toy.toml")
    return out


@pytest.fixture
def store(finished, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(finished, tmp_path / "store")
    return Store(tmp_path / "store")


def jobs_of(store):
    return expand(Experiment.read(store.folder / "rescue-toy.toml")).rows


def decide(store, decisions):
    """Give the runs of the first people other decisions, by row and site."""
    for job in jobs_of(store):
        file = store.finished / job.key / "rows.csv"
        with file.open(newline="") as opened:
            rows = list(csv.DictReader(opened))
        for row in rows:
            row["decision"] = decisions.get((job.row.partition(",")[0], job.scan.site), "left alone")
        with file.open("w", newline="") as opened:
            writer = csv.DictWriter(opened, rows[0])
            writer.writeheader()
            writer.writerows(rows)


def without_a_run(examples, monkeypatch, action=None):
    """Take the decision of the store, or always the same, for that of a repeated run; return what was repeated."""
    repeated = []

    def adapted(job, store, device):
        repeated.append((job.row, job.scan.site))
        there = store.has(job.key)
        decided = action or (examples.read_rows(store.finished / job.key)[0].decision if there else "unsolved")
        return type("Run", (), {"decision": type("Decision", (), {"action": decided})})

    monkeypatch.setattr(examples, "adapted", adapted)
    return repeated


def test_the_first_scan_with_each_decision_is_shown_by_centre_then_by_network(scripts, store, monkeypatch):
    examples, _ = scripts
    decide(store, {("plain", "south"): "adapted", ("strong", "home"): "adapted", ("strong", "south"): "unsolved"})
    repeated = without_a_run(examples, monkeypatch)
    (anatomy,) = examples.anatomies(store, "cpu")
    shown = {action: (found.job.row, found.job.scan.site) for action, found in anatomy.found.items()}
    assert shown == {
        "adapted": ("plain, default", "south"),
        "left alone": ("plain, default", "home"),
        "unsolved": ("strong, default", "south"),
    }
    assert sorted(repeated) == sorted(shown.values())
    assert dict(anatomy.counts) == {"adapted": 2, "left alone": 3, "unsolved": 1}
    assert all(found.job.scan.number == 0 for found in anatomy.found.values())


def test_scans_of_networks_without_a_run_are_adapted_once(scripts, store, monkeypatch):
    examples, _ = scripts
    decide(store, {})
    repeated = without_a_run(examples, monkeypatch)
    first = next(job for job in jobs_of(store) if job.scan.site == "home")
    shutil.rmtree(store.finished / first.key)
    (anatomy,) = examples.anatomies(store, "cpu")
    assert dict(anatomy.counts) == {"unsolved": 1, "left alone": 5}
    assert anatomy.found["unsolved"].job.key == first.key
    assert anatomy.found["left alone"].job.scan.site == "north"
    assert len(repeated) == 2


def test_a_decision_that_another_device_does_not_repeat_is_not_shown(scripts, store, monkeypatch, capsys):
    examples, _ = scripts
    decide(store, {("plain", "south"): "adapted"})
    without_a_run(examples, monkeypatch, "left alone")
    with pytest.raises(SystemExit, match="'adapted' of the store could be repeated"):
        list(examples.anatomies(store, "cpu"))
    assert "left alone here, adapted in the store" in capsys.readouterr().err


def test_a_store_without_networks_leaves_the_page(scripts, store, tmp_path, capsys):
    _, gallery = scripts
    shutil.rmtree(store.finished)
    with pytest.raises(SystemExit, match="has no network"):
        gallery.main(store.folder, tmp_path / "docs", "cpu")
    assert "no network with a prior" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_the_page_of_a_store_shows_its_scans_and_leaves_the_bundled_part(scripts, store, tmp_path):
    examples, gallery = scripts
    out = tmp_path / "docs"
    (out / "figures").mkdir(parents=True)
    stale = out / "figures" / "gallery-toy-stale.png"
    stale.touch()
    (out / "gallery.md").write_text(gallery.with_part("", "bundled", "Of the bundled model."), encoding="utf-8")
    gallery.main(store.folder, out, "cpu")
    page = (out / "gallery.md").read_text(encoding="utf-8")
    assert "<!-- part bundled -->\n\nOf the bundled model.\n\n<!-- end -->" in page
    (anatomy,) = examples.anatomies(store, "cpu")
    assert re.search(r"^### Toy$", page, re.MULTILINE)
    assert "trained at home" in page and "Of 6 scans" in page and "20 iterations" in page
    pictures = re.findall(r"\]\(figures/(.*?)\)", page)
    assert pictures == [f"gallery-toy-{action.replace(' ', '-')}.png" for action in anatomy.found]
    assert not stale.exists()
    for action in examples.ACTIONS:
        said = f"**{gallery.TITLES[action]}: "
        assert (f"{said}none.**" in page) == (action not in anatomy.found)
        assert said in page
    for found in anatomy.found.values():
        row = next(row for row in examples.read_rows(store.finished / found.job.key) if row.structure == "mean")
        assert "Mean Dice" in page and f"{row.dice:.2f} after" in page
    for name in pictures:
        with Image.open(out / "figures" / name) as picture:
            assert picture.mode == "P"


def test_a_part_of_the_page_replaces_the_same_part_alone(scripts):
    _, gallery = scripts
    page = gallery.with_part(gallery.with_part("", "anatomies", "Second."), "bundled", "First.")
    assert page.startswith("# Gallery\n")
    assert page.index("First.") < page.index("Second.")
    again = gallery.with_part(page, "anatomies", "Other.")
    assert again == page.replace("Second.", "Other.")


def test_a_picture_with_few_colours_keeps_rare_ones(scripts, tmp_path):
    pixels = np.tile(np.arange(256, dtype=np.uint8)[:, None, None], (1, 64, 3))
    pixels[0, :3] = (230, 90, 20), (240, 230, 60), (250, 80, 200)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    sys.modules["few_colours"].reduce_colours(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.mode == "P"
        found = np.asarray(picture.convert("RGB")).astype(int)
    assert np.abs(found - pixels).max() <= 3


def test_pictures_of_the_gallery_are_small_and_all_of_them_stand_on_the_page():
    docs = ROOT / "docs"
    shown = re.findall(r"\]\(figures/(.*?)\)", (docs / "gallery.md").read_text(encoding="utf-8"))
    files = sorted((docs / "figures").glob("gallery-*.png"))
    assert sorted(shown) == [file.name for file in files]
    assert all(file.stat().st_size < 150 * KIB for file in files)
