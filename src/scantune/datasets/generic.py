"""What the layouts that fit any data have in common: options, and splits where the layout has none."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from scantune.config.settings import settings_from_table
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.layered_entry import LayeredEntry, sort_by_name
from scantune.datasets.subjects import assign_splits
from scantune.errors import InputError


@dataclass(frozen=True)
class GenericOptions:
    """What can be said about any data set beside where it is."""

    structures: dict[str, int] = field(default_factory=dict)
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    groups: dict[str, list[int]] = field(default_factory=dict)
    """Instead of structures, which values of the label maps make up each of them, such as { gland = [1, 2] }; they get
    the labels 1, 2, ... in their order, and values that are not named become background."""
    validation: float = 0.2
    """Share of the people put aside for validation, where the data set itself says nothing."""
    test: float = 0.0
    """Share of the people put aside for testing, where the data set itself says nothing."""
    seed: int = 0
    """Another one puts other people aside; with 0 they are every so manieth by name."""
    person: str = ""
    """A regular expression that finds the person in the name of a scan; see `people.person_of` for the rule without."""

    def __post_init__(self) -> None:
        values = list(self.structures.values())
        if values and (min(values) < 1 or len(set(values)) < len(values)):
            raise InputError(
                "The structures must be named with a label value of their own, above 0, each: structures = "
                f"{{ GM = 2, WM = 3 }}, say; got {self.structures}."
            )
        self._require_groups()
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise InputError(
                "The shares validation and test must be 0 or more, and below 1 together, got "
                f"{self.validation} and {self.test}."
            )
        try:
            re.compile(self.person)
        except re.error as error:
            raise InputError(f"The rule person = {self.person!r} is not a regular expression: {error}.") from error

    def _require_groups(self) -> None:
        members = [value for values in self.groups.values() for value in values]
        if self.groups and self.structures:
            raise InputError("The labels are told by structures or by groups, not both; leave one out.")
        if not all(self.groups.values()) or len(set(members)) < len(members) or min(members, default=1) < 1:
            raise InputError(
                "The groups must have one or more label values each, above 0 and in no other group: groups = "
                f"{{ gland = [1, 2] }}, say; got {self.groups}."
            )

    @property
    def named(self) -> dict[str, int]:
        """Return our label of each structure that is named."""
        return dict(self.structures) or {name: value for value, name in enumerate(self.groups, start=1)}

    @property
    def grouped(self) -> dict[int, int] | None:
        """Return our label of each value of the label maps, or None if values stay as they are."""
        ours = self.named
        return {theirs: ours[name] for name, values in self.groups.items() for theirs in values} or None

    @property
    def allowed(self) -> frozenset[int] | None:
        """Return the labels that may occur, or None if no structures are named."""
        return frozenset({0, *self.structures.values()}) if self.structures else None


@dataclass(frozen=True)
class GenericDataSet(DataSet):
    """A data set of any origin, in a common layout.

    Attributes:
        root: Its folder or file.
        options: What was said about it.
    """

    options_type: ClassVar[type[GenericOptions]] = GenericOptions
    kind: ClassVar[str] = "folder"
    """What the root is, as messages call it."""

    root: Path
    options: Any

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Open a folder or file."""
        place = Path(root).expanduser()
        if not (place.is_file() if cls.kind == "file" else place.is_dir()):
            raise InputError(f"{place} must be a {cls.kind}, for the data set {cls.name}, but there is none. Check it.")
        opened = cls(place, settings_from_table(cls.options_type, options, f"the options of the data set {place}"))
        opened.look()
        return opened

    @property
    def labels(self) -> Mapping[str, int]:
        """Return the labels that the user named."""
        return dict(self.options.named)

    def entries(self) -> list[ScanEntry]:
        """Return all scans by name, each with a split."""
        options = self.options
        found = [replace(entry, groups=options.grouped) for entry in sort_by_name(self.find(), self.root)]
        return [*assign_splits(found, options.validation, options.test, options.seed)]

    def look(self) -> None:
        """Check that the root is laid out as expected.

        Raises:
            InputError: It is not.
        """

    @abstractmethod
    def find(self) -> list[LayeredEntry]:
        """Return all scans in any order, with the splits that the layout itself gives."""
