"""Adapt: one network, one scan, a method; the adapted copy, its prediction and the guard's decision."""

import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.rescue import Rescue
from scantune.adaptation.input import AnyScanFiles, BrainMask, ScanInput, volume_of
from scantune.adaptation.loop import OnStep, objective_at, optimise
from scantune.adaptation.prediction import Prediction, predict
from scantune.adaptation.result import Result
from scantune.adaptation.scan_guard import ScanGuard, Unguarded, guard_scan
from scantune.adaptation.scan_warnings import scan_warnings
from scantune.adaptation.schedules import schedule_of
from scantune.adaptation.settings import AdaptSettings, Stop
from scantune.adaptation.source import asked_task, eager_part, source_network, working_copy
from scantune.config.presets import Preset
from scantune.errors import InputError
from scantune.methods import Method, ModelParts, find_method
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork, Helper, Inversion, set_memory_layout
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.prior.fit import output_of
from scantune.prior.prediction_reader import PredictionReader
from scantune.runtime.devices import find_device
from scantune.scans.case import Case
from scantune.tasks import OutputChoice, Segmentation, Task

INVERTED = "The steps of the adaptation started from the scan with its contrast inverted."


def adapt(
    network: nn.Module | Model,
    scan: Tensor | Case | AnyScanFiles,
    prior: FieldOfExperts | None = None,
    method: str | type[Method] | None = None,
    preset: Preset = "fast",
    steps: int | None = None,
    guard: bool | None = None,
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
    task: Task | None = None,
    output: OutputChoice = None,
) -> Result:
    """Adapt a network to one scan, without labels and without training images.

    Args:
        network: A model (from `scantune.load`), or any PyTorch network; it is left untouched. A plain network gets an
            identity-initialised normaliser in front.
        scan: A path, one path per channel, an image of nibabel or SimpleITK, a `Case`, or a tensor
            `(slices, channels, *spatial)` that is already as the network expects it. All but tensors need a model,
            whose backend prepares them. If that takes several channels, a single path is a NIfTI file with as many
            volumes, or any of the files in nnU-Net's numbering.
        prior: The Field of Experts; by default the model's own.
        method: A name of `scantune.methods.METHODS`, or a class of your own; by default the task's own: `foe-cnn-pca`
            for segmentation, `instance` for registration.
        preset: `fast`, `paper` or `converged`.
        steps: Number of steps; by default the model's for the preset, or the preset's.
        guard: Whether the adaptation is judged; by default it is, but not with preset `paper`. A prior with home
            readings assesses the source prediction: with preset `fast` it is left alone if it is fine, and otherwise
            adapted to convergence and replaced by the best stage. Without home readings the steadiest step is kept,
            or the source prediction.
        device: `auto`, `cpu`, `cuda`, ...
        seed: Fixes every random choice.
        stop: When a run with the guard and preset `fast`, but without home readings, ends before its last step:
            `stable`, when predictions no longer get better by the guard's measure; `typical`, also when the scan is as
            typical as a source subject; `never`.
        helpers: Helper networks by the name of the method they serve; by default the model's own.
        options: What differs from the defaults of the method's `Options`, by name, such as `{"moving": "norm-affine"}`.
        batch: Slices at a time; by default the model's for the preset, or the preset's. With `paper`, which draws
            them, results depend on it.
        mask: True where a tensor scan is padding, `(slices, 1, *spatial)`.
        brain_mask: Above 0 where a scan given as a file or `Case` is kept, which is set to 0 elsewhere before anything
            else is done to it: a file, a `Case`, or an array `(x, y, z)` on the scan's grid.
        on_step: Called after each step with its number and the number of steps.
        warm: Where a run starts, parameters by name, such as those that another scan of the site ended with.
        task: How the network's output is read; by default as the model says, or as the prior was fitted, or as the
            output looks. `Segmentation(overlapping=True)` is for structures that may overlap.
        output: Where the class scores are in the network's output: a key, an index or a function of it. By default what
            the task says, or a tensor, the first of a tuple, or `out`, `logits` or `pred` of a dictionary.
    """
    started = time.perf_counter()
    settings = AdaptSettings(method, preset, steps, guard, str(device), seed, options or {}, stop, batch=batch)
    where = find_device(settings.device)
    if isinstance(settings.method, str):
        find_method(settings.method)  # refuses an unknown name before the scan is read
    if isinstance(network, Model):
        prior = prior if prior is not None else network.prior
        helpers = helpers if helpers is not None else network.helpers
    plain = eager_part(network)
    if isinstance(scan, Tensor):
        given = ScanInput.of_tensor(volume_of(scan, mask, brain_mask), None if prior is None else prior.window)
    else:
        model = _require_model(network)
        if prior is not None:
            prior.require_window(model.backend.window)
        given = ScanInput.of_files(scan, model, brain_mask)
    asked = asked_task(network, prior, task, output)
    choice = output_of(asked, output)
    given = given.to(where)
    source = source_network(plain, given.volume, where, seed)
    given = given.padded_for(source, choice)
    volume, case = given.volume, given.case
    task = asked or Segmentation.detect(source, volume.images[:1], output=output)
    if prior is not None:
        prior.require_fit(source)
        prior = prior.to(where)
    runner = settings.make_method(ModelParts(task, prior, helpers or {}))
    schedule = schedule_of(runner, settings, network.presets if isinstance(network, Model) else None)

    seen = predict(source, volume, task, prior)
    _require_usable(seen, prior)
    judge = _judge(settings, network, source, given, seen, prior)
    adapted = runner.equip(deepcopy(source), volume)
    adapted.load_state_dict(warm or {}, strict=False)
    start = None if warm else judge.start(source, volume)
    adapted.curve = start or adapted.curve
    working = working_copy(adapted, volume, choice)
    at_source = not warm and runner.starts_at_source
    schedule, part = judge.plan(schedule, volume, settings.steps)
    rule = judge.stop_rule(working, runner, schedule.steps, at_source)
    trajectory = optimise(working, runner, part, schedule, seed, on_step, rule)
    origin = trajectory.start
    if trajectory.trace and not at_source:
        bare = deepcopy(source).requires_grad_(False)
        origin = objective_at(bare, runner, volume, schedule.sampling, seed)
    decision = judge.decide(adapted, trajectory, origin)

    before = given.whole(source, seen)
    readings = given.readings(source, task, "_before")
    after, state = before, {}
    if decision.keeps_adapted and trajectory.state:
        state = trajectory.state if runner.serves_site and start is None else {}
        after = given.whole(adapted, predict(adapted, volume, task, prior))
        readings |= given.readings(adapted, task)
    else:
        adapted = source
    set_memory_layout(adapted, "channels first")
    warnings = scan_warnings(network, given, prior, before, after, str(decision.assessment.get("verdict", "")))
    decision = decision.cautioned(warnings)
    facts = {
        "method": runner.name,
        "objective": runner.objective,
        "options": asdict(runner.options),
        "preset": preset,
        "seed": seed,
        "device": str(where),
        "steps": max(len(trajectory.trace) - 1, 0),
        "best_step": trajectory.best,
        "seconds": time.perf_counter() - started,
        **_prior_facts(prior, before, after),
        **readings,
        **decision.assessment,
        **({"adapted_kept": True} if decision.action == "unsolved" and decision.keeps_adapted else {}),
        "warnings": warnings,
        "remarks": [*task.remarks, *given.remarks, *([INVERTED] if isinstance(adapted.curve, Inversion) else [])],
        **({} if given.stripped_by is None else {"brain_mask": given.stripped_by}),
        "guard": decision.numbers,
    }
    labels = network.labels if isinstance(network, Model) else {}
    return Result(
        adapted, before, after, trajectory.trace, decision, case, given.prepared, labels, facts, state, given.backend
    )


def _judge(
    settings: AdaptSettings,
    network: nn.Module | Model,
    source: AdaptableNetwork,
    given: ScanInput,
    before: Prediction,
    prior: FieldOfExperts | None,
) -> Unguarded | ScanGuard | Rescue:
    """Return what decides on the adaptation: an assessment where the prior knows home scans, else an older guard."""
    if not settings.guarded:
        return Unguarded()
    judges_steps = settings.preset == "fast"
    home = None if prior is None else prior.home
    if home is None or not judges_steps or before.task.judged_by != "stability":
        return guard_scan(source, given.volume, before, prior, settings.stop, judges_steps)
    labels = network.labels if isinstance(network, Model) else {}
    home = home.for_voxels(given.knows_voxels)
    reader = PredictionReader.of(given.volume, before.task, before.structures, given.voxel_ml, source.channels)
    return Rescue.of(source, reader, before, home, sorted(labels, key=lambda name: labels[name]))


def _require_model(network: nn.Module | Model) -> Model:
    """Check that a scan from a file comes with a model.

    Raises:
        InputError: It comes with a plain network.
    """
    if isinstance(network, Model):
        return network
    raise InputError(
        "A scan given as a file needs a model that says how to prepare it (scantune.load); a plain network "
        "takes a tensor (slices, channels, height, width)."
    )


def _require_usable(before: Prediction, prior: FieldOfExperts | None) -> None:
    """Check that the source network has an answer to the scan, of the structures that the calibration knows."""
    if not torch.isfinite(before.probabilities).all():
        raise InputError(
            "The network's output for this scan is not finite before any adaptation: its weights are damaged, or the "
            "scan is not as it expects. Check the scan's preprocessing, or copy or train the model again."
        )
    known = None if prior is None else prior.calibration
    if known is not None and len(known.shares) != before.structures:
        raise InputError(
            f"The prior's calibration knows {len(known.shares)} structures, but the network predicts "
            f"{before.structures}. Fit the prior again with this network."
        )


def _prior_facts(prior: FieldOfExperts | None, before: Prediction, after: Prediction) -> dict[str, Any]:
    """Return what energies can be compared with, and how a calibrated prior reads those before and after."""
    if prior is None:
        return {}
    facts: dict[str, Any] = {"energy_floor": prior.floor()}
    known = prior.calibration
    if known is None:
        return facts
    facts["energy_typical"] = known.typical
    if before.energy is None or after.energy is None:
        return facts
    return facts | {
        "reading_before": known.reading(before.energy),
        "reading_after": known.reading(after.energy),
        "readings_before": known.readings(before.energies),
    }
