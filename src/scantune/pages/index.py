"""The index: a table of scans that can be sorted and filtered, each with a link to its page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scantune.pages.base import IndexRow
from scantune.pages.gallery import Gallery
from scantune.pages.render import UNKNOWN, render
from scantune.scans.files import write_text

INDEX = "index.html"

_COLUMNS = {
    "name": "Scan",
    "site": "Site",
    "subject": "Subject",
    "method": "Method",
    "decision": "Decision",
    "dice_before": "Dice before",
    "dice_after": "Dice after",
    "dice_change": "Change",
    "energy_before": "Energy before",
    "energy_after": "Energy after",
    "seconds": "Time",
}
"""Headings of the table, by attribute of `IndexRow`."""
_NUMERIC = {"dice_before", "dice_after", "dice_change", "energy_before", "energy_after", "seconds"}
_ALWAYS_SHOWN = {"name", "method", "decision", "seconds"}


def write_index(
    path: str | Path,
    rows: Sequence[IndexRow],
    title: str,
    notes: Sequence[str] = (),
    gallery: Gallery | None = None,
) -> None:
    """Write the index of scans whose pages lie beside it, or in folders beside it.

    Args:
        path: The file.
        rows: The scans.
        title: Heading above the table.
        notes: Sentences about missing scans, for below the table.
        gallery: Pictures of the scans, for above the table.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, index_page(rows, title, notes, gallery))


def is_index(path: Path) -> bool:
    """Return whether a file is an index that scantune wrote."""
    mark = '<meta name="generator" content="scantune'
    return path.is_file() and mark in path.read_text("utf-8", errors="replace")


def write_folder_index(folder: Path, scans: Mapping[str, Mapping[str, Any]]) -> bool:
    """Write the index of a folder of `scantune adapt`, unless another program's file has its name.

    Args:
        folder: The folder of the pages.
        scans: Entries of the manifest, by name of the scan.

    Returns:
        False if the file of another program was left as it is.

    Raises:
        InputError: The file cannot be written.
    """
    path = folder / INDEX
    if path.exists() and not is_index(path):
        return False
    rows = [
        IndexRow(
            entry.get("outputs", {}).get("page", ""),
            name,
            method=str(entry.get("method", "")),
            decision=str(entry.get("decision", "")),
            reason=" ".join(str(entry[key]) for key in ("reason", "page_failure") if key in entry),
            energy_before=entry.get("energy_before"),
            energy_after=entry.get("energy_after"),
            seconds=entry.get("seconds"),
            warnings=entry.get("warnings") or (),
        )
        for name, entry in scans.items()
    ]
    if any(row.page for row in rows):
        write_index(path, rows, "Adapted scans")
    return True


def index_page(rows: Sequence[IndexRow], title: str, notes: Sequence[str] = (), gallery: Gallery | None = None) -> str:
    """Return the HTML of the index; without scripts it is a plain table."""
    scans = len({(row.site, row.name) for row in rows})
    counted = f"{scans} {'scan' if scans == 1 else 'scans'}" + (f", {len(rows)} runs" if len(rows) > scans else "")
    found = Counter(row.decision for row in rows if row.decision).most_common()
    found += [("with a warning", sum(bool(row.warnings) for row in rows))] if any(row.warnings for row in rows) else []
    return render(
        "index.html",
        title=title,
        summary=": ".join(filter(None, [counted, ", ".join(f"{count} {name}" for name, count in found)])),
        columns={column: name for column, name in _COLUMNS.items() if _is_shown(column, rows)},
        numeric=_NUMERIC,
        rows=rows,
        notes=notes,
        gallery=gallery,
        unknown=UNKNOWN,
    )


def _is_shown(column: str, rows: Sequence[IndexRow]) -> bool:
    """Return whether a column has a value for any scan, or is always shown."""
    if column == "subject":
        rows = [row for row in rows if row.subject != row.name]
    return column in _ALWAYS_SHOWN or any(getattr(row, column) not in (None, "") for row in rows)
