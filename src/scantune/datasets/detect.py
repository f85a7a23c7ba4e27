"""Detection of the layout of a folder or file."""

from __future__ import annotations

from pathlib import Path

from scantune.datasets.nnunet import DATASET_JSON, read_description
from scantune.errors import InputError
from scantune.scans.manifest import MANIFEST


def find_layout(root: str | Path) -> str:
    """Return the name, in `DATASETS`, of the layout of a folder or file, or `folder` if nothing indicates another.

    Raises:
        InputError: There is no such folder or file.
    """
    place = Path(root).expanduser()
    if place.is_file() and place.suffix.lower() in (".csv", ".tsv"):
        return "csv"
    if not place.is_dir():
        raise InputError(f"{place} must be a folder of scans, a CSV file that lists them or a recipe. Check the path.")
    if (place / DATASET_JSON).is_file():
        return _described(place)
    for file, layout in ((MANIFEST, "simulated"), ("dataset_description.json", "bids")):
        if (place / file).is_file():
            return layout
    return "folder"


def _described(root: Path) -> str:
    """Return the layout of a folder with a dataset.json: nnU-Net or the decathlon.

    Both nnU-Net's first version and the decathlon list files. The lists of nnU-Net name no channels.
    """
    about = read_description(root)
    listed = about.get("training")
    if not isinstance(listed, list) or "channel_names" in about or "file_ending" in about:
        return "nnunet"
    first = listed[0].get("image", "") if listed and isinstance(listed[0], dict) else ""
    numbered = any((root / "imagesTr").glob("*_0000.*"))
    return "nnunet" if numbered and not (root / str(first)).is_file() else "decathlon"
