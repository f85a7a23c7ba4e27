"""Backends: what stands between the files of a scan and a network."""

from collections.abc import Mapping
from typing import Any

from scantune.backends.base import Backend, Prepared, PreparedT, ReadOutput
from scantune.backends.slices import PreparedSlices, Preprocessing
from scantune.backends.tiling import Tiling
from scantune.backends.volumes import PreparedVolume, VolumePreprocessing
from scantune.errors import InputError

BACKENDS: dict[str, type[Preprocessing] | type[VolumePreprocessing]] = {
    "slices": Preprocessing,
    "volumes": VolumePreprocessing,
}
"""Backends that a model file can record, by the kind that it names. A record without a kind is one of slices."""

__all__ = [
    "BACKENDS",
    "Backend",
    "Prepared",
    "PreparedSlices",
    "PreparedT",
    "PreparedVolume",
    "Preprocessing",
    "ReadOutput",
    "Tiling",
    "VolumePreprocessing",
    "read_backend",
]


def read_backend(record: Mapping[str, Any]) -> Backend[Any]:
    """Return the backend of a `record`.

    Raises:
        InputError: Its kind is unknown, or an entry is unknown or wrong.
    """
    kind = record.get("kind", "slices")
    if kind not in BACKENDS:
        raise InputError(
            f"The recorded preprocessing is of the kind {kind!r}; known are {', '.join(BACKENDS)}. Use the version of "
            "scantune that wrote it, or a newer one."
        )
    return BACKENDS[kind].from_record({name: value for name, value in record.items() if name != "kind"})
