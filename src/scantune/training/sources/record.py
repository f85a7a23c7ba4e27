"""The table [data] of a recipe: how it becomes a source, and how a model file records it."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.training.sources.base import CaseSource
from scantune.training.sources.data_set import DataSetSource
from scantune.training.sources.files import FileSource
from scantune.training.sources.simulated import SimulatedSource

_PATHS = ("atlas", "label_maps", "images", "labels", "cache", "root")


def read_source(table: Mapping[str, Any], where: str) -> CaseSource:
    """Make a source from a recipe's table [data]: `cohort` simulates, `dataset` and `images` are files."""
    if "cohort" in table:
        return settings_from_table(SimulatedSource, table, where)
    if "dataset" in table:
        return DataSetSource.read(table, where)
    if "images" not in table:
        raise InputError(
            f"{where} must say where the scans are: give cohort=, dataset= and root=, or images= and labels=."
        )
    return settings_from_table(FileSource, table, where)


def source_record(source: CaseSource) -> dict[str, Any]:
    """Return a source as a model file records it: file names without their folders."""
    record: dict[str, Any] = asdict(source)  # type: ignore[call-overload]
    if "options" in record:
        record["options"] = _without_folders(record["options"])
    return _without_folders(record)


def _without_folders(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Path(value).name if key in _PATHS else value for key, value in record.items()}
