"""Common part of the layouts that fit any data: options, and splits if the layout has none."""

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
    """Options of every data set."""

    structures: dict[str, int] = field(default_factory=dict)
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    groups: dict[str, list[int]] = field(default_factory=dict)
    """Instead of structures, the values of the label maps that make up each of them, such as { gland = [1, 2] }. The
    groups get the labels 1, 2, ... in their order, and all other values become background."""
    validation: float = 0.2
    """Share of the people put aside for validation, if the data set itself has no splits."""
    test: float = 0.0
    """Share of the people put aside for testing, if the data set itself has no splits."""
    held_out: tuple[str, ...] = ()
    """Names of the scans that are put aside for validation, in place of a share."""
    seed: int = 0
    """Seed of the choice of people who are put aside. 0 takes them at regular intervals in order of name."""
    person: str = ""
    """A regular expression that finds the person in the name of a scan. See `find_subject` for the rule without one."""

    def __post_init__(self) -> None:
        values = list(self.structures.values())
        if values and (min(values) < 1 or len(set(values)) < len(values)):
            raise InputError(
                "The structures must each have a label value of their own above 0, such as structures = "
                f"{{ GM = 2, WM = 3 }}, but are {self.structures}."
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
            raise InputError("The labels are given by structures or by groups, not both. Leave one out.")
        if not all(self.groups.values()) or len(set(members)) < len(members) or min(members, default=1) < 1:
            raise InputError(
                "The groups must each have one or more label values, above 0 and in no other group, such as groups = "
                f"{{ gland = [1, 2] }}, but are {self.groups}."
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
    """Data set of any origin, in a common layout.

    Attributes:
        root: Folder or file of the data set.
        options: Options of the user.
    """

    options_type: ClassVar[type[GenericOptions]] = GenericOptions
    kind: ClassVar[str] = "folder"
    """Kind of the root in messages: folder or file."""

    root: Path
    options: Any

    @classmethod
    def open(cls, root: str | Path, **options: Any) -> Self:
        """Open a folder or file."""
        place = Path(root).expanduser()
        if not (place.is_file() if cls.kind == "file" else place.is_dir()):
            raise InputError(f"{place} must be a {cls.kind}, for the data set {cls.name}, but there is none. Check it.")
        opened = cls(place, settings_from_table(cls.options_type, options, f"the options of the data set {place}"))
        opened.require_layout()
        return opened

    @property
    def labels(self) -> Mapping[str, int]:
        """Return the labels that the user named."""
        return dict(self.options.named)

    def entries(self) -> list[ScanEntry]:
        """Return all scans by name, each with a split."""
        options = self.options
        found = [replace(entry, groups=options.grouped) for entry in sort_by_name(self.find_entries(), self.root)]
        if any(entry.name in options.held_out for entry in found):
            sides = {entry.name: "validation" if entry.name in options.held_out else "train" for entry in found}
            found = [replace(entry, split=entry.split or sides[entry.name]) for entry in found]
        return [*assign_splits(found, options.validation, options.test, options.seed)]

    def require_layout(self) -> None:
        """Check that the root is laid out as expected.

        Raises:
            InputError: The layout is another.
        """

    @abstractmethod
    def find_entries(self) -> list[LayeredEntry]:
        """Return all scans in any order, with the splits that the layout itself gives."""
