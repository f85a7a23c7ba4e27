"""Summaries of an output folder for other programs: volumes, statistics, and the names and colours of labels.

`volumes.csv` opens in a spreadsheet, `statistics.json` in a script, `labels.ctbl` in 3D Slicer (as a colour table) and
`labels.txt` in ITK-SNAP (as label descriptions).
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scantune.plots.colours import rgb_colours
from scantune.scans.files import write_text
from scantune.scans.manifest import json_text

VOLUMES, STATISTICS, SLICER, ITK_SNAP = "volumes.csv", "statistics.json", "labels.ctbl", "labels.txt"

VOLUME_COLUMNS = ("scan", "structure", "volume_ml", "source_volume_ml", "decision", "verdict", "expected_dice")
"""Columns of `volumes.csv`: a row for each scan and structure. `source_volume_ml` is that before adaptation."""

_MARK = "scantune"  # in the files that are not tables, to know them again


def write_summary_files(
    folder: Path, manifest: Mapping[str, Any], more: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Write the summaries of an output folder beside its manifest, if it holds a scan with volumes.

    Args:
        folder: The folder.
        manifest: Its manifest.
        more: Texts of further files, by name.

    Returns:
        The names of files that were left as they are, since another program wrote them.

    Raises:
        InputError: A file cannot be written.
    """
    scans = {name: entry for name, entry in manifest["scans"].items() if "volumes_ml" in entry}
    if not scans:
        return []
    labels = {name: int(value) for name, value in manifest.get("labels", {}).items()}
    texts = {
        VOLUMES: volume_table(scans),
        STATISTICS: json_text({_MARK: manifest.get("scantune"), "unit": "mL", "scans": _statistics(scans)}),
        SLICER: slicer_colours(labels),
        ITK_SNAP: itk_snap_labels(labels),
        **more,
    }
    left = [name for name, text in texts.items() if not _may_write(folder / name, text)]
    for name, text in texts.items():
        if name not in left:
            write_text(folder / name, text)
    return left


def volume_table(scans: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of `volumes.csv` for the manifest's entries of scans."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(VOLUME_COLUMNS)
    for name, entry in scans.items():
        before, expected = entry.get("source_volumes_ml", {}), entry.get("expected")
        said = (entry.get("decision", ""), entry.get("verdict", ""), "" if expected is None else f"{expected:.3f}")
        for structure, volume in entry["volumes_ml"].items():
            writer.writerow((name, structure, volume, before.get(structure, ""), *said))
    return text.getvalue()


def slicer_colours(labels: Mapping[str, int]) -> str:
    """Return a colour table for 3D Slicer: number, name without blanks, red, green, blue, opacity."""
    lines = [f"# {_MARK}: colour table for 3D Slicer", "0 background 0 0 0 0"]
    for name, value, colour in _coloured(labels):
        lines.append(f"{value} {'_'.join(name.split())} {' '.join(map(str, colour))} 255")
    return "\n".join(lines) + "\n"


def itk_snap_labels(labels: Mapping[str, int]) -> str:
    """Return label descriptions for ITK-SNAP: number, red, green, blue, opacity, shown, shown as mesh, name."""
    lines = [f"# {_MARK}: label descriptions for ITK-SNAP", '    0     0    0    0        0  0  0    "Clear Label"']
    for name, value, colour in _coloured(labels):
        red, green, blue = colour
        plain = name.replace('"', "'")
        lines.append(f'{value:5d} {red:5d} {green:4d} {blue:4d}        1  1  1    "{plain}"')
    return "\n".join(lines) + "\n"


def _coloured(labels: Mapping[str, int]) -> list[tuple[str, int, tuple[int, int, int]]]:
    """Return name, value and colour (red, green, blue) of each structure, by value."""
    return [(name, labels[name], colour) for name, colour in rgb_colours(labels).items()]


def _statistics(scans: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return decision, verdict, warnings and volumes of each scan."""
    return {
        name: {
            **{key: entry.get(key) for key in ("decision", "verdict", "expected")},
            "warnings": entry.get("warnings", []),
            "structures": {
                structure: {"volume_ml": volume, "source_volume_ml": entry.get("source_volumes_ml", {}).get(structure)}
                for structure, volume in entry["volumes_ml"].items()
            },
        }
        for name, entry in scans.items()
    }


def _may_write(path: Path, text: str) -> bool:
    """Return whether a file is missing, or was written by this module: it begins as the text does, or has our mark."""
    if not path.exists():
        return True
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(200)
    except OSError:
        return False
    return start.startswith(text.partition("\n")[0]) if path.suffix in (".csv", ".tsv") else _MARK in start
