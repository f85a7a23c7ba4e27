"""Settings as dataclasses: each serves as a Python argument, as flags and as a table of a recipe.

Nothing heavy is imported here, so the command line can show its help at once.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from scantune.errors import InputError

SettingsT = TypeVar("SettingsT")

MAX_CLASSES, MAX_CHANNELS = 256, 1024

_LARGEST = 2**63 - 1  # the largest whole number of torch and numpy


def require_seed(seed: int) -> None:
    """Check that a number can be a seed.

    Raises:
        InputError: It is negative or too large.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"The setting seed must be {'0 or more' if seed < 0 else 'below 2^63'}, got {seed}.")


def require_positive(settings: object, *names: str) -> None:
    """Check that settings are above 0, if they are set.

    Raises:
        InputError: One of them is 0 or below.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise InputError(f"The setting {name} must be above 0, got {value}.")


def require_network(classes: int, width: int) -> None:
    """Check that a network can have so many classes, and channels on its first level.

    Raises:
        InputError: It cannot, as label maps hold 256 values, and the last level is eight times as wide as the first.
    """
    if not (2 <= classes <= MAX_CLASSES and 1 <= width <= MAX_CHANNELS):
        raise InputError(
            f"The network needs 2 to {MAX_CLASSES} classes and a width of 1 to {MAX_CHANNELS}, got {classes} and "
            f"{width}."
        )


@dataclass(frozen=True)
class TrainingRunSettings:
    """Settings that every kind of training has."""

    iterations: int
    """Steps of the optimiser."""
    learning_rate: float
    """Adam's learning rate, constant."""
    validate_every: int = 1000
    """Steps between two validations; the best network of all validations is kept."""
    checkpoint_every: int = 1000
    """Steps between two checkpoints, from which an interrupted run resumes."""
    seed: int = 0
    """Decides everything random."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes the network in half precision (weights and loss stay float32), for speed on a GPU."""

    def __post_init__(self) -> None:
        require_positive(self, "iterations", "learning_rate", "validate_every", "checkpoint_every")
        require_seed(self.seed)


@dataclass(frozen=True)
class TrainSettings(TrainingRunSettings):
    """Settings of a network's training; the defaults are the paper's strong baseline."""

    iterations: int = 30_000
    """Steps of the optimiser."""
    learning_rate: float = 1e-3
    """Adam's learning rate, constant."""
    batch: int = 16
    """Slices per step."""
    augment: Literal["strong", "none"] = "strong"
    """Stacked augmentation (the strong baseline), or none (the baseline)."""
    device: str = "auto"
    """auto takes a GPU if there is one; or cpu, cuda, cuda:1."""
    compile: bool = False
    """Compile network, loss and augmentation with torch.compile, instead of replaying recorded steps on a GPU; it takes
    a minute to begin, and may pay off in long runs of a network of your own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "batch")


FINE_TUNING = TrainSettings(iterations=5000, learning_rate=1e-4)
"""The paper's benchmark: fine-tuning of a trained network on labelled scans of another site."""


@dataclass(frozen=True)
class PriorSettings:
    """Settings of a prior; the defaults are the paper's."""

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


def settings_from_table(kind: type[SettingsT], table: Mapping[str, Any], where: str) -> SettingsT:
    """Make a settings dataclass from a table, refusing unknown names, missing ones and wrong types.

    Args:
        kind: The settings dataclass.
        table: Names and values from TOML or JSON.
        where: Name of the table, for messages.

    Raises:
        InputError: A name is unknown or missing, or a value has the wrong type or lies out of range.
    """
    hints = get_type_hints(kind)
    for name, value in table.items():
        if name not in hints:
            raise InputError(f"Unknown setting {name!r} in {where}; known: {', '.join(hints)}.")
        if not fits(value, hints[name]):
            raise InputError(f"The setting {name} in {where} must be {_described(hints[name])}, got {value!r}.")
        if _is_beyond(value):
            raise InputError(f"The setting {name} in {where} must hold numbers below 2^63, got {str(value)[:60]}.")
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        needed = entry.default is entry.default_factory is dataclasses.MISSING
        if needed and entry.name not in table:
            raise InputError(f"{where} must have the setting {entry.name}: {_described(hints[entry.name])}.")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in table.items()})


def _is_beyond(value: object) -> bool:
    """Return whether a value holds a whole number that is too large for torch and numpy."""
    if isinstance(value, Mapping):
        return any(map(_is_beyond, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_is_beyond, value))
    return isinstance(value, int) and abs(value) > _LARGEST


def fits(value: object, hint: Any) -> bool:
    """Return whether a value from TOML or JSON has the type of a setting."""
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
