"""Manifest of a folder of results: its layout, its one reader and one writer, and the names of the files it lists."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scantune.errors import InputError
from scantune.scans.files import write_text
from scantune.scans.names import file_word

MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
"""Version of the manifest's layout. Manifests of other versions are refused."""

ManifestEntry = dict[str, Any]
"""Entry of one scan in a manifest."""

OUTPUT_ENDINGS = {
    "segmentation": "seg.nii.gz",
    "source": "source_seg.nii.gz",
    "deformation": "deformation.nii.gz",
    "dicom": "seg.dcm",
    "page": "page.html",
}
"""Files that a run may write for a scan: the key in the manifest, and the end of the file name."""


STRUCTURE_KINDS = ("segmentation", "source")
"""Keys of files that structures have each for themselves if they may overlap, as `segmentation core`."""


def output_name(scan: str, kind: str, structure: str = "") -> str:
    """Return the name of one of a scan's files in the output folder, or of that of one structure."""
    if not structure:
        return f"{scan}_{OUTPUT_ENDINGS[kind]}"
    stem, *suffixes = OUTPUT_ENDINGS[kind].split(".")
    return ".".join([f"{scan}_{stem}_{file_word(structure)}", *suffixes])


DECISIONS_OF_VERSION_0_1 = {"kept": "adapted", "skipped": "left alone", "rolled back": "unsolved"}
"""Decisions in manifests and score rows of version 0.1, and their present names."""


def current_decision(decision: Any) -> Any:
    """Return the present name of a decision, which a file of version 0.1 may call otherwise."""
    return DECISIONS_OF_VERSION_0_1.get(decision, decision) if isinstance(decision, str) else decision


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest, or one without scans if the folder has none.

    Raises:
        InputError: The file is damaged, or another program or a newer version wrote it.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {"format": MANIFEST_FORMAT, "scans": {}}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        manifest = None
    scans = manifest.get("scans") if isinstance(manifest, dict) else None
    if not isinstance(scans, dict) or not all(isinstance(entry, dict) for entry in scans.values()):
        raise InputError(
            f"{path} must be a manifest that scantune wrote, but is something else or damaged. Choose "
            "another output folder, or move this file away."
        )
    assert isinstance(manifest, dict)
    if manifest.get("format") != MANIFEST_FORMAT:
        raise InputError(
            f"{path} has format {manifest.get('format')}, but this version of scantune reads format {MANIFEST_FORMAT} "
            "only. Choose another output folder, or use the version that wrote it."
        )
    for entry in (manifest, *scans.values()):
        if "decision" in entry:
            entry["decision"] = current_decision(entry["decision"])
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a folder's manifest, completely or not at all: the format first, then the run, the scans last.

    Raises:
        InputError: The file cannot be written.
    """
    run = {key: value for key, value in manifest.items() if key not in ("format", "scans")}
    scans = {"scans": manifest["scans"]} if "scans" in manifest else {}
    write_text(folder / MANIFEST, json_text({"format": MANIFEST_FORMAT} | run | scans))


def json_text(value: Any) -> str:
    """Return a value as standard JSON, with null for numbers that are not finite."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
