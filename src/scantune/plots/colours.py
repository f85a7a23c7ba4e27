"""The colours of structures and of errors, one for figures and pages."""

import itertools
from collections.abc import Mapping

STRUCTURE_COLOURS = ("#56b4e9", "#d55e00", "#f0e442", "#009e73", "#cc79a7", "#0072b2", "#e69f00")
"""Of the structures, in the order of their labels (M. Okabe and K. Ito's palette, safe for colour-blind readers)."""

ERROR_COLOUR = "#ff4fc3"
"""Of pixels that are wrong, or that adaptation changed."""


KNOWN_STRUCTURES = {"csf": 0, "gm": 1, "wm": 2, "lv": 0, "rv": 1, "myo": 2, "cg": 0, "pz": 1, "wmh": 1, "tumor": 1}
"""Colours of common structures by their names, so that they look the same in every model."""


def rgb_colours(labels: Mapping[str, int]) -> dict[str, tuple[int, int, int]]:
    """Return red, green and blue, from 0 to 255, of the colour of each structure, by value."""
    return {
        name: (int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16))
        for name, colour in structure_colours(labels).items()
    }


def structure_colours(labels: Mapping[str, int]) -> dict[str, str]:
    """Return the colour of each structure by name; the background has none.

    Common structures have the same colour in every model. Others get the colours that are left, in the order of their
    labels.
    """
    names = sorted((name for name, value in labels.items() if value), key=labels.__getitem__)
    known = {
        name: STRUCTURE_COLOURS[place] for name in names if (place := KNOWN_STRUCTURES.get(name.lower())) is not None
    }
    if len(set(known.values())) < len(known):  # such as LV beside CSF
        known = {}
    free = [colour for colour in STRUCTURE_COLOURS if colour not in known.values()] or STRUCTURE_COLOURS
    rest = dict(zip((name for name in names if name not in known), itertools.cycle(free)))
    return {name: known.get(name) or rest[name] for name in names}
