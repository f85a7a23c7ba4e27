"""Adapt: one network, one scan, a method; the adapted copy, its prediction and the guard's decision."""

import sys
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from scantune.devices import find_device
from scantune.errors import InputError
from scantune.experts import Recorder
from scantune.guard import Decision, Guard, judge
from scantune.methods import METHODS, Equipment, Method
from scantune.modelfile import Model
from scantune.networks import AdaptableNetwork
from scantune.optimise import Brakes, Course, OnStep, Schedule, optimise
from scantune.preprocess import Prepared
from scantune.prior import MINIMUM_ACTIVE, FieldOfExperts
from scantune.results import Result, Survey
from scantune.sampling import RandomSlices, Volume, WholeVolume
from scantune.scans import Case, read_scan
from scantune.solvers import LBFGS, Adam
from scantune.tasks import Segmentation

PRESETS: dict[str, Schedule] = {
    "fast": Schedule(WholeVolume(), LBFGS(), steps=12),
    "paper": Schedule(RandomSlices(), Adam(), steps=1000),
}
"""`paper` is the paper's recipe, with the exact expectation over subjects; `fast` solves the same objective sooner.

With a calibrated prior, `fast` stops where the scan is as typical as a source subject, or where the prediction strays.
"""


@dataclass(frozen=True)
class Patient:
    """The input of a run, ready for the network, and where it came from."""

    volume: Volume
    prepared: Prepared | None = None
    case: Case | None = None


def adapt(
    network: nn.Module | Model,
    scan: Tensor | Case | str | Path,
    prior: FieldOfExperts | None = None,
    method: str | type[Method] = "foe-cnn-pca",
    preset: str = "fast",
    steps: int | None = None,
    guard: bool = True,
    device: str | torch.device = "auto",
    seed: int = 0,
    *,
    mask: Tensor | None = None,
    on_step: OnStep | None = None,
) -> Result:
    """Adapts a network to one scan, without labels and without training images.

    Args:
        network: A model (from `scantune.load`), or any PyTorch network; it is left untouched. A plain network gets an
            identity-initialised normaliser in front.
        scan: A path, a `Case`, or a tensor `(slices, channels, *spatial)` that is already as the network expects it.
            Paths and cases need a model, whose record says how to prepare them.
        prior: The Field of Experts; by default the model's own.
        method: A name of `scantune.methods.METHODS`, or a class of your own.
        preset: `fast` or `paper`.
        steps: Number of steps; by default the preset's.
        guard: Whether a result that must be harmful is rolled back to the source prediction.
        device: `auto`, `cpu`, `cuda`, ...
        seed: Fixes every random choice.
        mask: True where a tensor scan is padding, `(slices, 1, *spatial)`.
        on_step: Called after each step with its number and the number of steps.
    """
    started = time.perf_counter()
    where = find_device(str(device))
    kind, schedule = _method(method), _schedule(preset, steps)
    patient = _patient(network, scan, mask)
    volume = patient.volume.to(where)
    source, task = _source(network, volume, where, seed)
    prior = prior if prior is not None else (network.prior if isinstance(network, Model) else None)
    if prior is not None:
        prior.require_fit(source)
        prior = prior.to(where)
    runner = kind(Equipment(task, prior))
    before = survey(source, volume, task, prior)
    working = deepcopy(source).requires_grad_(False)
    brakes = _brakes(before, prior, working, volume) if guard and preset == "fast" else Brakes()
    if before.energy is not None and before.energy <= brakes.level:
        schedule = replace(schedule, steps=0)
    course = optimise(working, runner, volume, schedule, runner.learning_rate, seed, on_step, brakes)
    adapted = deepcopy(source)
    adapted.load_state_dict(course.state, strict=False)
    after = survey(adapted, volume, task, prior) if course.state else before
    decision = _decide(course, before, after, brakes) if guard else Decision("kept", "the guard was switched off.")
    if decision.action != "kept":
        adapted, after = source, before
    facts = {"method": runner.name, "preset": preset, "seed": seed, "device": str(where), **_facts(course, started)}
    labels = network.labels if isinstance(network, Model) else {}
    return Result(adapted, before, after, course.trace, decision, patient.case, patient.prepared, labels, facts)


@torch.no_grad()
def survey(
    network: nn.Module, volume: Volume, task: Segmentation, prior: FieldOfExperts | None, batch: int = 4
) -> Survey:
    """Predicts a whole volume and takes its energies, in one pass."""
    probabilities: list[Tensor] = []
    total: dict[str, Tensor] = {}
    with Recorder(network, [] if prior is None else prior.layers()) as record:
        for images, padding in volume.batches(batch):
            recording = record(images)
            probabilities.append(task.probabilities(recording.output).float().cpu())
            if prior is not None:
                for key, value in prior.measure(recording, padding).items():
                    total[key] = total.get(key, 0) + value.double()
    energies = {} if prior is None else prior.energies({k: v for k, v in total.items() if _enough(k, v)})
    return Survey(
        torch.cat(probabilities),
        task,
        {name: {group: float(value) for group, value in groups.items()} for name, groups in energies.items()},
    )


def _enough(group: str, statistics: Tensor) -> bool:
    """Whether a group's statistics are of enough samples to speak of a density."""
    return not group.startswith("pca/") or float(statistics[0, 0]) >= MINIMUM_ACTIVE


def _facts(course: Course, started: float) -> dict[str, Any]:
    """How the loop went, and how long everything took."""
    steps = max(len(course.trace) - 1, 0)
    return {"steps": steps, "best_step": course.best, "seconds": time.perf_counter() - started}


def _method(method: str | type[Method]) -> type[Method]:
    if isinstance(method, str):
        if method not in METHODS:
            raise InputError(f"Unknown method {method!r}. Available: {', '.join(METHODS)}.")
        return METHODS[method]
    return method


def _schedule(preset: str, steps: int | None) -> Schedule:
    if preset not in PRESETS:
        raise InputError(f"Unknown preset {preset!r}. Available: {', '.join(PRESETS)}.")
    if steps is None:
        return PRESETS[preset]
    if steps < 0:
        raise InputError(f"steps must be 0 or more, got {steps}.")
    return replace(PRESETS[preset], steps=steps)


def _patient(network: nn.Module | Model, scan: Any, mask: Tensor | None) -> Patient:
    if isinstance(scan, Tensor):
        if scan.ndim not in (4, 5) or not scan.numel():
            raise InputError(
                f"The volume has shape {tuple(scan.shape)}, expected (slices, channels, height, width), or "
                "(1, channels, depth, height, width) for a 3D network."
            )
        if not torch.isfinite(scan).all():
            raise InputError("The volume holds NaN or infinite values; repair it before adapting to it.")
        return Patient(Volume(scan.float(), mask))
    if not isinstance(network, Model):
        raise InputError(
            "A scan given as a file needs a model that says how to prepare it (scantune.load); a plain network takes a "
            "tensor (slices, channels, height, width)."
        )
    case = scan if isinstance(scan, Case) else read_scan(scan)
    prepared = network.preprocessing.apply(case)
    return Patient(Volume(prepared.volume, prepared.padding), prepared, case)


def _source(
    network: nn.Module | Model, volume: Volume, device: torch.device, seed: int
) -> tuple[AdaptableNetwork, Segmentation]:
    """A copy of the network in evaluation mode, with a normaliser in front, and the reading of its output."""
    plain = network.network if isinstance(network, Model) else network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        source = AdaptableNetwork.around(deepcopy(plain)).to(device).eval()
    if isinstance(network, Model):
        return source, network.task
    return source, Segmentation.detect(source, volume.images[:1])


def _brakes(before: Survey, prior: FieldOfExperts | None, network: AdaptableNetwork, volume: Volume) -> Brakes:
    """Where to stop, from what the prior knows of source subjects; nowhere if it is not calibrated."""
    if prior is None or prior.calibration is None:
        return Brakes()
    judged = Guard(before.prediction, before.structures, prior.calibration)
    return Brakes(
        prior.calibration.typical,
        lambda energy: judged.verdict(survey(network, volume, before.task, None).prediction, energy),
    )


def _decide(course: Course, before: Survey, after: Survey, brakes: Brakes) -> Decision:
    if not course.moving:
        return Decision("skipped", "the method moves nothing.")
    if before.energy is not None and before.energy <= brakes.level:
        reason = (
            f"the scan is as typical as source subjects: energy {before.energy:.4g}, theirs up to {brakes.level:.4g}."
        )
        return Decision("skipped", reason)
    if not course.trace:
        return Decision("skipped", "no step was asked for.")
    return judge(course.start, course.end, before.prediction, after.prediction)


class _Verb(ModuleType):
    """This module, callable: `scantune.adapt` is both the verb and the file that holds it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Result:
        return adapt(*args, **kwargs)


sys.modules[__name__].__class__ = _Verb
