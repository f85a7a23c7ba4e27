"""Pages to look at results with: one file per scan and an index, which open from disk without a network."""

from scantune.pages.base import CaseView, IndexRow
from scantune.pages.case import write_case

__all__ = ["CaseView", "IndexRow", "write_case"]
