"""Settings as plain data: one dataclass is the Python argument, the flags and the recipe's table.

Nothing heavy is imported here, so the command line can show its help at once.
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scantune.errors import InputError

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class TrainSettings:
    """How a network is trained; the defaults are the paper's strong baseline."""

    iterations: int = 30_000
    """Steps of the optimiser."""
    batch: int = 16
    """Slices per step."""
    learning_rate: float = 1e-3
    """Adam's learning rate, constant."""
    augment: Literal["strong", "none"] = "strong"
    """Stacked augmentation (the strong baseline), or none (the baseline)."""
    validate_every: int = 1000
    """Steps between two looks at the validation scans; the best network of all looks is kept."""
    checkpoint_every: int = 1000
    """Steps between two savings of the whole run, from where it resumes after an interruption."""
    seed: int = 0
    """Decides the first weights, the order of the slices and the augmentation."""
    device: str = "auto"
    """auto takes a GPU where there is one; or cpu, cuda, cuda:1."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes the network in half precision (weights and loss stay float32), for speed on a GPU."""
    compile: bool = False
    """Compile network, loss and augmentation with torch.compile; pays off in long runs on a GPU."""

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "learning_rate", "validate_every", "checkpoint_every"):
            if not getattr(self, name) > 0:
                raise InputError(f"The setting {name} must be above 0, got {getattr(self, name)}.")
        if self.seed < 0:
            raise InputError(f"The setting seed must be 0 or more, got {self.seed}.")


FINE_TUNING = TrainSettings(iterations=5000, learning_rate=1e-4)
"""The paper's benchmark: how a trained network goes on with labelled scans of another site."""


@dataclass(frozen=True)
class Recipe:
    """A training recipe: the settings of the training, and the tables of the parts around it, unread."""

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


def bundled_recipes() -> list[str]:
    """Names of the recipes inside the package."""
    folder = resources.files("scantune") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_recipe(source: str | Path) -> Recipe:
    """Read a recipe from a TOML file, or a bundled one by its name.

    Raises:
        InputError: There is no such recipe, it is not TOML, or it says something unknown.
    """
    text = _recipe_text(source)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"The recipe {source} is not valid TOML: {error}.") from error
    known = [entry.name for entry in dataclasses.fields(Recipe) if entry.name != "name"]
    for name, table in tables.items():
        if name not in known:
            raise InputError(f"The recipe {source} has an unknown table [{name}]; known: {', '.join(known)}.")
        if not isinstance(table, dict):
            raise InputError(f"In the recipe {source}, {name} must be a table: write [{name}] on its own line.")
    train = settings_from_table(TrainSettings, tables.pop("train", {}), f"[train] of the recipe {source}")
    return Recipe(name=Path(source).stem, train=train, **tables)


def settings_from_table(kind: type[Settings], table: Mapping[str, Any], where: str) -> Settings:
    """Make a settings dataclass from a table, refusing unknown names, missing ones and wrong types.

    Args:
        kind: The settings dataclass.
        table: Names and values, as TOML or JSON gives them.
        where: What the table is called in messages.

    Raises:
        InputError: A name is unknown or missing, or a value has the wrong type or lies out of range.
    """
    hints = get_type_hints(kind)
    for name, value in table.items():
        if name not in hints:
            raise InputError(f"Unknown setting {name!r} in {where}; known: {', '.join(hints)}.")
        if not _fits(value, hints[name]):
            raise InputError(f"The setting {name} in {where} must be {_described(hints[name])}, got {value!r}.")
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        needed = entry.default is entry.default_factory is dataclasses.MISSING
        if needed and entry.name not in table:
            raise InputError(f"{where} must have the setting {entry.name}: {_described(hints[entry.name])}.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in table.items()})


def table_from_words(kind: type[Any], words: Sequence[str], flag: str) -> dict[str, Any]:
    """Read words like `weight=0.5` as a table for `settings_from_table`: each value by the type of its setting.

    Args:
        kind: The settings dataclass.
        words: What was typed.
        flag: After which flag, for messages.

    Raises:
        InputError: A word is something else, or a name comes twice.
    """
    hints = get_type_hints(kind)
    table: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise InputError(f"{flag} takes NAME=VALUE, such as learning_rate=1e-3, but got {word!r}.")
        if name in table:
            raise InputError(f"{flag} must name every setting once, but {name} comes twice.")
        table[name] = _read_word(value, hints.get(name, str))
    return table


def table_of_words(words: Sequence[str], flag: str) -> dict[str, Any]:
    """Read words like `seed=3`, `labels=*_seg.nii.gz` or `structures.GM=2` as a table without settings of its own.

    A value is what TOML takes it for, or text where it is no TOML; names with dots make tables in the table.

    Args:
        words: What was typed.
        flag: After which flag, for messages.

    Raises:
        InputError: A word is something else, or a name comes twice.
    """
    table: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        *outer, last = name.split(".")
        if not (all([*outer, last]) and equals and value):
            raise InputError(f"{flag} takes NAME=VALUE, such as labels=*_seg.nii.gz, but got {word!r}.")
        inner = table
        for part in outer:
            inner = inner.setdefault(part, {})
        if not isinstance(inner, dict) or last in inner:
            raise InputError(f"{flag} must name every option once, but {name} comes twice.")
        try:
            inner[last] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            inner[last] = value
    return table


def _read_word(word: str, hint: Any) -> Any:
    """A word as its setting wants it: text, a number, true or false; text where it is none of these."""
    if _fits(word, hint):
        return word
    for read in (int, float, {"true": True, "false": False}.__getitem__):
        try:
            value = read(word.lower())
        except (ValueError, KeyError):
            continue
        if _fits(value, hint):
            return value
    return word


def _recipe_text(source: str | Path) -> str:
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"The recipe {source} is not a text file in UTF-8.") from error
    bundled = bundled_recipes()
    if str(source) in bundled:
        return (resources.files("scantune") / "recipes" / f"{source}.toml").read_text(encoding="utf-8")
    raise InputError(f"There is no recipe {source}: neither a file nor a bundled recipe ({', '.join(bundled)}).")


def _fits(value: object, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (dict, Mapping):
        return isinstance(value, dict) and all(_fits(entry, get_args(hint)[1]) for entry in value.values())
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return isinstance(value, list | tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if get_args(hint):
        return any(_fits(value, option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _described(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (dict, Mapping):
        return f"a table of names with {_described(get_args(hint)[1])} each"
    if get_origin(hint) is list:
        return f"a list of {_described(get_args(hint)[0])} each"
    if get_origin(hint) is tuple:
        return f"a list [{', '.join(map(_described, get_args(hint)))}]"
    if get_args(hint):
        return " or ".join(_described(option) for option in get_args(hint))
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "absent"}
    return words.get(hint, str(hint))
