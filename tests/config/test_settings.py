"""Settings and recipes: what is read, and what is refused with which words."""

import subprocess
import sys
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from scantune.config.assignments import table_from_assignments
from scantune.config.recipe import bundled_recipes, read_recipe
from scantune.config.settings import TrainSettings, settings_from_table
from scantune.errors import InputError


def write(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_recipe_changes_what_it_names_and_keeps_the_defaults(tmp_path):
    text = '[train]\niterations = 5\nlearning_rate = 1\naugment = "none"\n[data]\nscans = ["a.nii.gz"]\n'
    recipe = read_recipe(write(tmp_path, text))
    assert recipe.name == "mine"
    assert recipe.train == TrainSettings(iterations=5, learning_rate=1, augment="none")
    assert recipe.data == {"scans": ["a.nii.gz"]}
    assert recipe.network == recipe.preprocessing == {}


def test_every_bundled_recipe_can_be_read():
    assert "brain" in bundled_recipes()
    for name in bundled_recipes():
        assert read_recipe(name).name == name
    brain = read_recipe("brain")
    assert (brain.train.iterations, brain.train.batch, brain.train.augment) == (30_000, 16, "strong")
    assert brain.network["classes"] == 4


def test_the_defaults_are_those_of_the_paper():
    settings = TrainSettings()
    assert (settings.iterations, settings.batch, settings.learning_rate) == (30_000, 16, 1e-3)
    assert settings.validate_every == 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nbatchsize = 4\n", "Unknown setting 'batchsize' in .*known: iterations, learning_rate"),
        ("[training]\nbatch = 4\n", r"unknown table \[training\]; known: train, data, preprocessing, network"),
        ("train = 4\n", "train must be a table"),
        ("[train\n", "not valid TOML"),
        ('[train]\nbatch = "4"\n', "batch in .* must be a whole number, got '4'"),
        ("[train]\nbatch = true\n", "batch in .* must be a whole number, got True"),
        ("[train]\nbatch = 4.5\n", "must be a whole number, got 4.5"),
        ('[train]\nlearning_rate = "fast"\n', "must be a number"),
        ('[train]\naugment = "some"\n', "must be one of 'strong', 'none', got 'some'"),
        ("[train]\ncompile = 1\n", "must be true or false, got 1"),
        ("[train]\ndevice = 0\n", "must be text, got 0"),
        ("[train]\niterations = 0\n", "iterations must be above 0, got 0"),
        ("[train]\nlearning_rate = nan\n", "learning_rate must be above 0, got nan"),
        ("[train]\nseed = -1\n", "seed must be 0 or more, got -1"),
    ],
)
def test_a_recipe_that_says_something_unknown_or_wrong_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_recipe(write(tmp_path, text))


def test_a_missing_recipe_names_the_bundled_ones():
    with pytest.raises(InputError, match=r"no recipe brian: .*\(.*brain.*\)"):
        read_recipe("brian")


def test_a_recipe_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        read_recipe(path)


def test_every_setting_can_come_from_a_table():
    table = {entry.name: getattr(TrainSettings(), entry.name) for entry in fields(TrainSettings)}
    assert settings_from_table(TrainSettings, table, "a test") == TrainSettings()


@dataclass(frozen=True)
class Mixed:
    text: str = ""
    choice: Literal["all", "3"] = "all"
    whole: int = 0
    rate: float = 0.0
    switch: bool = False
    maybe: int | None = None


def test_words_are_read_by_the_type_of_their_setting():
    words = ["text=5", "choice=3", "whole=12", "rate=.5", "switch=True", "maybe=4"]
    table = table_from_assignments(Mixed, words, "--options")
    assert table == {"text": "5", "choice": "3", "whole": 12, "rate": 0.5, "switch": True, "maybe": 4}
    assert settings_from_table(Mixed, table, "a test") == Mixed("5", "3", 12, 0.5, True, 4)
    more = table_from_assignments(Mixed, ["text=a=b", "rate=1e-3", "switch=false"], "--options")
    assert more == {"text": "a=b", "rate": 0.001, "switch": False}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["whole=1.5"], "whole in a test must be a whole number, got '1.5'"),
        (["whole=true"], "whole in a test must be a whole number, got 'true'"),
        (["rate=fast"], "rate in a test must be a number, got 'fast'"),
        (["switch=1"], "switch in a test must be true or false, got '1'"),
        (["choice=4"], "choice in a test must be one of 'all', '3', got '4'"),
        (["speed=4"], "Unknown setting 'speed' in a test"),
        (["rate"], "--options takes NAME=VALUE, such as learning_rate=1e-3, but got 'rate'"),
        (["=3"], "--options takes NAME=VALUE"),
        (["rate="], "--options takes NAME=VALUE"),
        (["rate=1", "rate=2"], "--options must name every setting once, but rate comes twice"),
    ],
)
def test_words_that_are_no_settings_are_refused(words, told):
    with pytest.raises(InputError, match=told):
        settings_from_table(Mixed, table_from_assignments(Mixed, words, "--options"), "a test")


def test_settings_do_not_import_torch():
    heavy = "'torch' in sys.modules or 'numpy' in sys.modules"
    code = f"import sys, scantune.config.settings, scantune.config.recipe; sys.exit({heavy})"
    subprocess.run([sys.executable, "-c", code], check=True)
