"""The index: a table of scans that can be sorted and filtered, each with a link to its page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scantune.pages.base import IndexRow
from scantune.pages.markup import UNKNOWN, asset, duration, fixed, link, number, page, text
from scantune.scans.files import write_text

INDEX = "index.html"

_COLUMNS = (
    *(("Scan", ""), ("Site", ""), ("Subject", ""), ("Method", ""), ("Decision", "")),
    *(("Dice before", "number"), ("Dice after", "number"), ("Change", "number")),
    *(("Energy before", "number"), ("Energy after", "number"), ("Time", "number")),
)


def write_index(path: str | Path, rows: Sequence[IndexRow], title: str, notes: Sequence[str] = ()) -> None:
    """Write the index of scans whose pages lie beside it, or in folders beside it.

    Args:
        path: The file.
        rows: The scans.
        title: Above the table.
        notes: Sentences below the table about what is not in it.

    Raises:
        InputError: The file cannot be written.
    """
    write_text(path, index_page(rows, title, notes))


def is_index(path: Path) -> bool:
    """Whether a file is an index that scantune wrote."""
    mark = '<meta name="generator" content="scantune'
    return path.is_file() and mark in path.read_text("utf-8", errors="replace")


def write_folder_index(folder: Path, scans: Mapping[str, Mapping[str, Any]]) -> bool:
    """Write the index of a folder of `scantune adapt`; False where another program's is there, which is left alone.

    Args:
        folder: Where the pages are.
        scans: What the manifest tells, by name of the scan.

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
        )
        for name, entry in scans.items()
    ]
    if any(row.page for row in rows):
        write_index(path, rows, "Adapted scans")
    return True


def index_page(rows: Sequence[IndexRow], title: str, notes: Sequence[str] = ()) -> str:
    """The HTML of the index; without scripts it is a plain table."""
    shown = [number for number, (name, _) in enumerate(_COLUMNS) if _is_known(name, rows)]
    heads = "".join(
        f'<th scope="col" class="{kind}"><button type="button">{name}</button></th>'
        for name, kind in (_COLUMNS[number] for number in shown)
    )
    body = "".join(f"<tr>{''.join(_cells(row)[number] for number in shown)}</tr>\n" for row in rows)
    decisions = Counter(row.decision for row in rows if row.decision)
    told = ", ".join(f"{count} {text(decision)}" for decision, count in decisions.most_common())
    scans = len({(row.site, row.name) for row in rows})
    listed = "".join(f"<li>{text(note)}</li>" for note in notes)
    counted = f"{scans} {'scan' if scans == 1 else 'scans'}" + (f", {len(rows)} runs" if len(rows) > scans else "")
    return page(
        f"{title} - scantune",
        f"""<header>
<p class="brand">scantune <span>adaptation of single scans</span></p>
<h1>{text(title)}</h1>
<p>{counted}{": " if told else ""}{told}.
Dice is the mean over structures, energy is in nats; less is closer to the training scans.</p>
<p class="filter"><label>Filter <input type="search" id="filter" placeholder="site, subject, method, decision"></label>
<output id="count" class="note"></output></p>
</header>
<main><div class="scroll"><table class="cases"><thead><tr>{heads}</tr></thead>
<tbody>
{body}</tbody></table></div>{f"<h2>Not in the table</h2><ul>{listed}</ul>" if notes else ""}</main>
<footer><p>For research use only. Click on a heading to sort by it.</p></footer>""",
        {},
        asset("assets/index.js"),
    )


def _is_known(column: str, rows: Sequence[IndexRow]) -> bool:
    """Whether a column tells anything about any scan."""
    columns: dict[str, Sequence[object]] = {
        "Site": [row.site for row in rows],
        "Subject": [row.subject for row in rows if row.subject != row.name],
        "Dice before": [row.dice_before for row in rows],
        "Dice after": [row.dice_after for row in rows],
        "Change": [row.dice_change for row in rows],
        "Energy before": [row.energy_before for row in rows],
        "Energy after": [row.energy_after for row in rows],
    }
    return column not in columns or any(value not in (None, "") for value in columns[column])


def _cells(row: IndexRow) -> list[str]:
    """One cell for each column."""
    name = f'<a href="{link(row.page)}">{text(row.name)}</a>' if row.page else text(row.name)
    kind = row.decision.replace(" ", "-")
    decision = f'<span class="tag {text(kind)}" title="{text(row.reason)}">{text(row.decision)}</span>'
    change = row.dice_change
    direction = "" if change is None or abs(change) < 0.0005 else "up" if change > 0 else "down"
    told = UNKNOWN if change is None else f"{change:+.3f}"
    return [
        f'<td class="wrap">{name}</td>',
        *(f"<td>{text(value)}</td>" for value in (row.site, row.subject, row.method)),
        f"<td>{decision if row.decision else UNKNOWN}</td>",
        *(_number(value, fixed(value)) for value in (row.dice_before, row.dice_after)),
        _number(change, f'<span class="{direction}">{told}</span>'),
        *(_number(value, number(value)) for value in (row.energy_before, row.energy_after)),
        _number(row.seconds, duration(row.seconds)),
    ]


def _number(value: float | None, told: str) -> str:
    known = "" if value is None else f' data-value="{value:.8g}"'
    return f'<td class="number"{known}>{told}</td>'
