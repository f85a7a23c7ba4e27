"""Data sets: adapters that find the scans of a data set with their people, sites and splits."""

from scantune.datasets.abide import Abide
from scantune.datasets.base import DataSet, ScanEntry
from scantune.datasets.bids import Bids
from scantune.datasets.csv_manifest import CsvManifest
from scantune.datasets.decathlon import Decathlon
from scantune.datasets.detect import find_layout
from scantune.datasets.folder import ScanFolder
from scantune.datasets.hcp import Hcp
from scantune.datasets.mms import Mms
from scantune.datasets.nci_isbi import NciIsbi
from scantune.datasets.nnunet import NnUnetRaw
from scantune.datasets.oasis import Oasis
from scantune.datasets.promise12 import Promise12
from scantune.datasets.scgm import Scgm
from scantune.datasets.simulated import Simulated
from scantune.datasets.wmh import Wmh

DATASETS: dict[str, type[DataSet]] = {
    "folder": ScanFolder,
    "csv": CsvManifest,
    "bids": Bids,
    "nnunet": NnUnetRaw,
    "decathlon": Decathlon,
    "simulated": Simulated,
    "nci-isbi-2013": NciIsbi,
    "promise12": Promise12,
    "mms": Mms,
    "scgm": Scgm,
    "hcp": Hcp,
    "abide": Abide,
    "oasis": Oasis,
    "wmh-2017": Wmh,
}
"""Data sets by name: layouts for any data, then public data sets."""

__all__ = ["DATASETS", "DataSet", "ScanEntry", "find_layout"]
