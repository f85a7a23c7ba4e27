"""A folder of results: whether it takes files, what they are called, and the manifest that tells of them."""

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scantune.errors import InputError

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the manifest's layout; another one is not touched."""

ManifestEntry = dict[str, Any]
"""What the manifest tells about one scan."""

OUTPUTS = {
    "segmentation": "seg.nii.gz",
    "source": "source_seg.nii.gz",
    "deformation": "deformation.nii.gz",
    "page": "page.html",
}
"""Every file that a run may write for a scan: what the manifest calls it, and how its name ends."""


def output_name(scan: str, kind: str) -> str:
    """The name of one of a scan's files in the output folder."""
    return f"{scan}_{OUTPUTS[kind]}"


def require_writable(folder: Path) -> None:
    """Find out before the work, not after, that its result has nowhere to go; makes the folder where needed.

    Raises:
        InputError: Nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror or error}): expected a folder that takes new "
            "files. Choose another output folder, or change its permissions."
        ) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; one without scans where there is none.

    Raises:
        InputError: The file is damaged, or another or a newer program wrote it.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {"format": FORMAT, "scans": {}}
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
    if manifest.get("format") != FORMAT:
        raise InputError(
            f"{path} has format {manifest.get('format')}, but this scantune knows format {FORMAT} only. "
            "Choose another output folder, or use the scantune that wrote it."
        )
    return manifest


def finite(value: Any) -> Any:
    """Replace the numbers that JSON does not know by null."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
