"""Where the cases of a recipe come from: the table [data], as a simulated cohort or as folders of files."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.datasets import folder
from scantune.errors import InputError
from scantune.preprocess import Prepared, Preprocessing
from scantune.scans import Case
from scantune.settings import settings_from_table
from scantune.simulate import COHORTS, Anatomy, Cohort, label_maps

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class Source(ABC):
    """Labelled cases of the training site."""

    @abstractmethod
    def names(self) -> dict[str, int]:
        """Label value of each structure, by name; 0 is background."""

    @abstractmethod
    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """The cases of a split, one after the other; each has a reference."""

    def prepared(
        self, split: Split, preprocessing: Preprocessing, device: torch.device
    ) -> Iterator[tuple[str, Prepared]]:
        """Names and prepared volumes of a split's cases."""
        for case in self.cases(split, device):
            yield case.name, preprocessing.apply(case)


@dataclass(frozen=True)
class Simulated(Source):
    """Subjects of one centre of a simulated cohort, in any number."""

    cohort: str
    """A name of scantune.simulate.COHORTS."""
    centre: str = ""
    """The centre; by default the cohort's source."""
    train: int = 20
    """Number of training subjects."""
    validation: int = 5
    """Number of validation subjects."""
    slices: int = 16
    """Slices per subject, spread over the anatomy."""
    seed: int = 0
    """Another seed gives other people."""
    atlas: str = ""
    """An exported atlas (.npz), for machines without nilearn; by default the cohort's own anatomy."""
    label_maps: str = ""
    """A folder (or exported .npz) of real label maps; half of the subjects are then made from these."""

    def names(self) -> dict[str, int]:
        """Those of the cohort."""
        return dict(self._cohort().labels)

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Simulates the subjects of a split."""
        cohort = self._cohort()
        anatomy = Anatomy.load(self.atlas) if self.atlas else cohort.anatomy()
        if self.label_maps:
            real = Anatomy.load(self.label_maps) if self.label_maps.endswith(".npz") else label_maps(self.label_maps)
            anatomy = anatomy.mixed_with(real)
        return cohort.cases(
            self.centre or cohort.source,
            split,
            seed=self.seed,
            anatomy=anatomy,
            count=getattr(self, split),
            slices=self.slices,
            device=device,
        )

    def _cohort(self) -> Cohort:
        if self.cohort not in COHORTS:
            raise InputError(f"Unknown cohort {self.cohort!r}. Available: {', '.join(COHORTS)}.")
        return COHORTS[self.cohort]


@dataclass(frozen=True)
class Files(Source):
    """Image files and their label maps, paired by name.

    Every file counts as one person. Nothing here knows which files are of the same person: where someone was scanned
    more than once, their files may land in both splits, and the validation Dice is then too high. Give one file each.
    """

    images: str
    """Pattern of the images, such as data/*_T1w.nii.gz."""
    labels: str
    """Pattern of the label maps, such as data/*_tissue.nii.gz."""
    structures: dict[str, int]
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    validation: float = 0.2
    """Share of the files put aside for validation, at most a half."""

    def __post_init__(self) -> None:
        values = list(self.structures.values())
        if not values or min(values) < 1 or len(set(values)) < len(values):
            raise InputError(
                "The structures in [data] must be named with a label value of their own, above 0, each: structures = "
                f"{{ GM = 2, WM = 3 }}, say; got {self.structures}."
            )
        if not 0 < self.validation <= 0.5:
            raise InputError(f"The share validation in [data] must be above 0 and at most 0.5, got {self.validation}.")

    def names(self) -> dict[str, int]:
        """As the recipe names them."""
        return self.structures

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:  # noqa: ARG002
        """Reads the cases of a split; every k-th file in order of name is for validation."""
        pairs = folder.pairs(self.images, self.labels)
        step = round(1 / self.validation)
        chosen = [pair for n, pair in enumerate(pairs) if (n % step == step - 1) == (split == "validation")]
        return (folder.read(pair, set(self.structures.values()) | {0}) for pair in chosen)


def read_source(table: Mapping[str, Any], where: str) -> Source:
    """Makes a source from a recipe's table [data]: with `cohort` it is simulated, with `images` it is files."""
    if "cohort" in table:
        return settings_from_table(Simulated, table, where)
    if "images" not in table:
        raise InputError(f"{where} must say where the scans are: give cohort=, or images= and labels=.")
    return settings_from_table(Files, table, where)


def describe(source: Source) -> dict[str, Any]:
    """A source as a model file records it: file names without their folders."""
    record = asdict(source)  # type: ignore[call-overload]
    paths = ("atlas", "label_maps", "images", "labels")
    return {key: Path(value).name if key in paths else value for key, value in record.items()}
