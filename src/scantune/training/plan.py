"""The plan of a training: a recipe whose tables have been read and checked."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from scantune.config.recipe import Recipe
from scantune.config.settings import require_network, settings_from_table
from scantune.errors import InputError
from scantune.runtime.devices import find_device
from scantune.scans.preprocess import Prepared, Preprocessing
from scantune.training.cache import OnCase, ignore_progress
from scantune.training.examples import Example
from scantune.training.registration import (
    RegistrationNetworkSettings,
    RegistrationSettings,
    read_task,
)
from scantune.training.sources import SPLITS, CaseSource, Split, read_source

WeightPrecision = Literal["float32", "float16"]
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
    """A recipe with its tables read, so that all its errors are found before any work is done."""

    recipe: Recipe
    source: CaseSource
    preprocessing: Preprocessing
    network: NetworkSettings | RegistrationNetworkSettings
    task: RegistrationSettings | None = None
    """The registration task; None for segmentation."""

    @classmethod
    def read(cls, recipe: Recipe, data: Mapping[str, Any] | None = None) -> "TrainingPlan":
        """Read a recipe's tables; entries of `data` replace those of its table [data]."""
        source = read_source({**recipe.data, **(data or {})}, f"[data] of the recipe {recipe.name}")
        needed = 1 + max(source.names().values())
        task = read_task(recipe.task, f"[task] of the recipe {recipe.name}")
        kind: type[NetworkSettings | RegistrationNetworkSettings] = (
            NetworkSettings if task is None else RegistrationNetworkSettings
        )
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

    def examples(self, split: Split, on_case: OnCase = ignore_progress) -> list[Example]:
        """Return the prepared cases of a split, with their references; `on_case` is called after each."""
        device = find_device(self.recipe.train.device)
        examples = []
        for name, case in self.source.prepared(split, self.preprocessing, device, on_case):
            assert case.reference is not None
            examples.append(Example(case.volume, case.reference, name))
        return examples

    def cases(self, preprocessing: Preprocessing, device: str) -> tuple[Iterator[Prepared], Iterator[Prepared]]:
        """Return the training and the validation cases, prepared for a trained model when they are needed."""
        where = find_device(device)
        training, held_out = (
            (case for _, case in self.source.prepared(split, preprocessing, where)) for split in SPLITS
        )
        return training, held_out
