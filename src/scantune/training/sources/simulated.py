"""Subjects of simulated cohorts."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch

from scantune.backends import Backend
from scantune.errors import InputError
from scantune.scans.case import Case
from scantune.simulate import COHORTS, VERSION, Anatomy, Atlas, Cohort, icbm152, label_maps
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME, TISSUE_SCHEME
from scantune.training.held_out import TEST, HeldOutScan, SimulatedScan
from scantune.training.sources.base import SPLITS, CaseSource, Split, digest


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
    test_maps: int = 0
    """The number of label maps, the last ones by name, that test people alone are made from."""
    cache: str = ""
    """A folder in which simulated scans are kept; by default they are simulated each time."""

    def __post_init__(self) -> None:
        alone = not self.label_maps and (self.structures == "single" or self.test_maps)
        if alone or self.test_maps < 0:
            raise InputError(
                "The settings structures = single and test_maps (0 or more) in [data] are about label maps. Give their "
                f"folder as label_maps, or leave them out; got label_maps = {self.label_maps!r}, test_maps = "
                f"{self.test_maps}."
            )

    def names(self) -> dict[str, int]:
        """Return the structures of the cohort, or of the label maps."""
        return self.known.labels_of(self._anatomy if self.structures == "single" else None)

    def stripped(self) -> bool:
        """Return whether all subjects are stripped to the brain."""
        anatomy = self._anatomy
        return isinstance(anatomy, Atlas) and all(one.variation.stripping is not None for one in anatomy.templates)

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Simulate the subjects of a split."""
        return self.people(self.centre or self.known.source, split, device, stop=getattr(self, split))

    def people(
        self, centre: str, split: str, device: torch.device, start: int = 0, stop: int | None = None
    ) -> Iterator[Case]:
        """Simulate subjects of any centre and split, from the `start`-th to the one before the `stop`-th."""
        return self.known.cases(
            centre,
            split,
            seed=self.seed,
            anatomy=self._test_anatomy if split == TEST else self._anatomy,
            start=start,
            count=stop,
            slices=self.slices,
            device=device,
            cache=self.cache or None,
        )

    @cached_property
    def _anatomy(self) -> Anatomy:
        return self._checked(self._made(slice(None, -self.test_maps or None)))

    @cached_property
    def _test_anatomy(self) -> Anatomy:
        return self._checked(self._made(slice(-self.test_maps, None))) if self.test_maps else self._anatomy

    def _checked(self, anatomy: Anatomy) -> Anatomy:
        cohort = self.known
        missing = [name for name in cohort.labels if name not in anatomy.labels]
        if missing and self.structures == "tissues":
            raise InputError(
                f"The atlas or label maps for the cohort {self.cohort} must hold {', '.join(cohort.labels)}, but hold "
                f"{', '.join(anatomy.labels)}. Leave them out, or choose another cohort."
            )
        return anatomy

    def _made(self, maps: slice) -> Anatomy:
        """Return the anatomy, with some of the label maps."""
        cohort = self.known
        if not self.label_maps:
            return cohort.made_from(Atlas.load(self.atlas)) if self.atlas else cohort.anatomy()
        scheme = TISSUE_SCHEME if self.structures == "tissues" else STRUCTURE_SCHEME
        exported = self.label_maps.endswith(".npz")
        real = (Atlas.load(self.label_maps) if exported else label_maps(self.label_maps, scheme)).part(maps)
        if self.structures == "single":
            return cohort.made_from(real)
        atlas = Atlas.load(self.atlas) if self.atlas else icbm152()
        return cohort.made_from(atlas.mixed_with(real))

    @property
    def known(self) -> Cohort:
        """Return the cohort.

        Raises:
            InputError: There is none of that name.
        """
        if self.cohort not in COHORTS:
            raise InputError(f"Unknown cohort {self.cohort!r}. Available: {', '.join(COHORTS)}.")
        return COHORTS[self.cohort]

    @property
    def cohort_name(self) -> str:
        """Return the name of the cohort."""
        return self.cohort

    def training_site(self) -> str:
        """Return the centre to train at."""
        return self.centre or self.known.source

    def test_sites(self) -> list[str]:
        """Return every centre with held-out people."""
        return [name for name, centre in self.known.centres.items() if TEST in centre.splits]

    def test_scans(self, site: str) -> list[HeldOutScan]:
        """Return the held-out people of a centre, each in every state of the anatomy."""
        cohort, centre = self.known, self.known.centres[site]
        own = not (self.atlas or self.label_maps)
        # Asks the class of the anatomy: making the anatomy itself may take seconds.
        states = len(getattr(cohort.anatomy, "states", ("",))) if own else 1
        origin = {**self._origin(), "centre": centre.identity}
        return [
            SimulatedScan(site, number, digest({**origin, "person": number, "state": state}), self, state)
            for number in range(centre.splits[TEST])
            for state in range(states)
        ]

    def at_site(self, site: str) -> "SimulatedSource":
        """Return the source with the training and validation people of another centre."""
        missing = [split for split in SPLITS if split not in self.known.centres[site].splits]
        if missing:
            raise InputError(f"The centre {site} of cohort {self.cohort} has no people for {missing[0]}.")
        return replace(self, centre=site, train=None, validation=None)

    def identity(self, backend: Backend[Any]) -> str:  # noqa: ARG002
        """Return a hash of the cohort, the simulator's version, the protocol and the numbers of people."""
        centre = self.known.centres[self.training_site()]
        counts: dict[str, int | None] = {
            split: centre.splits.get(split) if getattr(self, split) is None else getattr(self, split)
            for split in SPLITS
        }
        return digest({**self._origin(), "centre": centre.identity, **counts})

    def with_cache(self, folder: str) -> Self:
        """Return the source with a folder for simulated scans, unless it names one."""
        return self if self.cache else replace(self, cache=folder)

    def _origin(self) -> dict[str, Any]:
        """Return what all people share: their kind, the simulator's version, and the files they are made from."""
        left_out = {"centre", "cache", *SPLITS, *(() if self.test_maps else ("test_maps",))}
        record = {name: value for name, value in asdict(self).items() if name not in left_out}
        files = {name: _contents(Path(record[name])) for name in ("atlas", "label_maps") if record[name]}
        return record | files | {"simulation": VERSION}


def _contents(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
