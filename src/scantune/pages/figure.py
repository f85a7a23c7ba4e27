"""The scan on its page: the viewer, pictures of a few slices that stand in for it, and what both need to know."""

from collections.abc import Mapping
from typing import Any

from scantune.pages.base import CaseView
from scantune.pages.markup import text
from scantune.pages.slices import aspect, difference_colours, middle_slice, shown_slices, slice_pictures
from scantune.pages.volumes import AXES, MARGIN, Cutout
from scantune.plots.colours import structure_colours


def viewer_data(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> dict[str, Any]:
    """What the viewer's script needs to know."""
    names = {value: name for name, value in view.structures.items()}
    return {
        "tables": tables,
        "maps": list(view.maps),
        "names": [[names.get(int(value), "") for value in row] for row in cutout.combinations],
        "shape": list(cutout.image.shape),
        "plane": view.plane,
        "slices": {plane: middle_slice(cutout, plane) for plane in AXES},
    }


def viewer(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> str:
    """The viewer and its controls; hidden until the script has found that it can run."""
    shown = ["Scan", *tables]
    choices = "".join(
        f'<label><input type="radio" name="show" value="{name}"{" checked" if name == "After" else ""}>'
        f"<span>{name}</span></label>"
        for name in shown
    )
    planes = "".join(
        f'<option value="{plane}"{" selected" if plane == view.plane else ""}>{plane}</option>' for plane in AXES
    )
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-structure="{text(name)}">{swatch(colour)}'
        f"{text(name)}</button>"
        for name, colour in structure_colours(view.labels).items()
    )
    kinds = "".join(f"<span>{swatch(colour)}{name}</span>" for name, colour in difference_colours(view).items())
    edges = " \N{MULTIPLICATION SIGN} ".join(f"{edge:.3g}" for edge in cutout.spacing)
    cut = "The whole scan" if cutout.whole else f"The structures and {MARGIN:g} mm around them"
    coarser = " (the files are finer)" if max(cutout.coarser) > 1 else ""
    return f"""<section class="viewer" aria-label="Viewer" hidden>
<div class="bar">
<fieldset class="choices"><legend>Show</legend>{choices}</fieldset>
<label class="range">Opacity <input type="range" id="opacity" min="0" max="100" value="50"></label>
</div>
<div class="screen" style="aspect-ratio: {min(max(aspect(cutout, view.plane), 0.8), 1.6):.3f}">
<canvas id="canvas" tabindex="0" aria-label="The scan; arrows up and down change the slice, 0 to {len(tables)} what is
 shown"></canvas></div>
<div class="bar">
<label class="range wide">Slice <input type="range" id="slice" min="0" value="0"><output id="place"></output></label>
<label>Plane <select id="plane">{planes}</select></label>
</div>
<div class="legend" id="structures">{chips}</div>
<div class="legend" id="kinds" hidden>{kinds}</div>
<p class="note" id="pointed" aria-live="polite"></p>
<p class="note">{cut}, in voxels of {edges} mm{coarser}. The patient's right is on the left. Scroll, or use the arrow
keys, to change the slice; keys 0 to {len(tables)} choose what is shown.</p>
</section>"""


def stills(view: CaseView, cutout: Cutout, tables: Mapping[str, list[str]]) -> str:
    """A few slices as pictures: for print, and where the viewer cannot run."""
    rows = []
    for slice_number in shown_slices(cutout, view.plane):
        pictures = slice_pictures(cutout, tables, view.plane, slice_number)
        cells = "".join(
            f'<td><img src="{source}" alt="{name}, slice {slice_number + 1}" style="aspect-ratio: '
            f'{aspect(cutout, view.plane):.3f}"></td>'
            for name, source in pictures.items()
        )
        rows.append(f'<tr><th scope="row">{slice_number + 1}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("Slice", "Scan", *tables))
    colours = structure_colours(view.labels) | difference_colours(view)
    legend = "".join(f"<span>{swatch(colour)}{text(name)}</span>" for name, colour in colours.items())
    return f"""<section class="stills">
<p class="note" id="why"><noscript>Scripts are switched off in this browser. These are pictures of a few slices.
</noscript></p>
<table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>
<div class="legend">{legend}</div>
</section>"""


def swatch(colour: str) -> str:
    """A patch of a colour, before a name."""
    return f'<i class="swatch" style="background:{colour}"></i>'
