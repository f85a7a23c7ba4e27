"""The page of one scan: the guard's decision, the scan before and after, volumes, and the course of the adaptation."""

import gzip
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scantune.pages.base import CaseView, mean
from scantune.pages.charts import layers_chart, trace_chart
from scantune.pages.render import GENERATOR, UNKNOWN, asset, fixed, number, render
from scantune.pages.viewer import colour_tables, pack, to_base64, viewer_data, viewer_values
from scantune.plots.colours import structure_colours
from scantune.scans.files import write_text


def write_case(path: str | Path, view: CaseView) -> None:
    """Write the page of one scan: one file that opens from disk, without a network.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, case_page(view))


def is_current(path: Path, made_from: Path) -> bool:
    """Return whether a page exists, is of this version of scantune, and is newer than the file it was made from."""
    if not path.is_file() or path.stat().st_mtime < made_from.stat().st_mtime:
        return False
    with path.open(encoding="utf-8") as file:
        return f'<meta name="generator" content="{GENERATOR}">' in file.read(2000)


def case_page(view: CaseView) -> str:
    """Return the HTML of the page."""
    packed = pack(view)
    tables = colour_tables(view, packed.cutout)
    return render(
        "case.html",
        **_heading(view),
        **viewer_values(view, packed.cutout, tables),
        has_dice=bool(view.dice),
        structures=_structures(view),
        trace_chart=_trace_chart(view) if view.trace else None,
        trace_lines=_trace_lines(view),
        trace_note=_trace_note(view),
        layers_chart=_layers_chart(view),
        facts=_facts(view.entry),
        viewer_data=viewer_data(view, packed.cutout, tables),
        niivue=_niivue(),
        image=packed.image,
        codes=packed.codes,
    )


@cache
def _niivue() -> str:
    """Return the viewer's code, gzipped, in base64."""
    return to_base64(gzip.compress(asset("vendor/niivue.umd.js").encode(), 9, mtime=0))


def _heading(view: CaseView) -> dict[str, Any]:
    """Return the values at the top of the page."""
    entry = view.entry
    decision = str(entry.get("decision", ""))
    return {
        "name": view.name,
        "decision": decision,
        "adapted_kept": bool(entry.get("adapted_kept")),
        "decision_sentence": decision_sentence(decision, str(entry.get("reason", ""))),
        "warnings": entry.get("warnings") or (),
        "remarks": entry.get("remarks") or (),
        "measures": list(_measures(view)),
        "method": entry.get("method", UNKNOWN),
        "seconds": entry.get("seconds"),
        "origin": ", ".join(part for part in (view.site, view.subject) if part and part != view.name),
    }


def decision_sentence(decision: str, reason: str) -> str:
    """Return the guard's decision and its reason as one sentence."""
    words = f"{decision}: {reason}" if reason else decision
    words = words[:1].upper() + words[1:]
    return words if words.endswith((".", "!", "?")) else f"{words}."


def _measures(view: CaseView) -> Iterator[dict[str, str]]:
    """Yield the measures before and after, with a note on their unit."""
    entry, guard = view.entry, view.entry.get("guard") or {}

    def measure(name: str, before: str, after: str, note: str = "") -> dict[str, str]:
        return {"name": name, "before": before, "after": after, "note": note}

    if view.dice:
        before, after = (mean(part) for part in zip(*view.dice.values(), strict=True))
        yield measure("Mean Dice", fixed(before), fixed(after))
    if "expected" in entry:
        kind = "Dice" if entry.get("estimate") == "dice" else "agreement"
        note = f"{entry['verdict_before']}, then {entry['verdict']}" if _is_adapted(entry) else str(entry["verdict"])
        note += " (no reliable estimate)" if entry["expected"] is None else ""
        yield measure(f"Expected {kind}", fixed(entry["expected_before"]), fixed(entry["expected"]), note)
    readings = dict.fromkeys(str(entry[key]) for key in ("reading_before", "reading_after") if entry.get(key))
    note = f"nats, {', then '.join(readings)}" if readings else "nats"
    yield measure("Energy", number(entry.get("energy_before")), number(entry.get("energy_after")), note)
    for key, name in (("stability", "Stability"), ("likeness", "Image similarity")):
        if f"{key}_after" in guard:
            yield measure(name, fixed(guard.get(f"{key}_before")), fixed(guard[f"{key}_after"]))


def _is_adapted(entry: Mapping[str, Any]) -> bool:
    """Return True if an assessed prediction is that of the adapted network."""
    return entry.get("decision") == "adapted" or bool(entry.get("adapted_kept"))


def _structures(view: CaseView) -> list[dict[str, Any]]:
    """Return a row per structure, with its volumes in mL and its Dice before and after."""
    colours = structure_colours(view.labels)
    rows = []
    for name in view.structures:
        before, after = view.volumes_ml(name)
        rows.append(
            {
                "name": name,
                "colour": colours[name],
                "before_ml": before,
                "after_ml": after,
                "change": f"{100 * (after / before - 1):+.1f} %" if before else UNKNOWN,
                "dice": view.dice.get(name, ()),
            }
        )
    return rows


def _chosen_step(view: CaseView) -> int | None:
    return (
        view.entry.get("best_step")
        if view.entry.get("decision") == "adapted" or view.entry.get("adapted_kept")
        else None
    )


def _trace_chart(view: CaseView) -> str:
    entry = view.entry
    levels = {"least possible": entry.get("energy_floor"), "typical of source subjects": entry.get("energy_typical")}
    return trace_chart(view.trace, levels, _chosen_step(view), _objective(view))


def _objective(view: CaseView) -> str:
    """Return the name of what the steps minimised."""
    return str(view.entry.get("objective") or "objective")


def _trace_lines(view: CaseView) -> dict[str, str]:
    """Return the legend of the chart: names by kind of line."""
    lines = {"energy": "energy"} if any("cnn" in row for row in view.trace) else {}
    lines |= {"objective": _objective(view) if not lines else "objective"}
    if _chosen_step(view) is not None:
        lines |= {"chosen": "chosen step"}
    if any(not row.get("valid", True) for row in view.trace):
        lines |= {"refused": "step that could not be chosen"}
    return lines


def _trace_note(view: CaseView) -> str:
    """Return an explanation of the chart of steps."""
    minimised = "The steps minimise the objective, on the slices that they see."
    if not any("cnn" in row for row in view.trace):
        return f"{minimised} A low objective alone does not prove a good segmentation."
    return (
        f"The energy is the distance of the scan's features from those of the training scans. {minimised} A step that "
        "tries a large change may raise both, and later steps reverse it. A low energy alone does not prove a good "
        "segmentation."
    )


def _layers_chart(view: CaseView) -> str | None:
    """Return the chart of layers; None if the manifest has no energies of layers."""
    before, after = (_by_layer(view.entry.get(key) or {}) for key in ("energies_before", "energies_after"))
    return layers_chart(before, after) if before else None


def _by_layer(energies: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the energies under one name for each layer of each family of experts."""
    return {
        (layer if family == "cnn" else f"{layer} ({family})"): value
        for family, groups in energies.items()
        for layer, value in groups.items()
    }


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings and versions, as far as the manifest has them."""
    source_quality = entry.get("source_quality") or {}
    facts = {
        "preset": entry.get("preset"),
        "steps": entry.get("steps"),
        "chosen step": entry.get("best_step"),
        "seed": entry.get("seed"),
        "device": entry.get("device"),
        "peak memory": None if entry.get("peak_memory_mb") is None else f"{entry['peak_memory_mb']:.0f} MB",
        **{
            f"{name} before and after": f"{number(source_quality.get(name))}, {number(value)}"
            for name, value in (entry.get("quality") or {}).items()
        },
        **{f"option {name}": value for name, value in (entry.get("options") or {}).items()},
        **{f"version of {name}": value for name, value in (entry.get("versions") or {}).items()},
    }
    return {name: value for name, value in facts.items() if value is not None}
