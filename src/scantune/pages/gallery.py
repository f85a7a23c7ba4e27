"""A gallery above the table of an index: scans in groups, each with pictures of one slice and its scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scantune.pages.base import CaseView, IndexRow
from scantune.pages.viewer import close_up
from scantune.plots.colours import structure_colours


@dataclass(frozen=True)
class Card:
    """A scan in a gallery.

    Attributes:
        row: The scan's row of the index.
        heading: What it is called.
        sentence: The reason of the decision.
        facts: Short facts by their names.
        pictures: Data URLs of pictures of one slice, by caption.
        colours: Colour of each structure by name.
    """

    row: IndexRow
    heading: str
    sentence: str
    facts: Mapping[str, str]
    pictures: Mapping[str, str]
    colours: Mapping[str, str]

    @classmethod
    def of(cls, view: CaseView, page: str, heading: str, facts: Mapping[str, str]) -> "Card":
        """Make the card of a scan whose page is a file beside the index."""
        reason = str(view.entry.get("reason", ""))
        return cls(view.summary(page), heading, reason, facts, close_up(view), structure_colours(view.labels))


@dataclass(frozen=True)
class Group:
    """Scans of the same outcome, under a heading with a sentence."""

    heading: str
    sentence: str
    cards: Sequence[Card]


@dataclass(frozen=True)
class Gallery:
    """Groups of scans, below sentences about all of them."""

    introduction: Sequence[str]
    groups: Sequence[Group]

    @property
    def rows(self) -> list[IndexRow]:
        """Return the rows of all scans."""
        return [card.row for group in self.groups for card in group.cards]
