"""Training of a model: from a plan to a network with its record, without prior and helper networks."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from scantune.backends import Preprocessing
from scantune.config.presets import read_presets
from scantune.errors import InputError
from scantune.model.model import Model
from scantune.runtime.devices import find_device
from scantune.tasks import Segmentation
from scantune.training.cache import OnCase, ignore_progress
from scantune.training.examples import stream_seed
from scantune.training.plan import PRECISIONS, TrainingPlan, WeightPrecision
from scantune.training.registration import (
    RegistrationNetworkSettings,
    new_registration,
)
from scantune.training.segmentation import train_network
from scantune.training.sources import source_record
from scantune.training.trainer import TrainingProgress


def train_model(
    plan: TrainingPlan,
    *,
    start: Model | None = None,
    precision: WeightPrecision = "float32",
    command: str = "",
    checkpoint: Path | None = None,
    log_dir: Path | None = None,
    on_progress: Callable[[TrainingProgress], None] | None = None,
    on_case: OnCase = ignore_progress,
) -> Model:
    """Train the network of a plan; return its model, with weights rounded to the precision of the model file.

    Args:
        plan: What to train on, and how.
        start: A trained model to fine-tune, such as one of another site, with the settings `FINE_TUNING` for the
            paper's benchmark. Its network, labels and preprocessing are kept; its prior and helper networks are left
            out, as they no longer fit the weights.
        precision: The precision of the stored weights.
        command: The command line, for the record.
        checkpoint: The file that holds the run; if it exists, the run resumes from it.
        log_dir: Folder for a TensorBoard log.
        on_progress: Called at every report of the loss.
        on_case: Called with the number of prepared scans, of all of a split, and the name of the last.
    """
    started = time.perf_counter()
    settings = plan.recipe.train
    model = _new_model(plan) if start is None else _fine_tuned(start, plan)
    plan = replace(plan, preprocessing=model.backend)
    trained = train_network(
        plan.examples("train", on_case),
        plan.examples("validation", on_case),
        settings,
        network=model.network,
        task=model.task,
        start="" if start is None else start.fingerprint,
        checkpoint=checkpoint,
        on_progress=on_progress,
        log_dir=log_dir,
    )
    device = find_device(settings.device)
    provenance = {
        "command": command,
        "recipe": plan.recipe.name,
        "train": asdict(settings),
        "data": source_record(plan.source),
        **({"stripped": True} if plan.source.stripped() else {}),
        **({} if start is None else {"start": {"name": start.name, "fingerprint": start.fingerprint}}),
        "precision": precision,
        "best_iteration": trained.best_iteration,
        "validation_dice": round(trained.best_score, 4),
        "seconds": round(time.perf_counter() - started),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }
    presets = model.presets | read_presets(plan.recipe.adapt, f"[adapt] of the recipe {plan.recipe.name}")
    trained_model = replace(model, network=trained.network.cpu(), provenance=provenance, presets=presets)
    return trained_model.rounded(PRECISIONS[precision])


def _new_model(plan: TrainingPlan) -> Model:
    """Return an untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(plan.recipe.train.seed, 0, 0))
        if plan.task is not None:
            assert isinstance(plan.network, RegistrationNetworkSettings)
            assert isinstance(plan.preprocessing, Preprocessing)
            return new_registration(plan.task, plan.network, plan.source.names(), plan.preprocessing)
        assert not isinstance(plan.network, RegistrationNetworkSettings)
        architecture = plan.network.architecture
        return Model(architecture.build(), plan.source.names(), plan.preprocessing, architecture.record)


def _fine_tuned(start: Model, plan: TrainingPlan) -> Model:
    """Return a trained model without what depends on its weights, if the plan suits it."""
    recipe = plan.recipe.name
    wanted = Segmentation.name if plan.task is None else plan.task.name
    if start.task.name != wanted:
        raise InputError(
            f"The model {start.name} is for {start.task.name}, but the recipe {recipe} is for {wanted}; training can "
            "only continue with the same task."
        )
    labels = {name: value for name, value in start.labels.items() if value != 0}
    if labels != plan.source.names():
        raise InputError(
            f"The model {start.name} has the labels {labels}, but the recipe {recipe} has {plan.source.names()}; "
            "training can only continue with the same labels."
        )
    for name, value in plan.recipe.network.items():
        if start.architecture.get(name) != value:
            raise InputError(
                f"The network of the model {start.name} has {name} {start.architecture.get(name)}, but [network] of "
                f"the recipe {recipe} says {value}; leave it out there."
            )
    if plan.recipe.preprocessing and plan.preprocessing != start.backend:
        raise InputError(
            f"The model {start.name} is for scans prepared as {start.backend.record()}, but [preprocessing] of "
            f"the recipe {recipe} differs; leave that table out to use the model's."
        )
    return replace(start, prior=None, helpers={})
