"""Recipes: what a network is trained on and how, as tables of a TOML file, read from disk or from the package.

Nothing heavy is imported here, so the command line can show its help at once.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from scantune.config.settings import PriorSettings, TrainSettings, settings_from_table
from scantune.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """The settings of a training and of a prior, and further tables that are read where they are used."""

    name: str
    """The file's stem, or the name of a bundled recipe."""
    train: TrainSettings = field(default_factory=TrainSettings)
    """The table [train]."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The table [data]: the scans to train on and to select by."""
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    """The table [preprocessing]: how a scan becomes slices."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """The table [network]: what is trained."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """The table [task]: what it is trained for; by default segmentation."""
    prior: PriorSettings = field(default_factory=PriorSettings)
    """The table [prior]."""
    helpers: Mapping[str, Any] = field(default_factory=dict)
    """The tables [helpers.dae] and so on: how the helper network of a method is trained."""
    supervised: Mapping[str, Any] = field(default_factory=dict)
    """The table [supervised]: differences from [train] for fine-tuning on labelled scans of a centre."""
    adapt: Mapping[str, Any] = field(default_factory=dict)
    """The table [adapt]: how scans are adapted to in an experiment."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The table [experiment]: what is compared, where and how often."""
    tests: Mapping[str, Any] = field(default_factory=dict)
    """The tables [tests.NAME]: further scans of an experiment to test with, as in [data]."""
    real: Mapping[str, Any] = field(default_factory=dict)
    """The tables [real.preprocessing] and so on: differences of an experiment that is given a data set."""


def bundled_recipes() -> list[str]:
    """Return the names of the recipes inside the package."""
    folder = resources.files("scantune.config") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_recipe(source: str | Path) -> Recipe:
    """Read a recipe from a TOML file, or a bundled one by its name.

    Raises:
        InputError: There is no such recipe, it is not TOML, or it has an unknown name.
    """
    return recipe_from_tables(parse_tables(_recipe_text(source), source), source)


def parse_tables(text: str, source: str | Path) -> dict[str, Any]:
    """Read the tables of a recipe's text.

    Raises:
        InputError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter of brackets in brackets
        raise InputError(f"The recipe {source} is not valid TOML: {error}.") from error


def recipe_from_tables(tables: Mapping[str, Any], source: str | Path) -> Recipe:
    """Make a recipe from its tables.

    Args:
        tables: As TOML gives them.
        source: Where they are from; its stem becomes the recipe's name.

    Raises:
        InputError: They have an unknown name.
    """
    known = [entry.name for entry in dataclasses.fields(Recipe) if entry.name != "name"]
    for name, table in tables.items():
        if name not in known:
            raise InputError(f"The recipe {source} has an unknown table [{name}]; known: {', '.join(known)}.")
        if not isinstance(table, dict):
            raise InputError(f"In the recipe {source}, {name} must be a table: write [{name}] on its own line.")
    train = settings_from_table(TrainSettings, tables.get("train", {}), f"[train] of the recipe {source}")
    prior = settings_from_table(PriorSettings, tables.get("prior", {}), f"[prior] of the recipe {source}")
    others = {name: table for name, table in tables.items() if name not in ("train", "prior")}
    return Recipe(name=Path(source).stem, train=train, prior=prior, **others)


def text_of(path: Path, what: str) -> str:
    """Read a text file of a user.

    Args:
        path: The file.
        what: What it should be, for messages.

    Raises:
        InputError: It cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"The {what} {path} is not a text file in UTF-8.") from error
    except OSError as error:
        raise InputError(f"The {what} {path} cannot be read ({error.strerror}). Check its permissions.") from error


def _recipe_text(source: str | Path) -> str:
    path = Path(source)
    if path.is_file():
        return text_of(path, "recipe")
    bundled = bundled_recipes()
    if str(source) in bundled:
        return (resources.files("scantune.config") / "recipes" / f"{source}.toml").read_text(encoding="utf-8")
    raise InputError(f"There is no recipe {source}: neither a file nor a bundled recipe ({', '.join(bundled)}).")
