"""Labelled training cases: the table [data] of a recipe, as a simulated cohort or as a data set.

An experiment also asks a source for its held-out scans, its folds, and a hash of its scans.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import torch

from scantune.backends import Backend, Prepared, Preprocessing
from scantune.config.settings import settings_from_table
from scantune.datasets import DATASETS, DataSet, ScanEntry
from scantune.datasets.folder import FolderOptions, ScanFolder
from scantune.datasets.inspect import inspect_scan
from scantune.datasets.subjects import subjects_in_two_splits
from scantune.errors import InputError, ScanError
from scantune.scans.case import Case
from scantune.simulate import COHORTS, VERSION, Anatomy, Atlas, Cohort, icbm152, label_maps
from scantune.simulate.anatomies.labelmaps import STRUCTURE_SCHEME, TISSUE_SCHEME
from scantune.training.cache import OnCase, case_key, ignore_progress, prepared_cases, refuse_scans
from scantune.training.held_out import TEST, DataKind, HeldOutScan, ListedScan, SimulatedScan

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class CaseSource(ABC):
    """Labelled cases of the training site."""

    @abstractmethod
    def names(self) -> dict[str, int]:
        """Return the label value of each structure, by name; 0 is background."""

    @abstractmethod
    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:
        """Yield the cases of a split; each has a reference."""

    def stripped(self) -> bool:
        """Return whether everything outside the brain is 0 in all cases as they are read."""
        return False

    def prepared(
        self, split: Split, backend: Backend[Any], device: torch.device, on_case: OnCase = ignore_progress
    ) -> Iterator[tuple[str, Prepared]]:
        """Yield names and prepared volumes of a split's cases; `on_case` is called if their number is known."""
        del on_case
        for case in self.cases(split, device):
            yield case.name, backend.prepare(case)

    @property
    def cohort_name(self) -> str:
        """Return the name of the cohort or data set in score rows."""
        return "files"

    def training_site(self) -> str:
        """Return the site that networks are trained at; empty if it is not a single known site."""
        return ""

    def test_sites(self) -> list[str]:
        """Return every site with held-out scans, the training site first if it is known.

        Raises:
            InputError: The scans of the source cannot be listed.
        """
        raise self._not_listed()

    def test_scans(self, site: str) -> list[HeldOutScan]:  # noqa: ARG002
        """Return the held-out scans of a site, in an order that does not depend on the file system.

        Raises:
            InputError: The scans of the source cannot be listed.
        """
        raise self._not_listed()

    def at_site(self, site: str) -> "CaseSource":
        """Return the source with the training and validation scans of another site.

        Raises:
            InputError: The site has none, or they cannot be distinguished from those of other sites.
        """
        raise InputError(
            f"The scans of {site} cannot be selected for training: describe them as a data set with sites."
        )

    def identity(self, backend: Backend[Any]) -> str:  # noqa: ARG002
        """Return a hash of everything that decides how training and validation scans look, wherever they lie.

        Raises:
            InputError: Scans are missing or cannot be used.
        """
        raise self._not_listed()

    def folds(self) -> int:
        """Return the number of folds in which the people of the source take turns at training and testing."""
        return 1

    def in_fold(self, number: int) -> "CaseSource":  # noqa: ARG002
        """Return the source in a fold, counted from 1; sources with fewer folds begin again."""
        return self

    def with_cache(self, folder: str) -> Self:  # noqa: ARG002
        """Return the source with a folder for simulated scans, unless it names one or does not simulate."""
        return self

    def _not_listed(self) -> InputError:
        return InputError(f"An experiment needs scans that can be listed, got {type(self).__name__}.")


class ListedSource(CaseSource):
    """Scans of a data set: all that training will need are looked at before the first is read."""

    cache: str

    @abstractmethod
    def dataset(self) -> DataSet:
        """Return the data set.

        Raises:
            InputError: It is not there, or not as expected.
        """

    def chosen(self) -> list[ScanEntry]:
        """Return the scans to train on and to select by: those of the chosen sites, in all splits.

        Raises:
            InputError: There are none.
        """
        return self.dataset().entries()

    def entries(self, split: Split) -> list[ScanEntry]:
        """Return the scans of a split, after a quick check of those of all splits that training needs.

        Raises:
            InputError: Some have no reference, cannot be opened or do not fit together, which are all named; or a
                person is in two splits.
        """
        chosen = self.chosen()
        _require_sound([entry for entry in chosen if entry.split in SPLITS])
        _require_apart(chosen)
        return [entry for entry in chosen if entry.split == split]

    def stripped(self) -> bool:
        """Return whether all scans that training needs are stripped."""
        return all(entry.stripped for entry in self._needed())

    def cases(self, split: Split, device: torch.device) -> Iterator[Case]:  # noqa: ARG002
        """Read the cases of a split."""
        return (entry.read() for entry in self.entries(split))

    def prepared(
        self,
        split: Split,
        backend: Backend[Any],
        device: torch.device,  # noqa: ARG002
        on_case: OnCase = ignore_progress,
    ) -> Iterator[tuple[str, Prepared]]:
        """Yield names and prepared volumes of a split's cases, from the cache if there is one."""
        entries = self.entries(split)
        # N4 takes long, and what cannot be read should not come out at the end of it.
        if isinstance(backend, Preprocessing) and backend.n4:
            refuse_scans(self.unreadable, len(self._needed()))
        return prepared_cases(entries, backend, self.cache or None, on_case=on_case)

    @cached_property
    def unreadable(self) -> dict[str, str]:
        """Return the reasons why scans that training needs cannot be read, by name; each is read for this."""
        looks = (inspect_scan(entry) for entry in self._needed())
        return {look.entry.name: look.problem for look in looks if not look.shape}

    def test_sites(self) -> list[str]:
        """Return every site with labelled held-out scans."""
        return list(dict.fromkeys(entry.site for entry in self._held_out()))

    def test_scans(self, site: str) -> list[HeldOutScan]:
        """Return the labelled held-out scans of a site."""
        entries = [entry for entry in self._held_out() if entry.site == site]
        people = list(dict.fromkeys(entry.subject for entry in entries))
        # The preprocessing of the network is part of the model, so that the hash has the default.
        return [
            ListedScan(site, people.index(entry.subject), case_key(entry, Preprocessing()), entry, self.data)
            for entry in entries
        ]

    @property
    def data(self) -> DataKind:
        """Return whether the scans are of real people."""
        return "real"

    def identity(self, backend: Backend[Any]) -> str:
        """Return a hash of the files of training and validation scans, and of how they are read."""
        keys: dict[str, list[str]] = {
            split: [case_key(entry, backend) for entry in self.entries(split)] for split in SPLITS
        }
        return _digest({"names": self.names(), **keys})

    def _needed(self) -> list[ScanEntry]:
        return [entry for entry in self.chosen() if entry.split in SPLITS]

    def _held_out(self) -> list[ScanEntry]:
        """Return labelled scans that are put aside for tests; in data sets without splits, those of other sites."""
        entries, home = self.dataset().entries(), self.training_site()
        held_out = [entry for entry in entries if entry.split == TEST or (not entry.split and entry.site != home)]
        return [entry for entry in held_out if entry.labelled]


@dataclass(frozen=True)
class FileSource(ListedSource):
    """Image files and their label maps, paired by name; the data set `folder`, from where the command runs."""

    images: str
    """Pattern of the images, such as data/*_T1w.nii.gz, or data/{split}/*_T1w.nii.gz."""
    labels: str
    """Pattern of the label maps, such as data/*_tissue.nii.gz, or data/{split}/*_tissue.nii.gz."""
    structures: dict[str, int]
    """Label value of each structure, by name, such as { GM = 2, WM = 3 }."""
    validation: float = 0.2
    """Share of the people put aside for validation, at most a half; not used where the patterns have {split}."""
    person: str = ""
    """A regular expression that finds the person in the name of a scan, so that the scans of a person stay together;
    without one, sub-12_ses-1 and sub-12_ses-2, 12_run-1 and 12_run-2, and 12Ses1 and 12Ses2 are of one person each."""
    cache: str = ""
    """A folder in which prepared scans are kept; by default they are prepared each time."""

    def __post_init__(self) -> None:
        if not self.structures:
            raise InputError(
                "The structures in [data] must be named with their label values: structures = { GM = 2, WM = 3 }, say; "
                f"got {self.structures}."
            )
        if not 0 < self.validation <= 0.5:
            raise InputError(f"The share validation in [data] must be above 0 and at most 0.5, got {self.validation}.")
        self._options()

    def names(self) -> dict[str, int]:
        """Return the structures of the recipe."""
        return self.structures

    def dataset(self) -> DataSet:
        """Return the data set of the files."""
        return ScanFolder(Path(), self._options())

    def _options(self) -> FolderOptions:
        return FolderOptions(
            self.structures, validation=self.validation, person=self.person, images=self.images, labels=self.labels
        )


@dataclass(frozen=True)
class DataSetSource(ListedSource):
    """Scans of a data set in a layout that is known by name."""

    name: str
    """A name of scantune.datasets.DATASETS."""
    root: str
    """Its folder, or its CSV file."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of the data set, see docs/data.md."""
    site: tuple[str, ...] = ()
    """The site or sites to train at; by default a public data set's training site, and all of any other."""
    cache: str = ""
    """A folder in which prepared scans are kept; by default they are prepared each time."""

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> "DataSetSource":
        """Make a source from a table [data] with `dataset`."""
        own = {"dataset", "root", "site", "cache"}
        for key in own - {"site"}:
            if not isinstance(table.get(key, ""), str):
                raise InputError(f"The setting {key} in {where} must be text, got {table[key]!r}.")
        name, site = table["dataset"], table.get("site", ())
        sites = [site] if isinstance(site, str) else site
        if not isinstance(sites, list | tuple) or not all(isinstance(one, str) for one in sites):
            raise InputError(f"The setting site in {where} must be the name of a site or a list of them, got {site!r}.")
        if name not in DATASETS:
            raise InputError(f"Unknown data set {name!r} in {where}. Available: {', '.join(DATASETS)}.")
        if not table.get("root"):
            raise InputError(f"{where} must have the setting root: the folder (or CSV file) of the data set {name}.")
        options = {key: value for key, value in table.items() if key not in own}
        return cls(name, table["root"], options, tuple(sites), table.get("cache", ""))

    def names(self) -> dict[str, int]:
        """Return the structures of the data set or its options."""
        names = {name: value for name, value in self.dataset().labels.items() if value}
        if not names:
            raise InputError(
                f"The data set {self.name} in {self.root} does not say what its labels are. Name the structures in "
                "[data], for example structures = { GM = 2, WM = 3 }."
            )
        return names

    @property
    def data(self) -> DataKind:
        """Return whether the scans are of real people: all data sets but folders of `scantune simulate`."""
        return "simulated" if self.name == "simulated" else "real"

    def dataset(self) -> DataSet:
        """Open the data set."""
        return DATASETS[self.name].open(self.root, **self.options)

    def chosen(self) -> list[ScanEntry]:
        """Return the scans of the sites to train at."""
        dataset = self.dataset()
        entries = dataset.entries()
        sites = sorted({entry.site for entry in entries})
        wanted = self.site or dataset.sites[:1]
        for site in wanted:
            if site not in sites:
                raise InputError(
                    f"The data set {self.name} in {self.root} has no site {site!r}. Available: {', '.join(sites)}."
                )
        chosen = [entry for entry in entries if not wanted or entry.site in wanted]
        for split in SPLITS:
            if not any(entry.split == split for entry in chosen):
                at = f" at {', '.join(wanted)}" if wanted else ""
                raise InputError(
                    f"The data set {self.name} in {self.root} has no scan for {split}{at}; choose another site, or the "
                    "shares validation and test otherwise."
                )
        return chosen

    @property
    def cohort_name(self) -> str:
        """Return the name of the data set."""
        return self.name

    def training_site(self) -> str:
        """Return the site to train at, if it is a single one."""
        sites = self.site or self.dataset().sites[:1]
        return sites[0] if len(sites) == 1 else ""

    def at_site(self, site: str) -> "DataSetSource":
        """Return the source with the training and validation scans of another site."""
        return replace(self, site=(site,))

    def folds(self) -> int:
        """Return the number of folds of the data set; 1 if the option `fold` chooses one."""
        return 1 if "fold" in self.options else DATASETS[self.name].folds

    def in_fold(self, number: int) -> "DataSetSource":
        """Return the source in a fold."""
        if self.folds() == 1:
            return self
        return replace(self, options={**self.options, "fold": (number - 1) % self.folds() + 1})


def _require_sound(entries: Sequence[ScanEntry]) -> None:
    """Refuse entries that are not there or do not fit, all at once; only headers are read, so that it is quick."""
    bad: dict[str, str] = {}
    for entry in entries:
        try:
            entry.check()
            if not entry.labelled:
                bad[entry.name] = "There is no reference for it."
        except ScanError as error:
            bad[entry.name] = str(error)
    refuse_scans(bad, len(entries))


def _require_apart(entries: Sequence[ScanEntry]) -> None:
    """Refuse people who are in two splits."""
    twice = subjects_in_two_splits(entries)
    if twice:
        named = "; ".join(f"{person} ({', '.join(splits)})" for person, splits in twice.items())
        raise InputError(
            f"{len(twice)} people have scans in more than one split, so that scores would be too good: {named}. Put "
            "all scans of a person into one."
        )


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
        origin = {**self._origin(), "centre": repr(centre.protocol)}
        return [
            SimulatedScan(site, number, _digest({**origin, "person": number, "state": state}), self, state)
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
        return _digest({**self._origin(), "centre": repr(centre.protocol), **counts})

    def with_cache(self, folder: str) -> Self:
        """Return the source with a folder for simulated scans, unless it names one."""
        return self if self.cache else replace(self, cache=folder)

    def _origin(self) -> dict[str, Any]:
        """Return what all people share: their kind, the simulator's version, and the files they are made from."""
        left_out = {"centre", "cache", *SPLITS, *(() if self.test_maps else ("test_maps",))}
        record = {name: value for name, value in asdict(self).items() if name not in left_out}
        files = {name: _contents(Path(record[name])) for name in ("atlas", "label_maps") if record[name]}
        return record | files | {"simulation": VERSION}


def read_source(table: Mapping[str, Any], where: str) -> CaseSource:
    """Make a source from a recipe's table [data]: `cohort` simulates, `dataset` and `images` are files."""
    if "cohort" in table:
        return settings_from_table(SimulatedSource, table, where)
    if "dataset" in table:
        return DataSetSource.read(table, where)
    if "images" not in table:
        raise InputError(
            f"{where} must say where the scans are: give cohort=, dataset= and root=, or images= and labels=."
        )
    return settings_from_table(FileSource, table, where)


def source_record(source: CaseSource) -> dict[str, Any]:
    """Return a source as a model file records it: file names without their folders."""
    record: dict[str, Any] = asdict(source)  # type: ignore[call-overload]
    if "options" in record:
        record["options"] = _without_folders(record["options"])
    return _without_folders(record)


def _without_folders(record: Mapping[str, Any]) -> dict[str, Any]:
    return {key: Path(value).name if key in _PATHS else value for key, value in record.items()}


def _contents(path: Path) -> str:
    """Return a hash of a file, or of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, default=str).encode()).hexdigest()[:32]
