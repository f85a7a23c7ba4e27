"""From an atlas to an untrained registration model: the tables [task] and [network] of a recipe."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scantune.backends import Preprocessing
from scantune.config.settings import require_network, settings_from_table
from scantune.errors import InputError
from scantune.model.model import Model
from scantune.networks import AtlasShape, RegistrationNetwork, registration_network
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan
from scantune.simulate.anatomies.icbm152 import icbm152_case
from scantune.tasks import Registration, Segmentation, find_task

ATLASES: dict[str, Callable[[Mapping[str, int]], Case]] = {"icbm152": icbm152_case}
"""Atlases that need no file, by name."""

MAX_SQUARINGS = 30
"""Upper limit: with more, a step along the velocities is below single precision."""


@dataclass(frozen=True)
class RegistrationSettings:
    """The table [task] of a recipe for registration."""

    name: str = Registration.name
    """registration."""
    atlas: str = "icbm152"
    """The atlas: icbm152, or an image file."""
    atlas_labels: str = ""
    """The label map of an atlas that is a file, with the values of the structures."""
    smoothness: float = 0.0
    """Weight of the velocities' roughness in the training loss; the paper has none."""
    similarity: float = 0.0
    """Weight of one minus the local correlation of warped atlas and image in the training loss; the paper has none."""

    def __post_init__(self) -> None:
        for name in ("smoothness", "similarity"):
            if getattr(self, name) < 0:
                raise InputError(f"The setting {name} in [task] must be 0 or more, got {getattr(self, name)}.")
        if self.atlas not in ATLASES and not self.atlas_labels:
            raise InputError(
                f"The atlas {self.atlas!r} in [task] must be one of {', '.join(ATLASES)}, or an image file with "
                "atlas_labels, its label map."
            )

    def read(self, values: Mapping[str, int]) -> Case:
        """Return the atlas, with labels of these values as its reference."""
        if self.atlas in ATLASES:
            return ATLASES[self.atlas](values)
        labels = read_labels(self.atlas_labels, allowed={0, *values.values()})
        return read_scan(self.atlas).with_reference(labels)


@dataclass(frozen=True)
class RegistrationNetworkSettings:
    """The table [network] of a recipe for registration."""

    classes: int
    """Labels, background included; by default as many as the structures need."""
    width: int = 16
    """Channels of the first level of the U-Net."""
    shrink: int = 1
    """Normaliser, U-Net and velocities live on a grid this many times coarser than the slices."""
    squarings: int = 7
    """The flow along the velocities is followed in 2 ** squarings steps."""

    def __post_init__(self) -> None:
        require_network(self.classes, self.width)
        if self.shrink < 1 or not 0 <= self.squarings <= MAX_SQUARINGS:
            raise InputError(
                f"The network needs a shrink of 1 or more, and 0 to {MAX_SQUARINGS} squarings, got {self.shrink} and "
                f"{self.squarings}."
            )


@dataclass(frozen=True)
class _SegmentationSettings:
    """The table [task] of a recipe for segmentation: there is nothing to choose."""

    name: str = Segmentation.name


def read_task(table: Mapping[str, Any], where: str) -> RegistrationSettings | None:
    """Read the table [task] of a recipe; return None for segmentation, the default."""
    if find_task(str(table.get("name", Segmentation.name))) is Segmentation:
        settings_from_table(_SegmentationSettings, table, where)
        return None
    return settings_from_table(RegistrationSettings, table, where)


def new_registration(
    task: RegistrationSettings,
    network: RegistrationNetworkSettings,
    labels: dict[str, int],
    preprocessing: Preprocessing,
) -> Model:
    """Return an untrained registration model that holds its atlas, prepared as scans are.

    Args:
        task: The atlas, and the terms of the loss.
        network: The size of the network.
        labels: Value of each structure.
        preprocessing: How scans are prepared; it must cut a slab, which defines the slices' heights.
    """
    if preprocessing.slab is None:
        raise InputError(
            "Registration matches slices by their height, so that [preprocessing] needs slab = [EXTENT, DEPTH], in mm."
        )
    case = task.read(labels)
    prepared = preprocessing.prepare(case)
    assert prepared.reference is not None and prepared.slab is not None and prepared.distance is not None
    image, reference = prepared.volume[:, 0], prepared.reference
    top, left, rows, columns = _bounds(reference > 0)
    shape = AtlasShape(len(image), rows, columns, float(prepared.volume[0, 1, 0, 0]), prepared.distance)
    built = registration_network(**asdict(shape), **asdict(network))
    assert isinstance(built.task, RegistrationNetwork)
    window = slice(top, top + rows), slice(left, left + columns)
    built.task.atlas.fill(image[:, *window], reference[:, *window])
    # From (height, row, column) of the whole picture to the atlas's world.
    heights = np.diag([1 / shape.step, 1.0, 1.0, 1.0])
    heights[0, 3] = -shape.lowest / shape.step
    world = prepared.to_world(case) @ heights
    name = task.atlas if task.atlas in ATLASES else Path(task.atlas).name
    reading = Registration(task.smoothness, task.similarity, name, tuple(map(tuple, world.tolist())))
    architecture = {"kind": "register", **asdict(shape), **asdict(network)}
    return Model(built, labels, preprocessing, architecture, reading)


def _bounds(inside: torch.Tensor) -> tuple[int, int, int, int]:
    """Return top, left, rows and columns of the smallest centred window that holds everything."""
    ends = []
    for axis, length in ((2, inside.shape[1]), (1, inside.shape[2])):
        seen = inside.any(0).any(axis - 1).nonzero()
        margin = min(int(seen.min()), length - 1 - int(seen.max()))
        ends.append((margin, length - 2 * margin))
    (top, rows), (left, columns) = ends
    return top, left, rows, columns
