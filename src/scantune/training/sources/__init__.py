"""Labelled training cases: the table [data] of a recipe, as a simulated cohort, a data set or pairs of files.

An experiment also asks a source for its held-out scans, its folds, and a hash of its scans.
"""

from scantune.training.sources.base import SPLITS, CaseSource, Split
from scantune.training.sources.data_set import DataSetSource
from scantune.training.sources.files import FileSource
from scantune.training.sources.listed import ListedSource
from scantune.training.sources.record import read_source, source_record
from scantune.training.sources.simulated import SimulatedSource

__all__ = [
    "SPLITS",
    "CaseSource",
    "DataSetSource",
    "FileSource",
    "ListedSource",
    "SimulatedSource",
    "Split",
    "read_source",
    "source_record",
]
