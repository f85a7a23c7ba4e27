"""From a recipe to a model file: prepare the cases, train, round, fit the prior and the helper networks."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.config.recipe import Recipe
from scantune.config.settings import PriorSettings, require_network, settings_from_table
from scantune.errors import InputError
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork
from scantune.runtime.devices import find_device
from scantune.scans.preprocess import Prepared, Preprocessing
from scantune.tasks import Segmentation
from scantune.training.cache import OnCase, quiet
from scantune.training.examples import Example, stream
from scantune.training.fit import fit
from scantune.training.helpers import train_helper
from scantune.training.registration import RegisteringSettings, RegistrationSettings, new_registration, read_task
from scantune.training.segmentation import train
from scantune.training.sources import SPLITS, CaseSource, describe, read_source
from scantune.training.trainer import Progress

Precision = Literal["float32", "float16"]
PRECISIONS: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class NetworkSettings:
    """The table [network]: the default network for slices of one channel."""

    classes: int
    """Labels, background included; by default as many as the structures need."""
    width: int = 16
    """Channels of the first level of the U-Net."""

    def __post_init__(self) -> None:
        require_network(self.classes, self.width)


@dataclass(frozen=True)
class TrainingPlan:
    """A recipe with its tables read: everything that can be wrong with it is found before any work is done."""

    recipe: Recipe
    source: CaseSource
    preprocessing: Preprocessing
    network: NetworkSettings | RegisteringSettings
    task: RegistrationSettings | None = None
    """None where the task is segmentation."""

    @classmethod
    def read(cls, recipe: Recipe, data: Mapping[str, Any] | None = None) -> "TrainingPlan":
        """Reads a recipe's tables; entries of `data` replace those of its table [data]."""
        source = read_source({**recipe.data, **(data or {})}, f"[data] of the recipe {recipe.name}")
        needed = 1 + max(source.names().values())
        task = read_task(recipe.task, f"[task] of the recipe {recipe.name}")
        kind: type[NetworkSettings | RegisteringSettings] = NetworkSettings if task is None else RegisteringSettings
        network = settings_from_table(
            kind, {"classes": needed, **recipe.network}, f"[network] of the recipe {recipe.name}"
        )
        if network.classes < needed:
            raise InputError(
                f"The network of the recipe {recipe.name} must have {needed} classes or more, for labels up to "
                f"{needed - 1}, but [network] says {network.classes}; leave classes out to get as many as needed."
            )
        preprocessing = settings_from_table(
            Preprocessing, recipe.preprocessing, f"[preprocessing] of the recipe {recipe.name}"
        )
        return cls(recipe, source, preprocessing, network, task)

    def examples(self, split: Literal["train", "validation"], on_case: OnCase = quiet) -> list[Example]:
        """The prepared cases of a split, with their references; `on_case` is told how far it is."""
        device = find_device(self.recipe.train.device)
        examples = []
        for name, case in self.source.prepared(split, self.preprocessing, device, on_case):
            assert case.reference is not None
            examples.append(Example(case.volume, case.reference, name))
        return examples


def train_model(
    plan: TrainingPlan,
    *,
    start: Model | None = None,
    precision: Precision = "float32",
    command: str = "",
    checkpoint: Path | None = None,
    log_dir: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_case: OnCase = quiet,
) -> Model:
    """Trains the network of a plan; its weights come back in the precision they are to be stored in.

    Args:
        plan: What to train on, and how.
        start: A trained model to go on from, such as one of another site, with the settings of
            `scantune.settings.FINE_TUNING` for the paper's benchmark. Its network, labels and preprocessing are kept;
            its prior and helper networks are left out, as they no longer fit the weights.
        precision: In what precision the weights will be stored.
        command: What was typed, for the record.
        checkpoint: The file that holds the run; if it exists, the run goes on from there.
        log_dir: Folder for a log that TensorBoard reads.
        on_progress: Called at every look at the loss.
        on_case: Called with the number of scans that are prepared, of all of a split, and the name of the last.
    """
    started = time.perf_counter()
    settings = plan.recipe.train
    model = _new(plan) if start is None else _fine_tuned(start, plan)
    plan = replace(plan, preprocessing=model.preprocessing)
    trained = train(
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
    model = replace(
        model,
        network=trained.network.cpu(),
        provenance={
            "command": command,
            "recipe": plan.recipe.name,
            "train": asdict(settings),
            "data": describe(plan.source),
            **({"stripped": True} if plan.source.stripped() else {}),
            **({} if start is None else {"start": {"name": start.name, "fingerprint": start.fingerprint}}),
            "precision": precision,
            "best_iteration": trained.best_iteration,
            "validation_dice": round(trained.best_score, 4),
            "seconds": round(time.perf_counter() - started),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
    )
    return model.rounded(PRECISIONS[precision])


def _new(plan: TrainingPlan) -> Model:
    """An untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(plan.recipe.train.seed, 0, 0))
        if plan.task is not None:
            assert isinstance(plan.network, RegisteringSettings)
            return new_registration(plan.task, plan.network, plan.source.names(), plan.preprocessing)
        network = AdaptableNetwork.default(**asdict(plan.network))
    architecture = {"kind": "unet", **asdict(plan.network)}
    return Model(network, plan.source.names(), plan.preprocessing, architecture)


def _fine_tuned(start: Model, plan: TrainingPlan) -> Model:
    """A trained model without what depends on its weights, after a look at whether the plan suits it."""
    recipe = plan.recipe.name
    wanted = Segmentation.name if plan.task is None else plan.task.name
    if start.task.name != wanted:
        raise InputError(
            f"The model {start.name} is for {start.task.name}, but the recipe {recipe} is for {wanted}; training can "
            "only go on with the same task."
        )
    labels = {name: value for name, value in start.labels.items() if value != 0}
    if labels != plan.source.names():
        raise InputError(
            f"The model {start.name} has the labels {labels}, but the recipe {recipe} has {plan.source.names()}; "
            "training can only go on with the same ones."
        )
    for name, value in plan.recipe.network.items():
        if start.architecture.get(name) != value:
            raise InputError(
                f"The network of the model {start.name} has {name} {start.architecture.get(name)}, but [network] of "
                f"the recipe {recipe} says {value}; leave it out there."
            )
    if plan.recipe.preprocessing and plan.preprocessing != start.preprocessing:
        raise InputError(
            f"The model {start.name} is for scans prepared as {start.preprocessing.record()}, but [preprocessing] of "
            f"the recipe {recipe} says otherwise; leave that table out, and the model's holds."
        )
    return replace(start, prior=None, helpers={})


def fit_model(
    model: Model,
    plan: TrainingPlan,
    *,
    settings: PriorSettings | None = None,
    device: str = "auto",
    command: str = "",
) -> Model:
    """Fits the prior of a model on the training cases of a plan, and calibrates it on the validation cases.

    Args:
        model: A trained model; its helper networks are kept.
        plan: Where the cases are.
        settings: What the prior is made of; by default as the table [prior] of the plan's recipe says.
        device: Where to compute.
        command: What was typed, for the record.
    """
    chosen = settings or plan.recipe.prior
    training, held_out = _cases(model, plan, device)
    fitted = fit(model, training, held_out, settings=chosen, device=device)
    record = {"fit command": command, "fit data": describe(plan.source), "fit settings": asdict(chosen)}
    return replace(fitted, provenance=fitted.provenance | record)


def fit_helper(
    model: Model,
    plan: TrainingPlan,
    method: str,
    settings: Mapping[str, Any] | None = None,
    *,
    device: str = "auto",
    command: str = "",
    checkpoint: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Model:
    """Trains the helper network of a method on the training cases of a plan; the validation cases choose the best.

    Args:
        model: A trained model; its prior and its other helper networks are kept.
        plan: Where the cases are.
        method: One of `scantune.helpers.TRAINERS`.
        settings: What differs from the table [helpers.METHOD] of the plan's recipe, by name.
        device: Where to compute.
        command: What was typed, for the record.
        checkpoint: The file that holds the run; if it exists, the run goes on from there.
        on_progress: Called at every look at the loss.
    """
    training, held_out = _cases(model, plan, device)
    chosen = {**plan.recipe.helpers.get(method, {}), **(settings or {})}
    fitted = train_helper(
        model, method, training, held_out, chosen, device=device, checkpoint=checkpoint, on_progress=on_progress
    )
    record = {"command": command, "data": describe(plan.source), **fitted.provenance[method]}
    return replace(fitted, provenance=fitted.provenance | {method: record})


def _cases(model: Model, plan: TrainingPlan, device: str) -> tuple[Iterator[Prepared], Iterator[Prepared]]:
    """The training and the validation cases of a plan, as the model wants them."""
    where = find_device(device)
    training, held_out = (
        (case for _, case in plan.source.prepared(split, model.preprocessing, where)) for split in SPLITS
    )
    return training, held_out
