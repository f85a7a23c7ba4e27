"""What is printed is run: the blocks of the README and of the documentation, on made-up scans."""

import re
import shlex
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

import scantune
from scantune.backends.slices import Preprocessing
from scantune.cli.main import COMMANDS, main
from scantune.config.presets import PresetNumbers
from scantune.densities import DENSITIES, DIVERGENCES, STORED
from scantune.methods import METHODS, MethodOptions
from scantune.methods.base import PARAMETER_CHOICES
from scantune.prior.coverage import ShownAtHome
from scantune.prior.prediction_reader import HomeScan
from scantune.scans.volume import Volume
from tests.conftest import TOY_PATCHES, toy_scan
from tests.toy_labels import LOCAL

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "docs" / "model-file.md").read_text(encoding="utf-8")
BUNDLED = ROOT / "src" / "scantune" / "model" / "bundled" / "brain.safetensors"
GUIDE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
OWN_DATA = (ROOT / "docs" / "tutorials" / "own-data.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / name
    for name in (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/model-file.md",
        "docs/methods.md",
        "docs/brain.md",
        "docs/data.md",
        "docs/shift.md",
        "docs/simulate.md",
    )
]


def blocks(language, text=README):
    """The fenced blocks of a language, each with a name to find it by."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [pytest.param(block, id=block.strip().splitlines()[-1].split("  ")[0]) for block in found]


def require_model(block):
    if re.search(r"(--model|info|load\(\"?) ?brain", block) and not BUNDLED.exists():
        pytest.skip("the bundled model brain is not in the source tree")


def write_scan(path, seed):
    """A toy scan and its label map in `path` and beside it: discs in nothing, as a stripped brain in air."""
    images, labels = toy_scan(seed, slices=3)
    pictures, values = (volume.squeeze().permute(2, 1, 0).numpy() for volume in (images, labels))
    path.parent.mkdir(exist_ok=True)
    for file, volume in ((path, pictures * (values > 0)), (path.with_name("labels"), values.astype(np.uint8))):
        nibabel.save(nibabel.Nifti1Image(volume, np.diag([3.0, 3.0, 5.0, 1.0])), f"{file}.nii.gz")
    return path.with_name("labels.nii.gz")


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with what a reader has, and methods that stop after one step."""
    monkeypatch.chdir(tmp_path)
    presets = import_module("scantune.adaptation.schedules").PRESETS
    monkeypatch.setitem(presets, "fast", replace(presets["fast"], steps=1))
    (tmp_path / "references").mkdir()
    write_scan(tmp_path / "my_T1", 1)
    write_scan(tmp_path / "scans" / "sub-1", 2).rename(tmp_path / "references" / "sub-1_labels.nii.gz")
    for number in range(5):
        labels = write_scan(tmp_path / "data" / f"sub-{number}_T1w", number)
        labels.rename(labels.with_name(f"sub-{number}_labels.nii.gz"))
    (recipe,) = blocks("toml", OWN_DATA)
    (tmp_path / "my_recipe.toml").write_text(recipe.values[0] + "\n[train]\niterations = 1\nbatch = 2\n")
    return tmp_path


def targets():
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("block", blocks("console"))
def test_commands_of_the_readme_run(block, desk):
    require_model(block)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        if program == "make":
            assert words
            assert set(words) <= targets()
        elif program == "pip":
            assert line == "pip install -c constraints.txt ."  # test_package.py installs the wheel
        else:
            assert program == "scantune"
            assert main(words) in ((0, 3) if "--strict" in words else (0,)), line
    if "--out out" in block:
        assert list((desk / "out").glob("*_seg.nii.gz"))
        assert (desk / "out" / "manifest.json").exists()


@pytest.mark.parametrize("block", blocks("python"))
def test_python_of_the_readme_runs(block, desk):
    require_model(block)
    torch.manual_seed(0)
    network = scantune.AdaptableNetwork.default(classes=3, width=2).task
    volumes, held_out = ([toy_scan(seed)[0] for seed in seeds] for seeds in (range(2), range(2, 4)))
    names = {"my_network": network, "volumes": volumes, "held_out": held_out, "volume": toy_scan(9)[0]}
    exec(compile(block, "README.md", "exec"), names)
    if "result.save" in block:
        assert {path.name for path in (desk / "out").iterdir()} >= {
            *("manifest.json", "my_T1_seg.nii.gz", "my_T1_source_seg.nii.gz")
        }
    for name in re.findall(r"\.(\w+)", block.partition("# adapted")[2]):
        assert getattr(names["adapted"], name) is not None


def test_there_is_something_to_run():
    (commands,), (six_lines, _) = blocks("console"), blocks("python")
    assert len(commands.values[0].splitlines()) == 2
    assert len(six_lines.values[0].strip().splitlines()) == 6
    opened = set(re.findall(r"^```(\w+)$", README, re.MULTILINE))
    assert opened == {"console", "python", "bibtex"}


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_every_method_is_in_the_table_of_methods():
    assert set(re.findall(r"^\| `([\w-]+)` \|.*methods/", GUIDE, re.MULTILINE)) == set(METHODS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link


@pytest.fixture(scope="module")
def models(toy):
    """A toy model with a full prior, calibrated, and helper networks; then one for each other form of the prior."""

    def fitted(density):
        return scantune.FieldOfExperts.fit(toy.network, toy.volumes[:3], patches=TOY_PATCHES, density=density)

    held_out = [HomeScan(Volume(images, reference=labels)) for images, labels in map(toy_scan, range(3, 6))]
    prior = fitted("gaussian").calibrated(toy.network, held_out)
    home = prior.calibration.home
    home = replace(home, local=LOCAL, section=home.size)
    coverage = replace(prior.calibration.coverage, shown=ShownAtHome((900.0, 1200.0), 0.01, 3))
    prior = replace(prior, calibration=replace(prior.calibration, home=home, coverage=coverage))
    return [
        scantune.Model(
            network=toy.network,
            labels={"rim": 1, "core": 2},
            backend=Preprocessing(size=(48, 48)),
            architecture={"kind": "unet", "classes": 3, "width": 8},
            prior=form,
            helpers=toy.helpers if form is prior else {},
            presets={"paper": PresetNumbers(steps=200)} if form is prior else {},
        )
        for form in (prior, prior.summarised(), *map(fitted, set(DENSITIES) - {"gaussian"}))
    ]


def documented():
    """Pattern and number of axes (None where the page names none) of every tensor in the page's tables."""
    rows = re.findall(r"^\| `((?:network|prior|helpers)\.[^`]+)` \| (.*?) \|", FORMAT, re.MULTILINE)
    return [
        (re.sub("NAME|FAMILY|LAYER|METHOD", "*", name), shape.count(",") + 1 if shape.startswith("(") else None)
        for name, shape in rows
    ]


def test_the_model_files_tensors_are_those_of_its_page(models, tmp_path):
    from safetensors import safe_open

    found = set()
    for model in models:
        model.save(tmp_path / "m.safetensors")
        with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
            found |= {(name, len(file.get_slice(name).get_shape())) for name in file.keys()}  # noqa: SIM118
    for name, axes in found:
        assert any(fnmatchcase(name, pattern) and dims in (axes, None) for pattern, dims in documented()), name
    for pattern, dims in documented():
        assert any(fnmatchcase(name, pattern) and dims in (axes, None) for name, axes in found), pattern


def test_the_model_files_record_is_that_of_its_page(models):
    told = set(re.findall(r"^\| `(\w+)` \|", FORMAT, re.MULTILINE))
    record = models[0].record
    assert told == set(record) | set(record["prior"]) | {"window"}  # of networks that see windows
    words = set(re.findall(r"`([\w-]+)`", FORMAT))
    for part in ("task", "architecture", "preprocessing"):
        assert set(record[part]) <= words
    for model in models:
        for family in model.record["prior"]["families"].values():
            assert set(family) | set(family["experts"]) <= words
            assert {key for group in family["groups"].values() for key in group} <= words
    assert set(record["helpers"]) == {"dae", "ae"}
    for helper in record["helpers"].values():
        assert set(helper) <= words
    assert set(DENSITIES) | set(STORED) <= words
    assert f"now {record['format']};" in FORMAT


@pytest.mark.parametrize("block", blocks("python", FORMAT))
def test_python_of_the_model_files_page_runs(block, models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    models[0].save("model.safetensors")
    exec(compile(block, "model-file.md", "exec"), {})
    assert capsys.readouterr().out.startswith("1 {'rim': 1, 'core': 2} ")


def sections():
    """The parts of the methods' page, by their headings."""
    parts = re.split(r"^## (.*)$", GUIDE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def options_told(section):
    """Names and defaults of the options in a section's table."""
    return dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", section, re.MULTILINE))


def options_of(kind, beside=MethodOptions):
    """Names and defaults of a method's options that are not those of another's."""
    known = {field.name: str(field.default) for field in fields(beside)}
    mine = {field.name: str(field.default) for field in fields(kind)}
    return {name: default for name, default in mine.items() if known.get(name) != default}


def test_the_options_of_every_method_are_on_their_page():
    page = sections()
    assert options_told(page["Options of every method"]) == {f.name: str(f.default) for f in fields(MethodOptions)}
    for name, method in METHODS.items():
        beside = METHODS["foe-cnn"].Options if name == "foe-cnn-pca" else MethodOptions
        assert options_told(page[f"`{name}`"]) == options_of(method.Options, beside), name
    named = set(re.findall(r"^- `([\w-]+)`:", page["Options of every method"], re.MULTILINE))
    assert named == set(PARAMETER_CHOICES)
    words = set(re.findall(r"`([\w-]+)`", page["`foe-cnn`"]))
    assert set(DIVERGENCES) <= words
    costs = re.findall(r"^\| `([\w-]+)`", page["Cost"], re.MULTILINE)
    assert set(costs) == set(METHODS)


@pytest.mark.parametrize("block", blocks("console", GUIDE))
def test_commands_of_the_methods_page_are_understood(block, monkeypatch):
    for command in COMMANDS.values():
        monkeypatch.setattr(command, "run", lambda _: 0)
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "scantune"
        assert main(words) == 0, line


def test_python_of_the_methods_page_runs_and_a_method_is_short(toy, capsys):
    shifted = toy_scan(9)[0] ** 2
    model = scantune.Model(toy.network, {"rim": 1, "core": 2}, Preprocessing(), {"kind": "unet"}, prior=toy.prior)
    found = [block.values[0] for block in blocks("python", GUIDE)]
    assert len(found) == 2
    for block in found:
        names = {"model": model, "network": toy.network, "volume": shifted}
        exec(compile(block, "methods.md", "exec"), names)
        result = names["result"]
        assert result.trace[-1]["objective"] < result.trace[0]["objective"]
    assert len(found[1].splitlines()) <= 100
    assert capsys.readouterr().out.endswith(" norm-affine\n")
    with torch.no_grad():
        p = toy.network(shifted).softmax(1).double()
    entropy = float(-(p * p.log()).sum(1).mean())
    shares = p.mean((0, 2, 3))
    first = result.trace[0]
    assert first["entropy"] == pytest.approx(entropy, rel=1e-4)
    assert first["objective"] == pytest.approx(entropy + 0.5 * float((shares * shares.log()).sum()), rel=1e-4)
