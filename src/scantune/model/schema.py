"""Checks of a model file before anything is built from it: types of its record, shapes, finite numbers."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scantune.config.settings import settings_from_table
from scantune.errors import InputError

MODEL_FORMAT = 1
"""Version of the file's layout; a reader refuses newer ones."""

JsonTable = dict[str, object]


@dataclass(frozen=True)
class RecordLayout:
    """The entries of a record, with their types; entries of newer versions are ignored."""

    format: int
    task: JsonTable
    architecture: JsonTable
    labels: dict[str, int]
    preprocessing: JsonTable
    prior: JsonTable | None
    provenance: JsonTable
    helpers: dict[str, JsonTable] = field(default_factory=dict)


@dataclass(frozen=True)
class PriorRecordLayout:
    """The entries of a prior's record."""

    families: dict[str, JsonTable]
    subjects: int
    notes: tuple[str, ...]


def read_record(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Read the record of a model file.

    Raises:
        InputError: The file has none, it is of a newer version, or an entry is missing or of a wrong type.
    """
    try:
        record = json.loads(metadata["scantune"])
        version = int(record["format"])
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{path} holds tensors but no scantune record; expected a model file written by scantune."
        ) from error
    if version > MODEL_FORMAT:
        raise InputError(
            f"{path} has format {version}, this scantune reads up to {MODEL_FORMAT}; install a newer scantune."
        )
    _check(RecordLayout, record, f"the record of {path}")
    if record["prior"] is not None:
        _check(PriorRecordLayout, record["prior"], f"the prior's record in {path}")
    values = list(record["labels"].values())
    if len(set(values)) != len(values) or not all(0 <= value <= 255 for value in values):
        raise InputError(
            f"{path} must name each structure by a value of its own from 0 to 255, but its labels are "
            f"{str(record['labels'])[:300]}; make or copy the file again."
        )
    return dict(record)


def _check(kind: type[Any], table: Mapping[str, Any], where: str) -> None:
    known = {entry.name for entry in fields(kind)}
    settings_from_table(kind, {name: value for name, value in table.items() if name in known}, where)


def require_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check that all numbers of a model file are finite.

    Raises:
        InputError: One is NaN or infinite; `far` levels, which may be, are left out.
    """
    for name, tensor in tensors.items():
        if name.startswith("prior.calibration/") or not tensor.is_floating_point():
            continue
        if not torch.isfinite(tensor.float()).all():
            raise InputError(
                f"{path} must hold finite numbers, but {name} has values that are NaN or infinite: it is damaged, or "
                "its training went astray. Copy or make it again."
            )


def require_shapes(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Check that weights are those of a network, which may be on the device `meta`, where it takes no memory.

    Raises:
        InputError: One is missing, too many, or of another shape.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name in {**shapes, **weights}:
        stored = tuple(weights[name].shape) if name in weights else None
        if stored != shapes.get(name):
            raise InputError(
                f"The weights do not fit the recorded architecture: {name} has shape {stored or 'none'} in the file, "
                f"and {shapes.get(name) or 'none'} in the network. Make or copy the model file again."
            )
