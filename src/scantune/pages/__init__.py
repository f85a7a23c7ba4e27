"""Pages to look at results with: one file per scan and an index, which open from disk without a network."""

from scantune.pages.base import CaseView, IndexRow
from scantune.pages.case import write_case
from scantune.pages.gallery import Card, Gallery, Group
from scantune.pages.index import INDEX, write_folder_index, write_index

__all__ = [
    "INDEX",
    "Card",
    "CaseView",
    "Gallery",
    "Group",
    "IndexRow",
    "write_case",
    "write_folder_index",
    "write_index",
]
