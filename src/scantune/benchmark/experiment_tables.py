"""The tables of an experiment beside those of its recipe: [adapt], [experiment] and its rows."""

from dataclasses import dataclass, field
from typing import Literal

from scantune.adaptation.settings import AdaptSettings
from scantune.config.presets import PRESET_NAMES, Preset
from scantune.errors import InputError
from scantune.methods import METHODS, find_method

OptionValue = bool | int | float | str

SUPERVISED = "supervised"
"""The method of a network that goes on training with labelled scans of the centre it is tested at."""


@dataclass(frozen=True)
class AdaptTable:
    """The table [adapt]: how every row is adapted, unless it says otherwise."""

    preset: Preset = "paper"
    """How steps are taken."""
    guard: bool = False
    """Whether the guard may keep the source prediction; off, so that the methods themselves are seen."""
    paper: dict[str, int] = field(default_factory=dict)
    """Steps and slices per batch of the preset paper: `steps`, `batch`."""
    fast: dict[str, int] = field(default_factory=dict)
    """Steps and slices per batch of the preset fast."""
    converged: dict[str, int] = field(default_factory=dict)
    """Steps and slices per batch of the preset converged."""
    options: dict[str, dict[str, OptionValue]] = field(default_factory=dict)
    """The tables [adapt.options.METHOD]: options of a method."""

    def __post_init__(self) -> None:
        for preset in PRESET_NAMES:
            unknown = set(self.of_preset(preset)) - {"steps", "batch"}
            if unknown:
                raise InputError(f"A preset in [adapt] takes steps and batch, got {', '.join(sorted(unknown))}.")

    def of_preset(self, preset: Preset) -> dict[str, int]:
        """Return the steps and the slices per batch of a preset."""
        numbers: dict[str, int] = getattr(self, preset)
        return numbers

    def settings(self, row: "RowTable", seed: int = 0) -> AdaptSettings:
        """Return how a row is adapted.

        Raises:
            InputError: A setting cannot be used.
        """
        preset = row.preset or self.preset
        numbers = self.of_preset(preset)
        supervised = row.method == SUPERVISED
        return AdaptSettings(
            method="source" if supervised else row.method,
            preset=preset,
            steps=numbers.get("steps") if row.steps is None else row.steps,
            guard=self.guard if row.guard is None else row.guard,
            seed=seed,
            options={} if supervised else {**self.options.get(row.method, {}), **row.options},
            batch=numbers.get("batch"),
        )


@dataclass(frozen=True)
class RowTable:
    """The table [experiment.rows."NAME"]: what one row of the results is."""

    method: str
    """A name of `scantune.methods.METHODS`, or `supervised`; in a file, by default the method of the task."""
    network: Literal["strong", "none"] = "strong"
    """The augmentation that the network was trained with."""
    options: dict[str, OptionValue] = field(default_factory=dict)
    """What differs from [adapt.options.METHOD]."""
    prior: dict[str, OptionValue] = field(default_factory=dict)
    """What differs from [prior]."""
    preset: Preset | None = None
    """By default that of [adapt]; so `steps` and `guard`."""
    steps: int | None = None
    guard: bool | None = None
    at_home: bool = False
    """Whether scans of the training centre are scored, too."""

    def __post_init__(self) -> None:
        if self.method != SUPERVISED:
            find_method(self.method)


STANDARD_ROWS: dict[str, RowTable] = {
    "baseline": RowTable("source", network="none", at_home=True),
    "strong baseline": RowTable("source", at_home=True),
    SUPERVISED: RowTable(SUPERVISED),
    **{name: RowTable(name) for name in METHODS if name != "source"},
}
"""The rows that need no table of their own."""


@dataclass(frozen=True)
class ExperimentTable:
    """The table [experiment]: what is compared, where and how often."""

    methods: tuple[str, ...]
    """Names of rows: those of `STANDARD_ROWS`, and those that have a table [experiment.rows."NAME"]."""
    centres: tuple[str, ...] = ()
    """By default every centre that has scans to test with."""
    seeds: tuple[int, ...] = (0,)
    """Training runs: a seed decides everything random about a network and what is done with it."""
    count: int | None = None
    """People per centre; by default all."""
    score: str = "mean"
    """The structure that tables show: one of the labels, their `mean`, or `whole`, all of them as one."""
    watch: tuple[int, ...] = ()
    """Steps of every run at which the Dice is noted in its trace."""
    keep: int = 0
    """People per centre whose scans are kept with their results, to be looked at."""
    tier: str | int = ""
    """How much of the experiment this is; a column of the rows."""
    models: dict[str, str] = field(default_factory=dict)
    """Model files to use instead of training networks: `strong`, `none`."""
    rows: dict[str, dict[str, OptionValue | dict[str, OptionValue]]] = field(default_factory=dict)
    """Rows beside the usual ones."""

    def __post_init__(self) -> None:
        unknown = set(self.models) - {"strong", "none"}
        if unknown:
            raise InputError(f"The models in [experiment] are strong and none, got {', '.join(sorted(unknown))}.")
