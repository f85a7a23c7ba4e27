"""The plan of a training: a recipe whose tables have been read and checked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.backends import Backend, Prepared, Preprocessing
from scantune.config.recipe import Recipe, read_recipe
from scantune.config.settings import require_network, settings_from_table
from scantune.datasets import find_layout
from scantune.errors import InputError
from scantune.model.architecture import MONAI, Architecture
from scantune.networks import ARCHITECTURES
from scantune.networks.monai_networks import monai_defaults
from scantune.runtime.devices import find_device
from scantune.training.cache import OnCase, ignore_progress
from scantune.training.examples import Example
from scantune.training.registration import (
    RegistrationNetworkSettings,
    RegistrationSettings,
    read_task,
)
from scantune.training.sources import SPLITS, CaseSource, Split, read_source

UNET = "unet"
"""The kind of the default network."""

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

    @property
    def architecture(self) -> Architecture:
        """Return the architecture."""
        return Architecture(UNET, asdict(self))


@dataclass(frozen=True)
class OtherNetworkSettings:
    """The table [network] with a `kind`: a network of MONAI, of an installed package, or of the user's own."""

    kind: str
    """`monai:UNet`, the name of an entry point, or `package.module:factory`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments, by name."""

    @classmethod
    def read(cls, architecture: Architecture, classes: int) -> "OtherNetworkSettings":
        """Read an architecture; a network of MONAI gets its usual arguments, unless they are given."""
        if architecture.kind in ARCHITECTURES:
            raise InputError(f"The network {architecture.kind!r} is not made by [network] of a recipe: leave kind out.")
        usual: dict[str, Any] = {}
        if architecture.kind.startswith(MONAI):
            name = architecture.kind.removeprefix(MONAI)
            usual = monai_defaults(name, spatial_dims=2, in_channels=1, out_channels=classes)
        complete = replace(architecture, arguments={**usual, **architecture.arguments})
        complete.require_buildable()
        return cls(complete.kind, complete.arguments)

    @property
    def architecture(self) -> Architecture:
        """Return the architecture, which was checked when it was read."""
        return Architecture(self.kind, self.arguments, named=True)


NetworkTable = NetworkSettings | OtherNetworkSettings | RegistrationNetworkSettings
"""What [network] may be."""


@dataclass(frozen=True)
class TrainingPlan:
    """A recipe with its tables read, so that all its errors are found before any work is done."""

    recipe: Recipe
    source: CaseSource
    preprocessing: Backend[Any]
    network: NetworkTable
    task: RegistrationSettings | None = None
    """The registration task; None for segmentation."""

    @classmethod
    def of_data(
        cls,
        data: str | Path,
        labels: Mapping[str, int],
        overrides: Mapping[str, Any] | None = None,
        network: Mapping[str, Any] | None = None,
        channels: int = 1,
        held_out: Sequence[str] = (),
    ) -> "TrainingPlan":
        """Read the plan of a recipe, or of a folder of labelled scans whose layout is known by its content.

        Args:
            data: A recipe or a folder.
            labels: The structures in a folder, by name: those of the model.
            channels: Number of channels of the model.
            held_out: Names of the scans in a folder that the model was not trained on, if they are known.
            overrides: Entries that replace those of the table [data].
            network: What the user named as the network, in place of the table [network].
        """
        path = Path(data)
        if not path.is_dir():
            return cls.read(read_recipe(data), overrides, network)
        structures = {name: value for name, value in labels.items() if value}
        table: dict[str, Any] = {"dataset": find_layout(path), "root": str(path), "structures": structures}
        if channels > 1:
            table["channel"] = list(range(channels))
        if held_out:
            table["held_out"] = list(held_out)
        return cls.read(Recipe(path.name, data=table), overrides, network)

    @classmethod
    def read(
        cls, recipe: Recipe, data: Mapping[str, Any] | None = None, network: Mapping[str, Any] | None = None
    ) -> "TrainingPlan":
        """Read a recipe's tables.

        Args:
            recipe: The recipe.
            data: Entries that replace those of its table [data].
            network: What the user named as the network, `kind` and arguments, in place of the table [network].
        """
        source = read_source({**recipe.data, **(data or {})}, f"[data] of the recipe {recipe.name}")
        needed = 1 + max(source.names().values())
        task = read_task(recipe.task, f"[task] of the recipe {recipe.name}")
        read = _read_network(recipe, needed, network, registers=task is not None)
        preprocessing = settings_from_table(
            Preprocessing, recipe.preprocessing, f"[preprocessing] of the recipe {recipe.name}"
        )
        return cls(recipe, source, preprocessing, read, task)

    def examples(self, split: Split, on_case: OnCase = ignore_progress) -> list[Example]:
        """Return the prepared cases of a split, with their references; `on_case` is called after each."""
        device = find_device(self.recipe.train.device)
        examples = []
        for name, case in self.source.prepared(split, self.preprocessing, device, on_case):
            assert case.reference is not None
            examples.append(Example(case.volume, case.reference, name))
        return examples

    def cases(self, backend: Backend[Any], device: str) -> tuple[Iterator[Prepared], Iterator[Prepared]]:
        """Return the training and the validation cases, prepared for a trained model when they are needed."""
        where = find_device(device)
        training, held_out = ((case for _, case in self.source.prepared(split, backend, where)) for split in SPLITS)
        return training, held_out


def _read_network(recipe: Recipe, needed: int, named: Mapping[str, Any] | None, registers: bool) -> NetworkTable:
    """Read the table [network] of a recipe, for as many classes as are needed."""
    where = f"[network] of the recipe {recipe.name}"
    table = {name: value for name, value in recipe.network.items() if (name, value) != ("kind", UNET)}
    if named is not None or "kind" in table:
        if registers:
            raise InputError(f"A registration has its own network: leave kind out of {where}, and --network.")
        return OtherNetworkSettings.read(Architecture.in_place_of(table, named), needed)
    kind: type[NetworkSettings | RegistrationNetworkSettings] = (
        RegistrationNetworkSettings if registers else NetworkSettings
    )
    network = settings_from_table(kind, {"classes": needed, **table}, where)
    if network.classes < needed:
        raise InputError(
            f"The network of the recipe {recipe.name} must have {needed} classes or more, for labels up to "
            f"{needed - 1}, but [network] says {network.classes}; leave classes out to get as many as needed."
        )
    return network
