"""Folders of `scantune simulate`, whose manifest describes every scan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry, sort_by_name
from scantune.errors import InputError
from scantune.scans.manifest import MANIFEST, read_manifest


@dataclass(frozen=True)
class Simulated(DataSet):
    """Simulated cohort with the sites, people and splits of its manifest."""

    name: ClassVar[str] = "simulated"

    root: Path
    manifest: Mapping[str, Any]

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Simulated:
        """Open a folder and read its manifest. There are no options."""
        place = Path(root).expanduser()
        if options:
            raise InputError(f"A simulated cohort, such as {place}, takes no options, got {', '.join(options)}.")
        if not (place / MANIFEST).is_file():
            raise InputError(f"{place} must be a folder with the {MANIFEST} of scantune simulate, but has none.")
        manifest = read_manifest(place)
        if "centres" not in manifest:
            raise InputError(f"{place} holds results of another command, not those of scantune simulate.")
        return cls(place, manifest)

    @property
    def labels(self) -> Mapping[str, int]:
        """Return the labels of the cohort."""
        return dict(self.manifest["labels"])

    def entries(self) -> list[ScanEntry]:
        """Return all scans by name."""
        allowed = frozenset({0, *self.labels.values()})
        entries = [
            LayeredEntry(
                name,
                scan["subject"],
                scan["site"],
                scan["split"],
                image=self.root / scan["image"],
                layers=(LabelLayer(self.root / scan["labels"]),),
                allowed=allowed,
            )
            for name, scan in self.manifest["scans"].items()
        ]
        return [*sort_by_name(entries, self.root)]
