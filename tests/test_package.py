"""The package as others get it: the wheel, its imports, its tables, and what its files may not say."""

import inspect
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

import scantune
from scantune.errors import InputError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scantune"
BUNDLED = SOURCE / "model" / "bundled" / "brain.safetensors"
FAMILIES = {
    "methods": "METHODS",
    "densities": "DENSITIES",
    "experts": "EXPERTS",
    "tasks": "TASKS",
    "datasets": "DATASETS",
    "simulate": "COHORTS",
}


def run(*words, **options):
    """What a program prints; its own complaint where it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, encoding="utf-8", **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(folder):
    """The wheel, built from a copy, so that the checkout stays clean and nothing of an older build gets in."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def test_the_wheel_holds_every_module_recipe_model_and_licence(tmp_path):
    names = set(zipfile.ZipFile(build_wheel(tmp_path)).namelist())
    for path in SOURCE.rglob("*"):
        if path.suffix in (".py", ".toml", ".safetensors", ".typed", ".js", ".css", ".html", ".svg"):
            assert f"scantune/{path.relative_to(SOURCE).as_posix()}" in names
    licences = {f"scantune-{scantune.__version__}.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")}
    assert licences <= names
    assert all(name.startswith(("scantune/", "scantune-")) for name in names)


@pytest.mark.slow
def test_the_wheel_and_its_dependencies_work_in_an_empty_environment(tmp_path):
    wheel = build_wheel(tmp_path / "build")
    place = tmp_path / "venv"
    venv.create(place)  # not even pip is in it
    python = place / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    try:
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
        run(*pip, "--constraint", constraints, wheel)
        clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        command, away = python.with_name("scantune"), {"cwd": tmp_path, "env": clean}
        assert "adapt" in run(command, "--help", **away)
        assert run(command, "--version", **away) == f"scantune {scantune.__version__}\n"
        where = run(python, "-c", "import scantune; print(scantune.__file__)", **away)
        assert Path(where).is_relative_to(place)
        if BUNDLED.exists():
            assert "segmentation" in run(command, "info", "brain", **away)
    finally:
        shutil.rmtree(place, ignore_errors=True)  # more than a gigabyte


CORE = (
    *("networks", "experts", "densities", "methods", "simulate", "tasks", "prior.field_of_experts"),
    *("adaptation.adapt", "adaptation.guard.base", "training.segmentation", "training.fit", "training.augment"),
    *("model.model", "evaluation.metrics", "backends.slices"),
)
BLOCKED = (
    *("monai", "nibabel", "SimpleITK", "nilearn", "sklearn", "scipy", "tyro", "rich", "matplotlib"),
    *("tensorboard", "pandas"),
)
MINIMAL = f"""
import sys
from dataclasses import replace
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *where: None if name.partition(".")[0] in {BLOCKED!r} else find(name, *where)
from importlib import import_module
import numpy
import torch
import scantune

for name in {CORE!r}:
    import_module("scantune." + name)
torch.manual_seed(0)
network = scantune.AdaptableNetwork.default(classes=3, width=2).eval()
volumes = [torch.rand(2, 1, 32, 32) for _ in range(3)]
model = scantune.Model(
    network,
    {{"a": 1, "b": 2}},
    import_module("scantune.backends.slices").Preprocessing(size=(32, 32)),
    {{"kind": "unet", "classes": 3, "width": 2}},
    prior=scantune.FieldOfExperts.fit(network, volumes),
)
model.save("model.safetensors")
case = scantune.Case("scan", numpy.random.default_rng(0).random((30, 28, 2), dtype="float32"), numpy.eye(4))
model = scantune.load("model.safetensors")
assert scantune.adapt(model, case, steps=1).facts["verdict"] in ("fine", "doubtful", "failed")
unread = replace(model, prior=replace(model.prior, trained=None))
assert scantune.adapt(unread, case, steps=1).decision.numbers["looks"] >= 0
result = scantune.adapt(model, case, steps=2, guard=False)
assert result.prediction.shape == (30, 28, 2)
print(result.energy_before > result.energy_after, sorted(set({BLOCKED!r}) & set(sys.modules)))
"""


def test_the_core_works_with_torch_numpy_and_safetensors_alone(tmp_path):
    assert run(sys.executable, "-c", MINIMAL, cwd=tmp_path) == "True []\n"


def test_help_takes_less_than_0_4_seconds():
    """Measure processor time, which other programs hardly change; take the best of three."""

    def seconds():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(sys.executable, "-m", "scantune", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.4


@pytest.mark.parametrize("name", scantune.__all__)
def test_every_public_name_exists(name):
    assert getattr(scantune, name) is not None
    assert name in dir(scantune)


def test_a_name_that_does_not_exist_is_refused():
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        scantune.magic  # noqa: B018


@pytest.mark.parametrize(("module", "table"), FAMILIES.items())
def test_every_family_is_a_table_of_members_by_their_name(module, table):
    members = getattr(import_module(f"scantune.{module}"), table)
    assert members
    for name, member in members.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert getattr(member, "name", name) == name
        assert inspect.getdoc(member)


@pytest.mark.parametrize("adapter", scantune.datasets.DATASETS.values(), ids=scantune.datasets.DATASETS)
def test_a_data_set_that_is_not_there_is_told_in_a_sentence(adapter, tmp_path):
    with pytest.raises(InputError, match="nothing"):
        adapter.open(tmp_path / "nothing")


@pytest.mark.parametrize("cohort", scantune.simulate.COHORTS.values(), ids=scantune.simulate.COHORTS)
def test_a_cohort_has_a_source_to_train_at_and_centres_by_their_name(cohort):
    assert {"train", "validation", "test"} <= set(cohort.centres[cohort.source].splits)
    assert 0 not in cohort.labels.values()
    for name, centre in cohort.centres.items():
        assert centre.protocol.name == name
        assert "test" in centre.splits


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert scantune.__version__ == project["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d.*?)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)
    assert newest and newest[1] == scantune.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {scantune.__version__}\n" in citation


def files():
    """The text files of the project, build products and downloads left out."""
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    inner = [
        path
        for name in (".ci", "docs", "fuzz", "scripts", "speed", "src", "tests")
        for path in (ROOT / name).rglob("*")
    ]
    texts = (".py", ".toml", ".md", ".txt", ".cff", "")
    return [
        path for path in [*tops, *inner] if path.is_file() and path.suffix in texts and ".egg-info" not in str(path)
    ]


def test_only_the_ci_script_knows_what_lies_beside_the_checkout():
    beside = "../" + "shared"
    assert [path.relative_to(ROOT).as_posix() for path in files() if beside in path.read_text("utf-8")] == [".ci/run"]


def test_users_never_read_an_abbreviation_that_means_augmentation_to_them():
    """TTA is test-time augmentation to most readers. Names of other projects may hold it."""
    for path in files():
        if path.is_relative_to(SOURCE) or path.suffix == ".md":
            text = re.sub(r"DG-TTA|TTA-1D-Density-Matching", "", path.read_text("utf-8"))
            assert not re.search(r"\bTTA\b|--tta", text), path
