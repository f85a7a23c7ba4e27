"""The page of one scan: what the guard decided, the scan before and after, volumes, and the way of the adaptation."""

import gzip
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

from scantune.pages.base import CaseView, mean
from scantune.pages.charts import layers_chart, trace_chart
from scantune.pages.figure import stills, swatch, viewer, viewer_data
from scantune.pages.markup import UNKNOWN, asset, duration, embedded, fixed, generator, number, page, sentence, text
from scantune.pages.slices import colour_tables
from scantune.pages.volumes import pack, to_base64
from scantune.plots.colours import structure_colours
from scantune.scans.files import write_text


def write_case(path: str | Path, view: CaseView) -> None:
    """Write the page of one scan: one file that opens from disk, without a network.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, case_page(view))


def is_current(path: Path, made_from: Path) -> bool:
    """Whether a page is there, of this version of scantune, and newer than what it was made from."""
    if not path.is_file() or path.stat().st_mtime < made_from.stat().st_mtime:
        return False
    with path.open(encoding="utf-8") as file:
        return generator() in file.read(2000)


def case_page(view: CaseView) -> str:
    """The HTML of the page."""
    packed = pack(view)
    tables = colour_tables(view, packed.cutout)
    body = "\n".join(
        [
            _head(view),
            "<main>",
            '<div class="columns">',
            viewer(view, packed.cutout, tables),
            stills(view, packed.cutout, tables),
            f'<div class="side">{_structures(view)}{_trace(view)}{_layers(view)}</div>',
            "</div>",
            _details(view),
            "</main>",
            _foot(),
        ]
    )
    scripts = {
        "data": embedded(viewer_data(view, packed.cutout, tables)),
        "niivue": _niivue(),
        "image": packed.image,
        "codes": packed.codes,
    }
    return page(f"{view.name} - scantune", body, scripts, asset("assets/viewer.js"))


@cache
def _niivue() -> str:
    """The viewer's code, gzipped, in base64."""
    return to_base64(gzip.compress(asset("vendor/niivue.umd.js").encode(), 9, mtime=0))


def _head(view: CaseView) -> str:
    entry = view.entry
    decision = str(entry.get("decision", ""))
    pairs = "".join(
        f"<div><dt>{name}</dt><dd>{before} <span aria-label='to'>→</span> <strong>{after}</strong> "
        f"<small>{note}</small></dd></div>"
        for name, before, after, note in _figures(view)
    )
    origin = ", ".join(text(part) for part in (view.site, view.subject) if part and part != view.name)
    plain = [("Method", text(entry.get("method", UNKNOWN))), ("Time", duration(entry.get("seconds")))]
    plain += [("Site and subject", origin)] if origin else []
    rest = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in plain)
    return f"""<header>
<p class="brand">scantune <span>adaptation of one scan</span></p>
<h1>{text(view.name)}</h1>
<p class="decision {decision.replace(" ", "-")}">{text(sentence(decision, str(entry.get("reason", ""))))}</p>
{_meaning(decision)}
{"".join(f"<p>{text(remark)}</p>" for remark in entry.get("remarks") or ())}
<dl class="figures">{pairs}{rest}</dl>
</header>"""


def _figures(view: CaseView) -> Iterator[tuple[str, str, str, str]]:
    """Name, before, after and a note of the numbers that stand at the top."""
    entry, guard = view.entry, view.entry.get("guard") or {}
    if view.dice:
        before, after = (mean(part) for part in zip(*view.dice.values(), strict=True))
        yield "Mean Dice", fixed(before), fixed(after), ""
    readings = [text(entry[key]) for key in ("reading_before", "reading_after") if entry.get(key)]
    note = f"nats, {', then '.join(dict.fromkeys(readings))}" if readings else "nats"
    yield "Energy", number(entry.get("energy_before")), number(entry.get("energy_after")), note
    for measure in ("stability", "likeness"):
        if f"{measure}_after" in guard:
            yield measure.capitalize(), fixed(guard.get(f"{measure}_before")), fixed(guard[f"{measure}_after"]), ""


def _meaning(decision: str) -> str:
    """What a decision means for the result, where that is not plain."""
    meanings = {
        "rolled back": "The adaptation was undone: the result is that of the network as it was trained.",
        "skipped": "The network was not changed: the result is that of the network as it was trained.",
    }
    return f"<p>{meanings[decision]}</p>" if decision in meanings else ""


def _structures(view: CaseView) -> str:
    colours = structure_colours(view.labels)
    rows = []
    for name in view.structures:
        before, after = (view.volume_ml(labels, name) for labels in (view.before, view.after))
        change = f"{100 * (after / before - 1):+.1f} %" if before else UNKNOWN
        scores = "".join(f"<td>{fixed(value)}</td>" for value in view.dice.get(name, ()))
        rows.append(
            f'<tr><th scope="row">{swatch(colours[name])}{text(name)}</th><td>{number(before)}</td>'
            f"<td>{number(after)}</td><td>{change}</td>{scores}</tr>"
        )
    groups = '<th scope="colgroup" colspan="3">Volume in mL</th>' + (
        '<th scope="colgroup" colspan="2">Dice</th>' if view.dice else ""
    )
    columns = ["before", "after", "change", *(["before", "after"] if view.dice else [])]
    heads = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return f"""<section><h2>Structures</h2>
<div class="scroll"><table class="numbers"><thead><tr><td></td>{groups}</tr><tr><td></td>{heads}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div></section>"""


def _trace(view: CaseView) -> str:
    if not view.trace:
        return "<section><h2>The adaptation, step by step</h2><p>No step was taken.</p></section>"
    entry = view.entry
    levels = {"least possible": entry.get("energy_floor"), "typical of source subjects": entry.get("energy_typical")}
    chosen = entry.get("best_step") if entry.get("decision") == "kept" else None
    refused = any(not row.get("valid", True) for row in view.trace)
    keys = [("energy", "energy")] if any("cnn" in row for row in view.trace) else []
    keys += [("objective", "objective")] + ([("chosen", "chosen step")] if chosen is not None else [])
    keys += [("refused", "step that could not be chosen")] if refused else []
    legend = "".join(f'<span><i class="key {kind}"></i>{name}</span>' for kind, name in keys)
    return f"""<section><h2>The adaptation, step by step</h2>
{trace_chart(view.trace, levels, chosen)}
<div class="legend">{legend}</div></section>"""


def _layers(view: CaseView) -> str:
    before, after = (_by_layer(view.entry.get(key) or {}) for key in ("energies_before", "energies_after"))
    if not before:
        return ""
    return f"""<section><h2>Distance from the training scans, by layer</h2>
{layers_chart(before, after)}
<div class="legend"><span><i class="key before"></i>before</span><span><i class="key after"></i>after</span></div>
</section>"""


def _by_layer(energies: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """One name for each group of each family; the CNN experts' are the layers' own."""
    return {
        (layer if family == "cnn" else f"{layer} ({family})"): value
        for family, groups in energies.items()
        for layer, value in groups.items()
    }


def _details(view: CaseView) -> str:
    entry = view.entry
    was = entry.get("source_quality") or {}
    facts = {
        "preset": entry.get("preset"),
        "steps": entry.get("steps"),
        "chosen step": entry.get("best_step"),
        "seed": entry.get("seed"),
        "device": entry.get("device"),
        "peak memory": None if entry.get("peak_memory_mb") is None else f"{entry['peak_memory_mb']:.0f} MB",
        **{
            f"{name} before and after": f"{number(was.get(name))}, {number(value)}"
            for name, value in (entry.get("quality") or {}).items()
        },
        **{f"option {name}": value for name, value in (entry.get("options") or {}).items()},
        **{f"version of {name}": value for name, value in (entry.get("versions") or {}).items()},
    }
    rows = "".join(
        f'<tr><th scope="row">{text(name)}</th><td>{text(value)}</td></tr>'
        for name, value in facts.items()
        if value is not None
    )
    return f"<details><summary>Settings and versions</summary><table>{rows}</table></details>"


def _foot() -> str:
    return f"""<footer><p>For research use only. Made by scantune {text(version("scantune"))}. This page needs no
network; it contains the scan's picture in 8 bits, so treat it as you treat the scan.</p>
<p>The viewer is NiiVue 0.69.0, Copyright (c) 2021, Niivue, BSD 2-Clause licence, without any warranty; its terms are in
scantune/pages/vendor/LICENSE.md.</p></footer>"""
