"""Data sets in a layout that is known by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scantune.datasets import DATASETS, DataSet, ScanEntry
from scantune.errors import InputError
from scantune.training.held_out import DataKind
from scantune.training.sources.base import SPLITS
from scantune.training.sources.listed import ListedSource


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
