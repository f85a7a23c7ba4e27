"""Adapt: one network, one scan, a method; the adapted copy, its prediction and the guard's decision."""

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.base import Decision
from scantune.adaptation.guarded_run import decide, predict, run, watch
from scantune.adaptation.input import AdaptationInput, BrainMask
from scantune.adaptation.loop import Course, OnStep, Schedule
from scantune.adaptation.result import Prediction, Result
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.adaptation.settings import AdaptSettings, Preset, Stop
from scantune.adaptation.solvers import LBFGS, Adam, Bounded
from scantune.errors import InputError
from scantune.methods import Method, ModelParts
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork, Helper, set_memory_layout
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.runtime.devices import find_device
from scantune.scans.case import Case
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation, Task

UNSTEADY = Schedule(WholeVolume(), Adam(), steps=50)
"""What the other presets than `paper` are for methods whose objective changes during a run."""

PRESETS: dict[Preset, Schedule] = {
    "fast": Schedule(WholeVolume(), LBFGS(), steps=12),
    "paper": Schedule(RandomSlices(), Adam(), steps=1000),
    "converged": Schedule(WholeVolume(), Bounded(), steps=60),
}
"""`paper` is the paper's recipe, with the exact expectation over subjects; `fast` solves the same objective sooner, and
`converged` about as far as `paper` does.

With the guard, `fast` takes the best step on the way, and ends where steps no longer get better; the others go to their
end, and the guard keeps that or the source.
"""


def adapt(
    network: nn.Module | Model,
    scan: Tensor | Case | str | Path,
    prior: FieldOfExperts | None = None,
    method: str | type[Method] | None = None,
    preset: Preset = "fast",
    steps: int | None = None,
    guard: bool = True,
    device: str | torch.device = "auto",
    seed: int = 0,
    *,
    stop: Stop = "stable",
    helpers: Mapping[str, Helper] | None = None,
    options: Mapping[str, Any] | None = None,
    batch: int | None = None,
    mask: Tensor | None = None,
    brain_mask: BrainMask | None = None,
    on_step: OnStep | None = None,
    warm: Mapping[str, Tensor] | None = None,
) -> Result:
    """Adapts a network to one scan, without labels and without training images.

    Args:
        network: A model (from `scantune.load`), or any PyTorch network; it is left untouched. A plain network gets an
            identity-initialised normaliser in front.
        scan: A path, a `Case`, or a tensor `(slices, channels, *spatial)` that is already as the network expects it.
            Paths and cases need a model, whose record says how to prepare them.
        prior: The Field of Experts; by default the model's own.
        method: A name of `scantune.methods.METHODS`, or a class of your own; by default the task's own: `foe-cnn-pca`
            for segmentation, `instance` for registration.
        preset: `fast`, `paper` or `converged`.
        steps: Number of steps; by default the preset's.
        guard: Whether the best step on the way is looked for, and the source prediction kept where there is none.
        device: `auto`, `cpu`, `cuda`, ...
        seed: Fixes every random choice.
        stop: With the guard and preset `fast`, when a run ends before its last step: `stable`, where predictions no
            longer get better by the guard's measure; `typical`, also where the scan is as typical as a source subject;
            `never`.
        helpers: Helper networks by the name of the method they serve; by default the model's own.
        options: What differs from the defaults of the method's `Options`, by name, such as `{"moving": "norm-affine"}`.
        batch: Slices at a time; by default the preset's. With `paper`, which draws them, results depend on it.
        mask: True where a tensor scan is padding, `(slices, 1, *spatial)`.
        brain_mask: Above 0 where a scan given as a file or `Case` is kept, which is set to 0 elsewhere before anything
            else is done to it: a file, a `Case`, or an array `(x, y, z)` on the scan's grid.
        on_step: Called after each step with its number and the number of steps.
        warm: Where a run starts, parameters by name, such as those that another scan of the site ended with.
    """
    started = time.perf_counter()
    settings = AdaptSettings(method, preset, steps, guard, str(device), seed, options or {}, stop, batch=batch)
    where = find_device(settings.device)
    patient = AdaptationInput.of(network, scan, mask, brain_mask)
    volume = patient.volume.to(where)
    source, task = _source(network, volume, where, seed)
    if isinstance(network, Model):
        prior = prior if prior is not None else network.prior
        helpers = helpers if helpers is not None else network.helpers
    if prior is not None:
        prior.require_fit(source)
        prior = prior.to(where)
    runner = settings.make_method(ModelParts(task, prior, helpers or {}))
    schedule = _schedule(runner, settings)
    before = predict(source, volume, task, prior)
    _require_sense(before, prior)
    watched = watch(source, volume, before, prior, stop) if guard else None
    done = run(runner, source, volume, schedule, watched if preset == "fast" else None, seed, on_step, warm)
    decision = Decision("kept", "the guard was switched off.") if watched is None else decide(done, watched)
    adapted, after, state = source, before, {}
    if decision.action == "kept" and done.course.state:
        adapted, state = done.network, done.course.state if runner.serves_site else {}
        after = predict(adapted, volume, task, prior)
    set_memory_layout(adapted, "channels first")
    facts = {
        "method": runner.name,
        "options": asdict(runner.options),
        "preset": preset,
        "seed": seed,
        "device": str(where),
        **_facts(done.course, started),
        **_levels(prior),
        **_calibrated(prior, before, after),
        "remarks": [*patient.remarks(network), *_coverage(prior, volume)],
        **patient.told,
        "guard": decision.numbers,
    }
    labels = network.labels if isinstance(network, Model) else {}
    trace = done.course.trace
    return Result(adapted, before, after, trace, decision, patient.case, patient.prepared, labels, facts, state)


def _require_sense(before: Prediction, prior: FieldOfExperts | None) -> None:
    """Check that the source network has an answer to the scan, of the structures that the calibration knows."""
    if not torch.isfinite(before.probabilities).all():
        raise InputError(
            "The network's output for this scan is not finite before any adaptation: its weights are damaged, or the "
            "scan is not as it expects. Check the scan's preprocessing, or copy or train the model again."
        )
    known = None if prior is None else prior.calibration
    if known is not None and len(known.shares) != before.structures:
        raise InputError(
            f"The prior's calibration knows {len(known.shares)} structures, the network tells {before.structures} "
            "apart; fit the prior anew on this network."
        )


def _facts(course: Course, started: float) -> dict[str, Any]:
    """How the loop went, and how long everything took."""
    steps = max(len(course.trace) - 1, 0)
    return {"steps": steps, "best_step": course.best, "seconds": time.perf_counter() - started}


def _levels(prior: FieldOfExperts | None) -> dict[str, Any]:
    """What energies are to be compared with: the least possible one, and the highest typical of source subjects."""
    if prior is None:
        return {}
    typical = {} if prior.calibration is None else {"energy_typical": prior.calibration.typical}
    return {"energy_floor": prior.floor(), **typical}


def _coverage(prior: FieldOfExperts | None, volume: Volume) -> list[str]:
    """What a calibrated prior remarks on the extent of the scan."""
    known = None if prior is None or prior.calibration is None else prior.calibration.coverage
    return [] if known is None else known.remarks(len(volume.images), volume.padding)


def _calibrated(prior: FieldOfExperts | None, before: Prediction, after: Prediction) -> dict[str, Any]:
    """How a calibrated prior reads the scan, before and after."""
    known = None if prior is None else prior.calibration
    if known is None or before.energy is None or after.energy is None:
        return {}
    return {
        "reading_before": known.reading(before.energy),
        "reading_after": known.reading(after.energy),
        "readings_before": known.readings(before.energies),
    }


def _schedule(method: Method, settings: AdaptSettings) -> Schedule:
    """Return the schedule of the preset, with the steps and the batch that were set."""
    schedule = PRESETS[settings.preset] if settings.preset == "paper" or method.steady else UNSTEADY
    if settings.batch is not None:
        schedule = replace(schedule, sampling=schedule.sampling.of_batch(settings.batch))
    return schedule if settings.steps is None else replace(schedule, steps=settings.steps)


def _source(
    network: nn.Module | Model, volume: Volume, device: torch.device, seed: int
) -> tuple[AdaptableNetwork, Task]:
    """A copy of the network in evaluation mode, with a normaliser in front, and the reading of its output."""
    plain = network.network if isinstance(network, Model) else network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = AdaptableNetwork.around(deepcopy(plain)).to(device).eval()
    set_memory_layout(source, "channels last")
    if not _runs(source, volume.images[:1]):
        set_memory_layout(source, "channels first")
    if isinstance(network, Model):
        return source, network.task
    return source, Segmentation.detect(source, volume.images[:1])


@torch.no_grad()
def _runs(network: nn.Module, images: Tensor) -> bool:
    """Whether a network takes features as they lie in memory; a `view` of them may not."""
    try:
        network(images)
    except RuntimeError:
        return False
    return True
