"""Image files and their label maps, paired by name."""

from dataclasses import dataclass
from pathlib import Path

from scantune.datasets import DataSet
from scantune.datasets.folder import FolderOptions, ScanFolder
from scantune.errors import InputError
from scantune.training.sources.listed import ListedSource


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
