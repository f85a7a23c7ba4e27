"""The scan on its page: the viewer, pictures of a few slices that stand in for it, and the data of both."""

from collections.abc import Mapping
from typing import Any

from scantune.pages.base import CaseView
from scantune.pages.slices import aspect, difference_colours, middle_slice, shown_slices, slice_pictures
from scantune.pages.volumes import AXES, MARGIN, Cutout
from scantune.plots.colours import structure_colours


def viewer_values(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the values of the templates `viewer.html` and `stills.html`."""
    slice_aspect = aspect(cutout, view.plane)
    return {
        "views": ["Scan", *tables],
        "plane": view.plane,
        "planes": list(AXES),
        "slice_aspect": slice_aspect,
        "screen_aspect": min(max(slice_aspect, 0.8), 1.6),
        "structure_colours": structure_colours(view.labels),
        "difference_colours": difference_colours(view),
        "voxel": " \N{MULTIPLICATION SIGN} ".join(f"{edge:.3g}" for edge in cutout.spacing),
        "margin": "" if cutout.whole else f"{MARGIN:g}",
        "downsampled": max(cutout.downsampling) > 1,
        "stills": [
            {"number": number + 1, "pictures": slice_pictures(cutout, tables, view.plane, number)}
            for number in shown_slices(cutout, view.plane)
        ],
    }


def viewer_data(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the data that the viewer's script reads as JSON."""
    names = {value: name for name, value in view.structures.items()}
    return {
        "tables": tables,
        "maps": list(view.maps),
        "names": [[names.get(int(value), "") for value in row] for row in cutout.combinations],
        "shape": list(cutout.image.shape),
        "plane": view.plane,
        "slices": {plane: middle_slice(cutout, plane) for plane in AXES},
    }
