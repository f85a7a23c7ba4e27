"""From a recipe to a model file: prepare the cases, train, round, fit."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.devices import find_device
from scantune.errors import InputError
from scantune.fit import fit
from scantune.modelfile import Model
from scantune.networks import AdaptableNetwork
from scantune.preprocess import Preprocessing
from scantune.settings import Recipe, settings_from_table
from scantune.slices import Example, stream
from scantune.sources import SPLITS, Source, describe, read_source
from scantune.train import Progress, train

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
        if self.classes < 2 or self.width < 1:
            raise InputError(
                f"The network needs at least 2 classes and a width of 1, got {self.classes} and {self.width}."
            )


@dataclass(frozen=True)
class Plan:
    """A recipe with its tables read: everything that can be wrong with it is found before any work is done."""

    recipe: Recipe
    source: Source
    preprocessing: Preprocessing
    network: NetworkSettings

    @classmethod
    def read(cls, recipe: Recipe, data: Mapping[str, Any] | None = None) -> "Plan":
        """Reads a recipe's tables; entries of `data` replace those of its table [data]."""
        source = read_source({**recipe.data, **(data or {})}, f"[data] of the recipe {recipe.name}")
        needed = 1 + max(source.names().values())
        network = settings_from_table(
            NetworkSettings, {"classes": needed, **recipe.network}, f"[network] of the recipe {recipe.name}"
        )
        if network.classes < needed:
            raise InputError(
                f"The network of the recipe {recipe.name} must have {needed} classes or more, for labels up to "
                f"{needed - 1}, but [network] says {network.classes}; leave classes out to get as many as needed."
            )
        preprocessing = settings_from_table(
            Preprocessing, recipe.preprocessing, f"[preprocessing] of the recipe {recipe.name}"
        )
        return cls(recipe, source, preprocessing, network)

    def examples(self, split: Literal["train", "validation"]) -> list[Example]:
        """The prepared cases of a split, with their references."""
        device = find_device(self.recipe.train.device)
        examples = []
        for name, case in self.source.prepared(split, self.preprocessing, device):
            assert case.reference is not None
            examples.append(Example(case.volume, case.reference, name))
        return examples


def train_model(
    plan: Plan,
    *,
    precision: Precision = "float32",
    command: str = "",
    checkpoint: Path | None = None,
    log_dir: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Model:
    """Trains the network of a plan; its weights come back in the precision they are to be stored in."""
    started = time.perf_counter()
    settings = plan.recipe.train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(settings.seed, 0, 0))
        network = AdaptableNetwork.default(**asdict(plan.network))
    trained = train(
        plan.examples("train"),
        plan.examples("validation"),
        settings,
        network=network,
        checkpoint=checkpoint,
        on_progress=on_progress,
        log_dir=log_dir,
    )
    device = find_device(settings.device)
    model = Model(
        network=trained.network.cpu(),
        labels=plan.source.names(),
        preprocessing=plan.preprocessing,
        architecture={"kind": "unet", **asdict(plan.network)},
        provenance={
            "command": command,
            "recipe": plan.recipe.name,
            "train": asdict(settings),
            "data": describe(plan.source),
            "precision": precision,
            "best_iteration": trained.best_iteration,
            "validation_dice": round(trained.best_dice, 4),
            "seconds": round(time.perf_counter() - started),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        },
    )
    return model.rounded(PRECISIONS[precision])


def fit_model(model: Model, plan: Plan, *, summarise: bool = False, device: str = "auto", command: str = "") -> Model:
    """Fits the prior of a model on the training cases of a plan, and calibrates it on the validation cases."""
    where = find_device(device)
    training, held_out = (
        (case for _, case in plan.source.prepared(split, model.preprocessing, where)) for split in SPLITS
    )
    fitted = fit(model, training, held_out, summarise=summarise, device=device)
    record = {"fit command": command, "fit data": describe(plan.source)}
    return replace(fitted, provenance=fitted.provenance | record)
