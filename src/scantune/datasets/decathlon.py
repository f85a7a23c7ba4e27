"""The Medical Segmentation Decathlon: dataset.json lists the scans, and contrasts are volumes of one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.nnunet import DATASET_JSON, DescribedDataSet
from scantune.datasets.subjects import find_subject
from scantune.errors import InputError
from scantune.scans.names import scan_name


@dataclass(frozen=True)
class Decathlon(DescribedDataSet):
    """Task of the decathlon: dataset.json with the lists `training` and `test`.

    Its test scans have no references. If `modality` names several contrasts, images are 4D and `channel` selects
    volumes of them.
    """

    name: ClassVar[str] = "decathlon"

    def require_layout(self) -> None:
        """Check that there is a list of training scans."""
        super().require_layout()
        if not isinstance(self.about.get("training"), list):
            raise InputError(
                f"{self.root / DATASET_JSON} must have a list training of images and labels, but has none."
            )

    def find_entries(self) -> list[LayeredEntry]:
        """Return the scans of both lists."""
        training = [self._entry(item, "") for item in self.about["training"]]
        return training + [self._entry(item, "test") for item in self.about.get("test") or ()]

    def _entry(self, item: Any, split: str) -> LayeredEntry:
        files = {"image": item} if isinstance(item, str) else item
        if not isinstance(files, dict) or not isinstance(files.get("image"), str):
            raise InputError(
                f"{self.root / DATASET_JSON} must name an image for each scan, but has the entry {item!r}."
            )
        image = self._path(files["image"])
        name = scan_name(image)
        first, *others = self.chosen_channels()
        return LayeredEntry(
            name,
            find_subject(name, self.options.person),
            "",
            split,
            image=image,
            layers=(LabelLayer(self._path(files["label"])),) if files.get("label") else (),
            frame=first if len(self.channels) > 1 else None,
            others=tuple((image, number) for number in others),
            allowed=self.allowed,
        )

    def _path(self, text: str) -> Path:
        return self.root / text
