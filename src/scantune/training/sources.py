"""Where the cases of a recipe come from: the table [data], as a simulated cohort or as a data set."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from scantune.config.settings import settings_from_table
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.simulate import COHORTS, Anatomy, Atlas, Cohort, icbm152, label_maps
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME, TISSUE_SCHEME
from scantune.training.case_sources import SPLITS, CaseSource, DataSetSource, FileSource, Split

__all__ = ["SPLITS", "CaseSource", "DataSetSource", "FileSource", "SimulatedSource", "Split", "describe", "read_source"]

_PATHS = ("atlas", "label_maps", "images", "labels", "cache", "root")


@dataclass(frozen=True)
class SimulatedSource(CaseSource):
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
        return self.known.labels_of(self._anatomy if self.structures == "single" else None)

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Simulates the subjects of a split."""
        return self.people(self.centre or self.known.source, split, device, stop=getattr(self, split))

    def people(
        self, centre: str, split: str, device: torch.device, start: int = 0, stop: int | None = None
    ) -> Iterator[Case]:
        """Simulates subjects of any centre and split, from the `start`-th to the one before the `stop`-th."""
        return self.known.cases(
            centre,
            split,
            seed=self.seed,
            anatomy=self._anatomy,
            start=start,
            count=stop,
            slices=self.slices,
            device=device,
            cache=self.cache or None,
        )

    @cached_property
    def _anatomy(self) -> Anatomy:
        cohort, anatomy = self.known, self._made()
        missing = [name for name in cohort.labels if name not in anatomy.labels]
        if missing and self.structures == "tissues":
            raise InputError(
                f"The atlas or label maps for the cohort {self.cohort} must hold {', '.join(cohort.labels)}, but hold "
                f"{', '.join(anatomy.labels)}. Leave them out, or choose another cohort."
            )
        return anatomy

    def _made(self) -> Anatomy:
        cohort = self.known
        if not self.label_maps:
            return cohort.made_from(Atlas.load(self.atlas)) if self.atlas else cohort.anatomy()
        scheme = TISSUE_SCHEME if self.structures == "tissues" else STRUCTURE_SCHEME
        exported = self.label_maps.endswith(".npz")
        real = Atlas.load(self.label_maps) if exported else label_maps(self.label_maps, scheme)
        if self.structures == "single":
            return cohort.made_from(real)
        atlas = Atlas.load(self.atlas) if self.atlas else icbm152()
        return cohort.made_from(atlas.mixed_with(real))

    @property
    def known(self) -> Cohort:
        """The cohort.

        Raises:
            InputError: There is none of that name.
        """
        if self.cohort not in COHORTS:
            raise InputError(f"Unknown cohort {self.cohort!r}. Available: {', '.join(COHORTS)}.")
        return COHORTS[self.cohort]


def read_source(table: Mapping[str, Any], where: str) -> CaseSource:
    """Makes a source from a recipe's table [data]: `cohort` simulates, `dataset` and `images` are files."""
    if "cohort" in table:
        return settings_from_table(SimulatedSource, table, where)
    if "dataset" in table:
        return DataSetSource.read(table, where)
    if "images" not in table:
        raise InputError(
            f"{where} must say where the scans are: give cohort=, dataset= and root=, or images= and labels=."
        )
    return settings_from_table(FileSource, table, where)


def describe(source: CaseSource) -> dict[str, Any]:
    """A source as a model file records it: file names without their folders."""
    record: dict[str, Any] = asdict(source)  # type: ignore[call-overload]
    if "options" in record:
        record["options"] = _without_folders(record["options"])
    return _without_folders(record)


def _without_folders(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Path(value).name if key in _PATHS else value for key, value in record.items()}
