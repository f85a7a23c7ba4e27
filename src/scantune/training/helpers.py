"""Helper networks, trained from a model and its training cases; they travel in the model file."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scantune.backends import Prepared, PreparedSlices
from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.methods import METHODS
from scantune.model.model import Model
from scantune.networks import Helper
from scantune.runtime.devices import find_device
from scantune.training.autoencoders import AutoencoderSettings, train_autoencoders
from scantune.training.denoiser import DenoiserSettings, train_denoiser
from scantune.training.plan import TrainingPlan
from scantune.training.sources import source_record
from scantune.training.trainer import TrainingProgress

OnTrainingProgress = Callable[[TrainingProgress], None] | None


@dataclass(frozen=True)
class HelperTrainer:
    """The training of a method's helper network.

    Attributes:
        settings: The settings dataclass.
        train: From a model, its cases and the settings to the helper network and facts about the run.
    """

    settings: type[Any]
    train: Callable[
        [Model, Sequence[PreparedSlices], Sequence[PreparedSlices], Any, torch.device, Path | None, OnTrainingProgress],
        tuple[Helper, dict[str, Any]],
    ]


TRAINERS: dict[str, HelperTrainer] = {
    "dae": HelperTrainer(DenoiserSettings, train_denoiser),
    "ae": HelperTrainer(AutoencoderSettings, train_autoencoders),
}
"""Trainers by the name of the method that the helper network serves."""


def fit_helper(
    model: Model,
    plan: TrainingPlan,
    method: str,
    settings: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    command: str = "",
    checkpoint: Path | None = None,
    on_progress: OnTrainingProgress = None,
) -> Model:
    """Train the helper network of a method on the training cases of a plan; the validation cases choose the best.

    Args:
        model: A trained model; its prior and its other helper networks are kept.
        plan: Where the cases are.
        method: One of `TRAINERS`.
        settings: Differences from the table [helpers.METHOD] of the plan's recipe, by name.
        device: Where to compute.
        command: The command line, for the record.
        checkpoint: The file that holds the run; if it exists, the run resumes from it.
        on_progress: Called at every report of the loss.
    """
    training, held_out = plan.cases(model.backend, device)
    chosen = {**plan.recipe.helpers.get(method, {}), **(settings or {})}
    fitted = train_helper(
        model, method, training, held_out, chosen, device=device, checkpoint=checkpoint, on_progress=on_progress
    )
    record = {"command": command, "data": source_record(plan.source), **fitted.provenance[method]}
    return replace(fitted, provenance=fitted.provenance | {method: record})


def train_helper(
    model: Model,
    name: str,
    cases: Iterable[Prepared],
    held_out: Iterable[Prepared],
    settings: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    on_progress: OnTrainingProgress = None,
) -> Model:
    """Train the helper network of a method; network, prior and other helpers of the model stay as they are.

    Args:
        model: A trained model.
        name: The method, one of `TRAINERS`.
        cases: The prepared training cases, with references.
        held_out: PreparedSlices cases that choose the best network.
        settings: Differences from the defaults of the method's settings, by name.
        device: Where to compute.
        checkpoint: The file that holds the run; if it exists, the run resumes from it.
        on_progress: Called at every report of the loss.
    """
    if name not in TRAINERS:
        raise InputError(f"Method {name!r} has no helper network to train. Available: {', '.join(TRAINERS)}.")
    METHODS[name].require_task(model.task)
    trainer = TRAINERS[name]
    chosen = settings_from_table(trainer.settings, settings or {}, f"the settings of {name}")
    started, where = time.perf_counter(), find_device(device)
    training, validation = _slices(name, cases), _slices(name, held_out)
    _require_references(name, training, validation)
    helper, facts = trainer.train(model, training, validation, chosen, where, checkpoint, on_progress)
    record = {
        **asdict(chosen),
        **facts,
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
    }
    frozen = helper.cpu().eval().requires_grad_(False)
    return replace(model, helpers=model.helpers | {name: frozen}, provenance=model.provenance | {name: record})


def _slices(name: str, cases: Iterable[Prepared]) -> list[PreparedSlices]:
    slices = []
    for case in cases:
        if not isinstance(case, PreparedSlices):
            raise InputError(
                f"The helper network of method {name} is trained on slices, but the model's network sees volumes or "
                "windows. Use another method, such as foe-cnn-pca."
            )
        slices.append(case)
    return slices


def _require_references(name: str, training: Sequence[PreparedSlices], validation: Sequence[PreparedSlices]) -> None:
    if not training or not validation:
        raise InputError(
            f"The helper network of method {name} needs at least one training case and one validation case, got "
            f"{len(training)} and {len(validation)}."
        )
    if any(case.reference is None for case in (*training, *validation)):
        raise InputError(f"The helper network of method {name} is trained on labels, but a case has no reference.")
