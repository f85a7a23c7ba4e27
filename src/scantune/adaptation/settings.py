"""Settings of an adaptation, the same for the Python functions, the command line, runs over many scans and experiments.

Nothing heavy is imported at the top, so that the command line can read the defaults at once.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from scantune.config.presets import PRESET_NAMES, Preset
from scantune.config.settings import require_seed
from scantune.errors import InputError

if TYPE_CHECKING:
    from scantune.methods import Method, ModelParts
    from scantune.tasks import Task

Stop = Literal["stable", "typical", "never"]
"""When a run of preset `fast` under the guard ends before its last step: where predictions no longer become more
stable; or, if that comes first, where the scan has become as typical as a source subject; or never."""


@dataclass(frozen=True)
class AdaptSettings:
    """How to adapt.

    Raises:
        InputError: A value cannot be used, whatever the scan and the model are.
    """

    method: "str | type[Method] | None" = None
    """A name of `scantune.methods.METHODS`, or a class. By default the method of the model's task."""
    preset: Preset = "fast"
    steps: int | None = None
    """Number of steps. By default that of the model for the preset, or of the preset."""
    guard: bool | None = None
    """Whether the guard looks for the best step, and keeps the source prediction if no step is better. By default it
    does, but not with preset `paper`, as the paper has no guard."""
    device: str = "auto"
    seed: int = 0
    """Fixes every random choice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method that differ from its defaults, by name."""
    stop: Stop = "stable"
    site: bool = False
    """Whether the scans of a run are of one site, so that each starts where the last good adaptation ended."""
    batch: int | None = None
    """Slices at a time. By default the number of the model for the preset, or of the preset."""

    def __post_init__(self) -> None:
        for name, value, known in (("preset", self.preset, PRESET_NAMES), ("stop", self.stop, get_args(Stop))):
            if value not in known:
                raise InputError(f"Unknown {name} {value!r}. Available: {', '.join(known)}.")
        for name, number, least in (("steps", self.steps, 0), ("batch", self.batch, 1)):
            if number is not None and number < least:
                raise InputError(f"The setting {name} must be {least} or more, got {number}.")
        require_seed(self.seed)
        if self.site and not self.guarded:
            raise InputError(
                "A site needs the guard, which decides where the next scan starts, but the guard is off. Leave out "
                "site, or switch the guard on."
            )

    @property
    def guarded(self) -> bool:
        """Return whether the guard judges the adaptation."""
        return self.preset != "paper" if self.guard is None else self.guard

    def make_method(self, parts: "ModelParts") -> "Method":
        """Return the method, ready to adapt a network.

        Args:
            parts: What the method may use.

        Raises:
            InputError: There is no such method, it has no such option, or it needs something that is missing.
        """
        from scantune.methods import find_method

        method = self.method or parts.task.method
        return (find_method(method) if isinstance(method, str) else method)(parts, self.options)

    def with_method(self, task: "Task") -> "AdaptSettings":
        """Return the settings with the name of the method, which by default is that of the task."""
        return self if self.method else replace(self, method=task.method)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the settings as arguments of `scantune.adapt`."""
        return {name: value for name, value in asdict(self).items() if name != "site"}

    @property
    def record(self) -> dict[str, Any]:
        """Return the settings for a manifest. It has a batch only if one was set, as in manifests of version 0.1."""
        record = {**asdict(self), "guard": self.guarded}
        return {name: value for name, value in record.items() if name != "batch" or value is not None}

    @property
    def deciding(self) -> dict[str, Any]:
        """Return the settings that decide the result, which are all but the device."""
        return {name: value for name, value in self.record.items() if name != "device"}
