"""The page on simulation: its commands run, and its tables are complete."""

import dataclasses
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from scantune.backends.slices import Preprocessing
from scantune.cli.main import main
from scantune.simulate import COHORTS, SEQUENCES, TISSUES, Protocol, label_maps
from scantune.simulate.coils import COILS
from scantune.training.sources import FileSource
from tests.toy_cohort import toy_map

PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def reader(cohort_inputs, tmp_path, monkeypatch):
    """A folder with the page's files, where simulating and training take next to no time."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maps").symlink_to(cohort_inputs / "maps")
    for block in blocks("toml"):
        (tmp_path / re.match(r"# (\S+\.toml)\n", block)[1]).write_text(block)
    for name in ("contrasts", "brain"):
        cohort = COHORTS[name]
        coarse = {
            key: dataclasses.replace(
                one, protocol=dataclasses.replace(one.protocol, in_plane=4.0, resolution=4.0, slices=2)
            )
            for key, one in cohort.centres.items()
        }
        monkeypatch.setitem(
            COHORTS, name, dataclasses.replace(cohort, anatomy=lambda: label_maps([toy_map()]), given=coarse)
        )
    presets = import_module("scantune.adaptation.schedules").PRESETS
    monkeypatch.setitem(presets, "fast", dataclasses.replace(presets["fast"], steps=1))
    return tmp_path


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.splitlines()[0][:60])
def test_commands_of_the_page_run(block, reader):
    for line in block.splitlines():
        program, *typed = shlex.split(line)
        assert program == "scantune"
        if typed[0] == "simulate":
            typed += ["--slices", "2"]
        if typed[0] == "train":
            with Path(typed[1]).open("a") as recipe:
                recipe.write("\n[network]\nwidth = 2\n[train]\niterations = 1\nbatch = 2\n")
        assert main(typed) == 0, line
    for out in re.findall("--out (cohort|ours|mine) ", block):
        for name in ("manifest.json", "contact.png", "recipe.toml"):
            assert (reader / out / name).exists()


def test_the_pages_recipe_can_be_read():
    (block,) = (block for block in blocks("toml") if block.startswith("# sorted.toml"))
    tables = tomllib.loads(block)
    assert FileSource(**tables["data"]).names() == {"CSF": 1, "GM": 2, "WM": 3}
    assert Preprocessing(**tables["preprocessing"] | {"size": (208, 176)})


def named(text):
    return set(re.findall(r"`([^`]+)`", text))


def test_the_page_lists_every_key_and_its_default():
    table = PAGE.split("| key | unit | default | |\n")[1].split("\n\n")[0]
    listed = {name for row in table.splitlines()[1:] for name in named(row.split("|")[1])}
    fields = {one.name: one.default for one in dataclasses.fields(Protocol)}
    assert listed == (set(fields) - {"name"}) | {"splits", "vendor", "scanner", "source", "assumed"}
    for row in table.splitlines()[1:]:
        _, key, _, default, *_ = (cell.strip(" `") for cell in row.split("|"))
        if isinstance(fields.get(key), float | int):
            assert float(default) == fields[key], key


@pytest.mark.parametrize(("heading", "family"), [("Sequences,", SEQUENCES), ("Coils:", COILS)])
def test_the_page_lists_every_sequence_and_coil_with_its_keys(heading, family):
    table = PAGE.split(heading)[1].split("\n\n")[1].partition("---|\n")[2]
    listed = {kind: named(keys) for kind, keys in re.findall(r"^\| `(.*?)` \|(.*?)\|", table, re.MULTILINE)}
    assert listed == {kind: {one.name for one in dataclasses.fields(member)} for kind, member in family.items()}


def test_the_page_lists_every_tissue():
    assert named(PAGE.split("Tissues with known relaxation times")[1]) == set(TISSUES)


def test_the_pages_links_lead_to_files():
    for link in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (Path(__file__).parents[2] / "docs" / link).exists(), link
