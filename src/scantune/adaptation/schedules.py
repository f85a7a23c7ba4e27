"""Schedules: how steps are taken by each preset, and by the methods that quasi-Newton steps do not suit."""

from collections.abc import Mapping
from dataclasses import replace

from scantune.adaptation.loop import Schedule
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.adaptation.settings import AdaptSettings
from scantune.adaptation.solvers import LBFGS, Adam, Bounded
from scantune.config.presets import Preset, PresetNumbers
from scantune.errors import InputError
from scantune.methods import Method

PRESETS: dict[Preset, Schedule] = {
    "fast": Schedule(WholeVolume(), LBFGS(), steps=12),
    "paper": Schedule(RandomSlices(), Adam(), steps=1000),
    "converged": Schedule(WholeVolume(), Bounded(), steps=60),
}
"""`paper` is the paper's recipe, with the exact expectation over subjects; `fast` solves the same objective sooner, and
`converged` about as far as `paper` does.

With the guard, `fast` leaves fine scans alone and rescues the others if the prior has home readings. If it has none,
`fast` takes the best step on the way and ends when steps no longer get better. The other presets go to their end, and
the guard keeps that or the source prediction.
"""

OWN: dict[str, Schedule] = {
    "entropy": Schedule(WholeVolume(), Adam(), steps=48, rate=3e-4),
    "dae": Schedule(WholeVolume(), Adam(), steps=50, rate=1e-3),
    "ae": Schedule(WholeVolume(), Adam(), steps=48, rate=1e-4),
}
"""What the presets other than `paper` are for these methods. The lowest objective of one of them is no good prediction,
so that a solver that finds it soon does harm (docs/methods.md)."""

UNSTEADY = Schedule(WholeVolume(), Adam(), steps=50)
"""What the presets other than `paper` are for methods whose objective changes during a run."""


def schedule_of(
    method: Method, settings: AdaptSettings, of_model: Mapping[Preset, PresetNumbers] | None = None
) -> Schedule:
    """Return how a method runs.

    Args:
        method: The method.
        settings: The preset, and the steps, batch and learning rate that were set.
        of_model: Steps and batch of presets that a model gives, for its kind of scans.

    Raises:
        InputError: The method's options do not go with the preset.
    """
    schedule = _of_preset(method, settings.preset)
    if method.options.update == "batch":
        schedule = replace(schedule, sampling=_updated_by_batch(schedule, settings.preset))
    numbers = (of_model or {}).get(settings.preset, PresetNumbers())
    steps = settings.steps if settings.steps is not None else numbers.steps
    batch = settings.batch if settings.batch is not None else numbers.batch
    if batch is not None:
        schedule = replace(schedule, sampling=schedule.sampling.of_batch(batch))
    if "learning_rate" in settings.options:
        schedule = replace(schedule, rate=None)
    return schedule if steps is None else replace(schedule, steps=steps)


def _of_preset(method: Method, preset: Preset) -> Schedule:
    if preset == "paper":
        return PRESETS[preset]
    if method.name in OWN:
        return OWN[method.name]
    return PRESETS[preset] if method.steady else UNSTEADY


def _updated_by_batch(schedule: Schedule, preset: Preset) -> RandomSlices:
    """Return a sampling that moves the parameters after each batch."""
    if not isinstance(schedule.sampling, RandomSlices):
        raise InputError(
            f"The option update=batch needs preset paper, which draws batches, but the preset is {preset}. Choose "
            "preset paper, or leave the option out."
        )
    return replace(schedule.sampling, update="batch")
