"""Settings as plain data: one dataclass is the Python argument, the flags and the recipe's table.

Nothing heavy is imported here, so the command line can show its help at once.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scantune.errors import InputError

Settings = TypeVar("Settings")


def require_seed(seed: int) -> None:
    """Check that a number can be a seed.

    Raises:
        InputError: It cannot.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"The setting seed must be {'0 or more' if seed < 0 else 'below 2^63'}, got {seed}.")


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
        require_seed(self.seed)


FINE_TUNING = TrainSettings(iterations=5000, learning_rate=1e-4)
"""The paper's benchmark: how a trained network goes on with labelled scans of another site."""


@dataclass(frozen=True)
class PriorSettings:
    """How a prior is fitted; the defaults are the paper's."""

    density: Literal["gaussian", "kde", "histogram"] = "gaussian"
    """The form of the experts' densities."""
    alpha: float = 10.0
    """kde: sharpness of the kernel exp(-alpha u^2), on standardised values."""
    size: int = 16
    """Side r of the PCA experts' square patches, in pixels of the last layer."""
    stride: int = 8
    """Step d between patches."""
    components: int = 10
    """Principal components G per channel."""
    threshold: float = 0.8
    """A patch is active where the foreground probability of its central pixel is above this tau."""
    output_experts: bool = False
    """Whether the class probabilities are CNN experts too, as in the authors' code."""
    summarise: bool = False
    """Keep seven numbers per expert and none of any single subject; of gaussian densities only."""

    def __post_init__(self) -> None:
        for name in ("alpha", "size", "stride", "components"):
            if not getattr(self, name) > 0:
                raise InputError(f"The setting {name} of the prior must be above 0, got {getattr(self, name)}.")
        if not 0 <= self.threshold < 1:
            raise InputError(f"The setting threshold of the prior must be from 0 to below 1, got {self.threshold}.")


@dataclass(frozen=True)
class Recipe:
    """A recipe: how a network is trained and its prior fitted, and the tables of the parts around it, unread."""

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
    """The table [task]: what it is trained for; segmentation where it is left out."""
    prior: PriorSettings = field(default_factory=PriorSettings)
    """The table [prior]."""
    helpers: Mapping[str, Any] = field(default_factory=dict)
    """The tables [helpers.dae] and so on: how the helper network of a method is trained."""
    supervised: Mapping[str, Any] = field(default_factory=dict)
    """The table [supervised]: what differs from [train] where a network goes on with labelled scans of a centre."""
    adapt: Mapping[str, Any] = field(default_factory=dict)
    """The table [adapt]: how scans are adapted to in an experiment."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """The table [experiment]: what is compared, where and how often."""
    tests: Mapping[str, Any] = field(default_factory=dict)
    """The tables [tests.NAME]: further scans of an experiment to test with, as in [data]."""
    real: Mapping[str, Any] = field(default_factory=dict)
    """The tables [real.preprocessing] and so on: what an experiment has otherwise where a data set is given."""


def bundled_recipes() -> list[str]:
    """Names of the recipes inside the package."""
    folder = resources.files("scantune") / "recipes"
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_recipe(source: str | Path) -> Recipe:
    """Read a recipe from a TOML file, or a bundled one by its name.

    Raises:
        InputError: There is no such recipe, it is not TOML, or it says something unknown.
    """
    return recipe_from_tables(parse_tables(_recipe_text(source), source), source)


def parse_tables(text: str, source: str | Path) -> dict[str, Any]:
    """The tables of a recipe's text.

    Raises:
        InputError: It is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"The recipe {source} is not valid TOML: {error}.") from error


def recipe_from_tables(tables: Mapping[str, Any], source: str | Path) -> Recipe:
    """Make a recipe of its tables.

    Args:
        tables: As TOML gives them.
        source: Where they are from; its stem becomes the recipe's name.

    Raises:
        InputError: They say something unknown.
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
        if not fits(value, hints[name]):
            raise InputError(f"The setting {name} in {where} must be {_described(hints[name])}, got {value!r}.")
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        needed = entry.default is entry.default_factory is dataclasses.MISSING
        if needed and entry.name not in table:
            raise InputError(f"{where} must have the setting {entry.name}: {_described(hints[entry.name])}.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in table.items()})


def text_of(path: Path, what: str) -> str:
    """The text of a file that a user wrote.

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
        return (resources.files("scantune") / "recipes" / f"{source}.toml").read_text(encoding="utf-8")
    raise InputError(f"There is no recipe {source}: neither a file nor a bundled recipe ({', '.join(bundled)}).")


def fits(value: object, hint: Any) -> bool:
    """Whether a value, as TOML or JSON gives it, is of a setting's type."""
    if hint is object:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (dict, Mapping):
        return isinstance(value, dict) and all(fits(entry, get_args(hint)[1]) for entry in value.values())
    if get_origin(hint) is list:
        return isinstance(value, list) and all(fits(entry, get_args(hint)[0]) for entry in value)
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, list | tuple):
            return False
        if kinds[-1] is Ellipsis:
            return all(fits(entry, kinds[0]) for entry in value)
        return len(value) == len(kinds) and all(map(fits, value, kinds))
    if get_args(hint):
        return any(fits(value, option) for option in get_args(hint))
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
        kinds = get_args(hint)
        if kinds[-1] is Ellipsis:
            return f"a list with {_described(kinds[0])} each"
        return f"a list [{', '.join(map(_described, kinds))}]"
    if get_args(hint):
        return " or ".join(_described(option) for option in get_args(hint))
    words = {
        int: "a whole number",
        float: "a number",
        object: "anything",
        bool: "true or false",
        str: "text",
        NoneType: "absent",
    }
    return words.get(hint, str(hint))
