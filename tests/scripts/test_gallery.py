"""The gallery: examples by a rule that sees no score, and a page of two parts that are written alone."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from scantune.simulate import COHORTS

ROOT = Path(__file__).parents[2]
SPINE = ROOT / "src" / "scantune" / "model" / "bundled" / "spine.safetensors"
CENTRES = list(COHORTS["spine-v2"].centres)
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


@pytest.fixture
def folder(tmp_path):
    """Networks of the spinal cord of two runs, the older one without augmentation alone."""
    names = ("none-0", "none-1", "strong-1", "none-500-2", "weak-3")
    (tmp_path / "models").mkdir()
    for name in names:
        shutil.copy(SPINE, tmp_path / "models" / f"spine-v2-{name}.safetensors")
    return tmp_path / "models"


def decide(examples, monkeypatch, decisions):
    """Give decisions to scans by network and centre, `left alone` to the others; return what was looked at."""
    seen = []

    def adapt(model, case, device):
        seen.append((model.name, case.site))
        assert case.split == "test"
        assert case.shape[2] == 8
        assert case.subject.endswith("test-001")  # of seed 0
        action = decisions.get((model.name, case.site), "left alone")
        return SimpleNamespace(case=case, decision=SimpleNamespace(action=action))

    monkeypatch.setattr(examples, "adapt", adapt)
    return seen


def test_the_first_scan_with_each_decision_is_shown_by_network_then_by_centre(scripts, folder, monkeypatch, capsys):
    examples, _ = scripts
    plain, strong = "spine-v2-none-1", "spine-v2-strong-1"
    first, second, *_ = CENTRES
    seen = decide(
        examples, monkeypatch, {(plain, second): "adapted", (strong, first): "adapted", (strong, second): "unsolved"}
    )
    (anatomy,) = examples.anatomies(folder, "cpu")
    assert seen == [(name, centre) for name in (plain, strong) for centre in CENTRES]
    shown = {action: (found.model.name, found.augment, found.site) for action, found in anatomy.found.items()}
    assert shown == {
        "adapted": (plain, "none", second),
        "left alone": (plain, "none", first),
        "unsolved": (strong, "strong", second),
    }
    assert dict(anatomy.counts) == {"adapted": 2, "left alone": 2 * len(CENTRES) - 3, "unsolved": 1}
    assert "prostate-v2: no network" in capsys.readouterr().err


def test_networks_of_a_cohort_are_those_of_its_last_run(scripts, folder):
    examples, _ = scripts
    names = {augment: model.name for augment, model in examples.networks(folder, "spine-v2").items()}
    assert list(names.items()) == [("none", "spine-v2-none-1"), ("strong", "spine-v2-strong-1")]
    assert examples.networks(folder, "brain-v2") == {}


def test_a_folder_without_networks_leaves_the_page(scripts, tmp_path, capsys):
    _, gallery = scripts
    with pytest.raises(SystemExit, match="has no network"):
        gallery.main(tmp_path, tmp_path / "docs", "cpu")
    assert "wmh-v2: no network" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_the_page_shows_scans_of_every_anatomy_and_leaves_the_other_part(scripts, folder, tmp_path):
    examples, gallery = scripts
    (folder / "spine-v2-strong-1.safetensors").unlink()
    out = tmp_path / "docs"
    (out / "figures").mkdir(parents=True)
    stale, other = (out / "figures" / f"gallery-spine-{name}.png" for name in ("adapted", "inverted"))
    for file in (stale, other):
        file.touch()
    (out / "gallery.md").write_text(gallery.with_part("", "bundled", "Of bundled models."), encoding="utf-8")
    gallery.main(folder, out, "cpu")
    page = (out / "gallery.md").read_text(encoding="utf-8")
    assert "<!-- part bundled -->\n\nOf bundled models.\n\n<!-- end -->" in page
    assert re.search(r"^### Spinal cord$", page, re.MULTILINE)
    said = re.search(
        r"trained without augmentation, at PM .*Of 4 scans, (\d) adapted, (\d) left alone, (\d) unsolved", page
    )
    counts = dict(zip(examples.ACTIONS, map(int, said.groups()), strict=True))
    assert sum(counts.values()) == len(CENTRES)
    pictures = re.findall(r"\]\(figures/(.*?)\)", page)
    assert pictures == [f"gallery-spine-{action.replace(' ', '-')}.png" for action, count in counts.items() if count]
    for action, count in counts.items():
        assert (f"**{gallery.TITLES[action]}: none.**" in page) == (not count)
    assert len(re.findall("^Mean Dice .* before, .* after", page, re.MULTILINE)) == len(pictures)
    assert other.exists()
    assert stale.exists() == (counts["adapted"] > 0)
    for name in pictures:
        with Image.open(out / "figures" / name) as picture:
            assert picture.mode == "P"


def test_scans_of_bundled_models_are_those_of_the_demo_and_of_first_test_people(scripts):
    _, gallery = scripts
    cases = {example.picture: gallery.case_of(example, gallery.load(example.model)) for example in gallery.SCANS}
    turned = cases.pop("spine-inverted")
    assert turned.name.endswith("_inverted-0")
    assert turned.site == COHORTS["spine"].source
    assert {name: case.site for name, case in cases.items()} == {name: name for name in cases}
    assert {case.shape[2] for case in cases.values()} == {8}


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
    assert all(file.stat().st_size < 100 * KIB for file in files)
