"""nnU-Net: `imagesTr`, `labelsTr`, `imagesTs` and dataset.json, of its first and second version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from scantune.datasets.generic import GenericDataSet, GenericOptions
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.subjects import find_subject
from scantune.errors import InputError

DATASET_JSON = "dataset.json"


@dataclass(frozen=True)
class ChannelOptions(GenericOptions):
    """Contrast to take, or contrasts."""

    channel: str | int | tuple[str | int, ...] = 0
    """The contrast if a scan has several: its number from 0, or its name in dataset.json; or a list of them, for a
    network of several channels."""


@dataclass(frozen=True)
class DescribedDataSet(GenericDataSet):
    """Folder with a dataset.json."""

    options_type: ClassVar[type[GenericOptions]] = ChannelOptions

    options: ChannelOptions = field(default_factory=ChannelOptions)
    about: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)

    def require_layout(self) -> None:
        """Read dataset.json."""
        object.__setattr__(self, "about", read_description(self.root))
        self.chosen_channels()

    @property
    def labels(self) -> dict[str, int]:
        """Return the labels that the user named, or else those of dataset.json."""
        return self.options.named or read_structures(self.about)

    @property
    def channels(self) -> dict[int, str]:
        """Return the numbers and names of the contrasts."""
        table = self.about.get("channel_names") or self.about.get("modality") or {}
        return {int(number): str(name) for number, name in table.items() if str(number).isdecimal()}

    def chosen_channels(self) -> list[int]:
        """Return the numbers of the contrasts to take.

        Raises:
            InputError: No contrast has this name or number.
        """
        asked = self.options.channel
        return [self._number(one) for one in (asked if isinstance(asked, tuple) else (asked,))]

    def _number(self, asked: str | int) -> int:
        known = self.channels
        number = asked if isinstance(asked, int) else next((n for n, name in known.items() if name == asked), None)
        if number is None or (known and number not in known):
            available = ", ".join(f"{n} ({name})" for n, name in known.items()) or "none by name"
            raise InputError(f"The data set {self.root} has no channel {asked!r}. Available: {available}.")
        return number

    @property
    def allowed(self) -> frozenset[int] | None:
        """Return the labels that may occur."""
        return frozenset({0, *self.labels.values()}) if self.labels and not self.options.groups else None


@dataclass(frozen=True)
class NnUnetRaw(DescribedDataSet):
    """nnU-Net raw data set: `imagesTr/CASE_0000.nii.gz` with `labelsTr/CASE.nii.gz`, and imagesTs for testing.

    Second-version folders may also list their cases in dataset.json, under `dataset`.
    """

    name: ClassVar[str] = "nnunet"

    def require_layout(self) -> None:
        """Check that there are training images."""
        super().require_layout()
        if not (self.root / "imagesTr").is_dir() and "dataset" not in self.about:
            raise InputError(f"The nnU-Net data set {self.root} must have a folder imagesTr, but has none.")

    def find_entries(self) -> list[LayeredEntry]:
        """Return all cases. Those of imagesTs are for testing."""
        listed = self.about.get("dataset")
        if isinstance(listed, dict):
            return [
                self._entry(case, self._listed_images(case, it), self.root / it["label"]) for case, it in listed.items()
            ]
        return [*self._cases("Tr", ""), *self._cases("Ts", "test")]

    def _cases(self, part: str, split: str) -> list[LayeredEntry]:
        images, labels = self.root / f"images{part}", self.root / f"labels{part}"
        ending = str(self.about.get("file_ending", ".nii.gz"))
        found = images.glob(f"*_[0-9][0-9][0-9][0-9]{ending}") if images.is_dir() else ()
        cases = {re.sub(r"_\d{4}$", "", path.name.removesuffix(ending)) for path in found}
        if labels.is_dir():
            cases |= {path.name.removesuffix(ending) for path in labels.glob(f"[!.]*{ending}")}
        return [
            self._entry(
                case,
                [images / f"{case}_{number:04d}{ending}" for number in self.chosen_channels()],
                labels / f"{case}{ending}" if labels.is_dir() else None,
                split,
            )
            for case in sorted(cases)
        ]

    def _listed_images(self, case: str, entry: Any) -> list[Path]:
        try:
            return [self.root / str(entry["images"][number]) for number in self.chosen_channels()]
        except (LookupError, TypeError) as error:
            raise InputError(
                f"{self.root / DATASET_JSON} names no image of channel {self.options.channel} of {case}."
            ) from error

    def _entry(self, case: str, images: list[Path], labels: Path | None, split: str = "") -> LayeredEntry:
        person, layers = find_subject(case, self.options.person), (LabelLayer(labels),) if labels else ()
        first, *others = images
        further = tuple((image, None) for image in others)
        return LayeredEntry(case, person, "", split, image=first, others=further, layers=layers, allowed=self.allowed)


def read_description(root: Path) -> dict[str, Any]:
    """Return the content of dataset.json.

    Raises:
        InputError: The file is missing or damaged, or names no labels.
    """
    path = root / DATASET_JSON
    try:
        about = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{path} must be the description of a data set in JSON, but cannot be read ({error})."
        ) from error
    if not isinstance(about, dict) or not isinstance(about.get("labels"), dict):
        raise InputError(f"{path} must be a JSON object that names the labels, but is something else.")
    return about


def read_structures(about: Mapping[str, Any]) -> dict[str, int]:
    """Return the label value of each structure, from names by value (the older way) or values by name.

    Names of regions that are made of several values are left out, and so is a label to be ignored.
    """
    structures = {}
    for key, entry in about["labels"].items():
        name, value = (str(entry), int(key)) if str(key).isdecimal() else (str(key), entry)
        if isinstance(value, int) and value > 0 and name != "ignore":
            structures[name] = value
    return structures
