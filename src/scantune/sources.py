"""Where the cases of a recipe come from: the table [data], as a simulated cohort or as folders of files."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.datasets import folder
from scantune.errors import InputError
from scantune.preprocess import Prepared, Preprocessing
from scantune.scans import Case
from scantune.settings import settings_from_table
from scantune.simulate import COHORTS, Anatomy, Atlas, Cohort, icbm152, label_maps
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME, TISSUE_SCHEME

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")
_SPLIT = "{split}"  # stands for the name of a split in file patterns


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
    train: int | None = None
    """Number of training subjects; by default the centre's own."""
    validation: int | None = None
    """Number of validation subjects; by default the centre's own."""
    slices: int | None = None
    """Slices per subject, spread over the anatomy; by default those of the centre's protocol."""
    seed: int = 0
    """Another seed gives other people."""
    atlas: str = ""
    """An exported atlas (.npz), for machines without nilearn; by default the cohort's own anatomy."""
    label_maps: str = ""
    """A folder (or exported .npz) of real label maps of the brain, to make subjects from."""
    structures: Literal["tissues", "single"] = "tissues"
    """With label maps: half of the subjects are made from them and all are labelled by tissue, or all are made from
    them and every structure of the maps is one of its own."""
    cache: str = ""
    """A folder in which simulated scans are kept; by default they are simulated each time."""

    def names(self) -> dict[str, int]:
        """Those of the cohort, or of the label maps."""
        return self._cohort().labels_of(self._anatomy if self.structures == "single" else None)

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Simulates the subjects of a split."""
        cohort = self._cohort()
        return cohort.cases(
            self.centre or cohort.source,
            split,
            seed=self.seed,
            anatomy=self._anatomy,
            count=getattr(self, split),
            slices=self.slices,
            device=device,
            cache=self.cache or None,
        )

    @cached_property
    def _anatomy(self) -> Anatomy:
        cohort, anatomy = self._cohort(), self._made()
        missing = [name for name in cohort.labels if name not in anatomy.labels]
        if missing and self.structures == "tissues":
            raise InputError(
                f"The atlas or label maps for the cohort {self.cohort} must hold {', '.join(cohort.labels)}, but hold "
                f"{', '.join(anatomy.labels)}. Leave them out, or choose another cohort."
            )
        return anatomy

    def _made(self) -> Anatomy:
        cohort = self._cohort()
        if not self.label_maps:
            return cohort.made_from(Atlas.load(self.atlas)) if self.atlas else cohort.anatomy()
        scheme = TISSUE_SCHEME if self.structures == "tissues" else STRUCTURE_SCHEME
        exported = self.label_maps.endswith(".npz")
        real = Atlas.load(self.label_maps) if exported else label_maps(self.label_maps, scheme)
        if self.structures == "single":
            return cohort.made_from(real)
        atlas = Atlas.load(self.atlas) if self.atlas else icbm152()
        return cohort.made_from(atlas.mixed_with(real))

    def _cohort(self) -> Cohort:
        if self.cohort not in COHORTS:
            raise InputError(f"Unknown cohort {self.cohort!r}. Available: {', '.join(COHORTS)}.")
        return COHORTS[self.cohort]


@dataclass(frozen=True)
class Files(Source):
    """Image files and their label maps, paired by name.

    Every file counts as one person. Nothing here knows which files are of the same person: where someone was scanned
    more than once, their files may land in both splits, and the validation Dice is then too high. Give one file each,
    or sort the files yourself: where both patterns have `{split}`, it stands for train and for validation.
    """

    images: str
    """Pattern of the images, such as data/*_T1w.nii.gz, or data/{split}/*_T1w.nii.gz."""
    labels: str
    """Pattern of the label maps, such as data/*_tissue.nii.gz, or data/{split}/*_tissue.nii.gz."""
    structures: dict[str, int]
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    validation: float = 0.2
    """Share of the files put aside for validation, at most a half; not used where the patterns have {split}."""

    def __post_init__(self) -> None:
        if (_SPLIT in self.images) != (_SPLIT in self.labels):
            raise InputError(
                f"The patterns images and labels in [data] must both have {_SPLIT} or neither, got {self.images} and "
                f"{self.labels}."
            )
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
        """Reads the cases of a split: those that `{split}` finds, or of all, every k-th by name for validation."""
        pairs = folder.pairs(*(pattern.replace(_SPLIT, split) for pattern in (self.images, self.labels)))
        if _SPLIT not in self.images:
            step = round(1 / self.validation)
            pairs = [pair for n, pair in enumerate(pairs) if (n % step == step - 1) == (split == "validation")]
        return (folder.read(pair, set(self.structures.values()) | {0}) for pair in pairs)


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
    paths = ("atlas", "label_maps", "images", "labels", "cache")
    return {key: Path(value).name if key in paths else value for key, value in record.items()}
