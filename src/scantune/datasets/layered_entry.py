"""Scans in files: an image, and label maps or masks that make up its reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scantune.datasets.base import ScanEntry
from scantune.datasets.file_entry import relabel
from scantune.errors import InputError
from scantune.scans.case import Case, LabelMap, grid_shift, require_same_grid
from scantune.scans.header import read_grid
from scantune.scans.io import joined_channels, read_labels, read_scan


@dataclass(frozen=True)
class LabelLayer:
    """File of labels.

    Attributes:
        path: The file.
        value: Label of all voxels of a mask that are not 0. None for label maps, which stay as they are.
    """

    path: Path
    value: int | None = None


@dataclass(frozen=True, kw_only=True)
class LayeredEntry(ScanEntry):
    """Scan whose image and labels are files.

    Attributes:
        image: File of the image; of a scan of several channels, that of the first.
        layers: Its labels, of which later ones cover earlier ones wherever they are not 0. Empty without a reference.
        frame: Number of the volume in a 4D image. None for 3D images.
        others: Files of further channels, with the numbers of their volumes.
        allowed: Labels that a label map may hold. None for every whole number from 0.
        groups: Our label of each label of a label map, with all others as background. None keeps labels as they are.
        brain_mask: File that is above 0 in the brain. The image is set to 0 outside.
    """

    image: Path
    layers: tuple[LabelLayer, ...] = ()
    frame: int | None = None
    others: tuple[tuple[Path, int | None], ...] = ()
    allowed: frozenset[int] | None = None
    groups: Mapping[int, int] | None = None
    brain_mask: Path | None = None

    def read(self) -> Case:
        """Read the scan with its reference."""
        case = joined_channels([read_scan(*place) for place in self._channels()])
        if self.brain_mask is not None:
            case = case.stripped(read_scan(self.brain_mask))
        maps = [self._labels(layer) for layer in self.layers]
        for one in maps:
            require_same_grid(one, case)
        if maps:
            reference = maps[0].labels.copy()
            for one in maps[1:]:
                reference = np.where(one.labels > 0, one.labels, reference)
            case = dataclasses.replace(case, reference=reference)
        return dataclasses.replace(case, name=self.name, subject=self.subject, site=self.site, split=self.split)

    @property
    def labelled(self) -> bool:
        """Return whether the scan has a reference."""
        return bool(self.layers)

    @property
    def stripped(self) -> bool:
        """Return whether the scan has a brain mask."""
        return self.brain_mask is not None

    def files(self) -> Sequence[Path]:
        """Return the images, then the labels and the mask."""
        return [*dict.fromkeys(path for path, _ in self._channels()), *self._on_grid()]

    def check(self) -> None:
        """Check by their headers that all files can be opened and lie on one grid."""
        grid = read_grid(self.image, self.frame)
        for path, frame in (*self.others, *((path, None) for path in self._on_grid())):
            require_same_grid(read_grid(path, frame), grid)

    def header_shift(self) -> float:
        """Return the largest shift between the headers of the image and of its labels and mask."""
        grid = read_grid(self.image, self.frame)
        return max((grid_shift(read_grid(path), grid) for path in self._on_grid()), default=0.0)

    def _channels(self) -> list[tuple[Path, int | None]]:
        """Return the file of each channel, with the number of its volume."""
        return [(self.image, self.frame), *self.others]

    def _on_grid(self) -> list[Path]:
        """Return the files that must lie on the image's grid."""
        return [*(layer.path for layer in self.layers), *([self.brain_mask] if self.brain_mask else [])]

    def _labels(self, layer: LabelLayer) -> LabelMap:
        if layer.value is None:
            labels = read_labels(layer.path, self.allowed)
            return labels if self.groups is None else relabel(labels, self.groups)
        mask = read_labels(layer.path)
        kind = np.min_scalar_type(layer.value)
        return dataclasses.replace(mask, labels=np.where(mask.labels > 0, kind.type(layer.value), kind.type(0)))


def sort_by_name(entries: Iterable[LayeredEntry], where: object) -> list[LayeredEntry]:
    """Return entries sorted by name.

    Raises:
        InputError: There are no entries, or two have the same name.
    """
    names: dict[str, LayeredEntry] = {}
    for entry in entries:
        if entry.name in names:
            raise InputError(
                f"{names[entry.name].image} and {entry.image} of the data set {where} have the same name {entry.name}. "
                "Give every scan a name of its own."
            )
        names[entry.name] = entry
    if not names:
        raise InputError(f"The data set {where} holds no scans.")
    return [names[name] for name in sorted(names)]
