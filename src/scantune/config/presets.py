"""Presets of an adaptation: their names, and steps and slices per batch that a recipe or a model gives them.

Nothing heavy is imported here, so the command line can show its help at once.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from scantune.config.settings import require_positive, settings_from_table

Preset = Literal["fast", "paper", "converged"]
"""How steps are taken: few exact steps, those of the paper, or tens of exact steps that get as far as the paper's."""

PRESET_NAMES: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class PresetNumbers:
    """Numbers of a preset that suit a data set."""

    steps: int | None = None
    """Number of steps. By default that of the preset."""
    batch: int | None = None
    """Slices at a time. By default the number of the preset."""

    def __post_init__(self) -> None:
        require_positive(self, "steps", "batch")

    def record(self) -> dict[str, int]:
        """Return the numbers that are set, as JSON."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_presets(table: Mapping[str, Any], where: str) -> dict[Preset, PresetNumbers]:
    """Read the numbers of each preset in a table [adapt], or in the record of a model.

    Args:
        table: The table. Entries that are no presets are left to others.
        where: What it is, for messages.

    Raises:
        InputError: A number is unknown, or cannot be used.
    """
    given = {preset: table[preset] for preset in PRESET_NAMES if preset in table}
    return {
        preset: settings_from_table(PresetNumbers, numbers, f"{preset} of {where}") for preset, numbers in given.items()
    }
