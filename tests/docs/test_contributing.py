"""The map for contributors names folders, files, classes, tables and tests that exist, and tells all to fill in."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from fuzz.base import Kind

from scantune.benchmark.engines import Engine
from scantune.benchmark.jobs import Job
from scantune.datasets import DataSet, ScanEntry
from scantune.datasets.generic import GenericDataSet
from scantune.densities import Density, Divergence, GridDensity
from scantune.experts import Experts
from scantune.methods import Method
from scantune.networks import Helper
from scantune.tasks import Task
from scantune.training.trainer import TrainingModule

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "scantune"
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TOP_FOLDERS = ("tests/", "scripts/", "fuzz/", "docs/")
TEST_FILES = [file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")]

NAMED = set(re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:py|toml|json|md))(?:::([\w.]+))?", PAGE))
NAMED = sorted(NAMED - {("file.py", "name"), ("base.py", "")})
HOW_TO_ADD = PAGE.partition("## How to add")[2]
RECIPES = dict(re.findall(r"^\*\*(.+?)\.\*\* (.*?)(?=^\*\*|^## )", HOW_TO_ADD, re.DOTALL | re.MULTILINE))
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]["layers"]


def place(path):
    """The file of a path as the page names it."""
    if "/" not in path and not (SOURCE / path).exists():
        return ROOT / path
    return (ROOT if path.startswith(TOP_FOLDERS) else SOURCE) / path


def defined(body):
    """The classes, functions and variables of a module or a class, by name."""
    found = {}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = node
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                found[target.id] = node
    return found


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: part)
def test_every_file_and_name_exists(path, name):
    file = place(path)
    if file.stem in ("NAME", "COHORT"):
        assert file.parent.is_dir()
        return
    assert file.is_file()
    body = ast.parse(file.read_text(encoding="utf-8")).body if name else []
    for part in filter(None, name.split(".")):
        found = defined(body)
        assert part in found
        body = getattr(found[part], "body", [])


def test_every_folder_exists():
    folders = set(re.findall(r"(?<![\w/.])((?:[\w-]+/)+)(?=[`\s,;)])", PAGE))
    assert len(folders) > 20
    assert [folder for folder in folders if not ((SOURCE / folder).is_dir() or (ROOT / folder).is_dir())] == []


def test_every_test_that_is_named_alone_exists():
    names = set(re.findall(r"`(test_\w+)`", PAGE))
    assert names
    assert [name for name in names if not any(f"def {name}(" in text for text in TEST_FILES)] == []


def test_the_layers_are_those_of_the_import_contract():
    (diagram,) = re.findall(r"^```text\n(1  .*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert [line.split("  ", 1)[1] for line in diagram.splitlines()] == LAYERS


def test_every_folder_of_the_package_has_a_line_with_its_layer():
    rows = re.findall(r"^\| (\d) \| `([\w]+)(?:/|\.py)` \| ", PAGE, re.MULTILINE)
    told = {name: int(layer) for layer, name in rows}
    assert len(told) == len(rows)
    assert told == {name: n for n, line in enumerate(LAYERS, 1) for name in re.findall(r"\w+", line)}
    inside = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert inside <= told.keys()


@pytest.mark.parametrize(
    ("recipe", "contracts"),
    [
        ("A method", [Method]),
        ("A density", [Density, GridDensity]),
        ("A divergence", [Divergence]),
        ("An expert family", [Experts]),
        ("A task", [Task]),
        ("A data set", [DataSet, ScanEntry, GenericDataSet]),
        ("A network", [Helper, TrainingModule]),
        ("A job of a benchmark", [Job]),
        ("An engine", [Engine]),
        ("A kind of hard input", [Kind]),
    ],
)
def test_a_recipe_names_everything_that_a_member_must_fill_in(recipe, contracts):
    words = set(re.findall(r"`(\w+)`", RECIPES[recipe]))
    for contract in contracts:
        assert contract.__abstractmethods__ <= words, contract.__name__


def test_every_recipe_names_a_test_that_runs_over_the_new_member():
    assert len(RECIPES) >= 14
    for name, recipe in RECIPES.items():
        assert re.search(r"Runs:\s+`tests/", recipe), name
