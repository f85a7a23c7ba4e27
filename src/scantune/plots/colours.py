"""The colours of structures and of errors, one for figures and pages."""

import itertools
from collections.abc import Mapping

STRUCTURE_COLOURS = ("#56b4e9", "#d55e00", "#f0e442", "#009e73", "#cc79a7", "#0072b2", "#e69f00")
"""Of the structures, in the order of their labels (M. Okabe and K. Ito's palette, safe for colour-blind readers)."""

ERROR_COLOUR = "#ff4fc3"
"""Of pixels that are wrong, or that adaptation changed."""


def structure_colours(labels: Mapping[str, int]) -> dict[str, str]:
    """Return the colour of each structure by name; the background has none."""
    names = sorted((name for name, value in labels.items() if value), key=labels.__getitem__)
    return dict(zip(names, itertools.cycle(STRUCTURE_COLOURS)))
