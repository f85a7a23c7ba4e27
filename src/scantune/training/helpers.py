"""Helper networks, trained from a model and its training cases; they travel in the model file."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.methods import METHODS
from scantune.model.model import Model
from scantune.networks import Helper
from scantune.runtime.devices import find_device
from scantune.scans.preprocess import Prepared
from scantune.training.autoencoders import AutoencoderSettings, train_autoencoders
from scantune.training.denoiser import DenoiserSettings, train_denoiser
from scantune.training.trainer import Progress

Cases = Sequence[Prepared]
Report = Callable[[Progress], None] | None


@dataclass(frozen=True)
class Trainer:
    """How the helper network of a method is trained.

    Args:
        settings: A dataclass of what can be chosen.
        train: From a model, its cases and the settings to the helper network, and what is to be known about the run.
    """

    settings: type[Any]
    train: Callable[[Model, Cases, Cases, Any, torch.device, Path | None, Report], tuple[Helper, dict[str, Any]]]


TRAINERS: dict[str, Trainer] = {
    "dae": Trainer(DenoiserSettings, train_denoiser),
    "ae": Trainer(AutoencoderSettings, train_autoencoders),
}
"""By the name of the method that the helper network serves."""


def train_helper(
    model: Model,
    name: str,
    cases: Iterable[Prepared],
    held_out: Iterable[Prepared],
    settings: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    checkpoint: Path | None = None,
    on_progress: Report = None,
) -> Model:
    """Trains the helper network of a method; network, prior and other helpers of the model stay as they are.

    Args:
        model: A trained model.
        name: The method, one of `TRAINERS`.
        cases: The prepared training cases, with references.
        held_out: Prepared cases that choose the best network.
        settings: What differs from the defaults of the method's settings, by name.
        device: Where to compute.
        checkpoint: The file that holds the run; if it exists, the run goes on from there.
        on_progress: Called at every look at the loss.
    """
    if name not in TRAINERS:
        raise InputError(f"Method {name!r} has no helper network to train. Available: {', '.join(TRAINERS)}.")
    METHODS[name].require_task(model.task)
    trainer = TRAINERS[name]
    chosen = settings_from_table(trainer.settings, settings or {}, f"the settings of {name}")
    started, where = time.perf_counter(), find_device(device)
    training, validation = list(cases), list(held_out)
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


def _require_references(name: str, training: Cases, validation: Cases) -> None:
    if not training or not validation:
        raise InputError(
            f"The helper network of method {name} needs at least one training case and one validation case, got "
            f"{len(training)} and {len(validation)}."
        )
    if any(case.reference is None for case in (*training, *validation)):
        raise InputError(f"The helper network of method {name} is trained on labels, but a case has no reference.")
