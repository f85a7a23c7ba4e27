"""Names of the files that a run writes: beside each other, or as derivatives of a BIDS data set."""

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import version

from scantune.errors import InputError
from scantune.plots.colours import structure_colours
from scantune.scans.manifest import output_name

BIDS_VERSION = "1.8.0"

_ENTITY = re.compile(r"[a-zA-Z]+-[a-zA-Z0-9]+")
_IGNORED = ("*_page.html", "index.html", "manifest.json", "volumes.csv", "statistics.json", "labels.*", "*.dcm")


class OutputNames(ABC):
    """Names of a scan's files in the output folder."""

    @abstractmethod
    def path(self, scan: str, kind: str, structure: str = "") -> str:
        """Return the path of a file in the output folder, by a key of `OUTPUT_ENDINGS`, or of that of one structure."""

    def folder_files(self, labels: Mapping[str, int]) -> dict[str, str]:
        """Return the texts of files that describe the folder, by name."""
        del labels
        return {}


class PlainNames(OutputNames):
    """`NAME_seg.nii.gz` and so on, all in the output folder."""

    def path(self, scan: str, kind: str, structure: str = "") -> str:
        """Return the file name."""
        return output_name(scan, kind, structure)


class BidsNames(OutputNames):
    """Names of BIDS derivatives: `sub-01/anat/sub-01_desc-scantuneT1w_dseg.nii.gz` for the scan `sub-01_T1w`.

    Pages and segmentations in DICOM, for which BIDS has no names, keep theirs.
    """

    def path(self, scan: str, kind: str, structure: str = "") -> str:
        """Return the path below the folders of subject and session."""
        if kind not in ("segmentation", "source", "deformation"):
            return output_name(scan, kind)
        entities, suffix = _parsed(scan)
        folders = [entity for entity in entities if entity.startswith(("sub-", "ses-"))]
        if kind == "deformation":
            words = [*entities, f"from-{suffix or 'scan'}", "to-atlas", "mode-image", "xfm.nii.gz"]
        else:
            described = f"desc-{'scantune' if kind == 'segmentation' else 'source'}{suffix}"
            label = "".join(sign for sign in structure if sign.isalnum() and sign.isascii())
            words = [*entities, f"label-{label}", described, "mask.nii.gz"]
            words = words if structure else [*entities, described, "dseg.nii.gz"]
        return "/".join([*folders, "anat", "_".join(words)])

    def folder_files(self, labels: Mapping[str, int]) -> dict[str, str]:
        """Return the description of the data set, the table of labels, and the names that are none of BIDS."""
        description = {
            "Name": "Segmentations by scantune",
            "BIDSVersion": BIDS_VERSION,
            "DatasetType": "derivative",
            "GeneratedBy": [{"Name": "scantune", "Version": version("scantune")}],
        }
        colours = structure_colours(labels)
        rows = ["index\tname\tcolor", *(f"{labels[name]}\t{name}\t{colours[name]}" for name in colours)]
        return {
            "dataset_description.json": json.dumps(description, indent=2) + "\n",
            "dseg.tsv": "\n".join(rows) + "\n",
            ".bidsignore": "\n".join(["# files of scantune that are none of BIDS", *_IGNORED]) + "\n",
        }


NAMINGS: tuple[OutputNames, ...] = (PlainNames(), BidsNames())
"""All ways in which files may be named."""


def require_unique(names: OutputNames, scans: Iterable[str]) -> None:
    """Check that no two scans have one file.

    Raises:
        InputError: Two have.
    """
    paths = {scan: names.path(scan, "segmentation").lower() for scan in scans}
    counts = Counter(paths.values())
    same = [scan for scan, path in paths.items() if counts[path] > 1]
    if same:
        raise InputError(
            f"The scans {' and '.join(same[:2])} would both be written as {names.path(same[0], 'segmentation')}. "
            "Rename one, or leave out --bids."
        )


def _parsed(scan: str) -> tuple[list[str], str]:
    """Return the entities of a BIDS name, and its suffix. Any other name becomes the subject's."""
    *entities, suffix = scan.split("_")
    if entities and entities[0].startswith("sub-") and suffix.isalnum() and all(map(_ENTITY.fullmatch, entities)):
        return [entity for entity in entities if not entity.startswith("desc-")], suffix
    return [f"sub-{''.join(sign for sign in scan if sign.isalnum() and sign.isascii()) or 'scan'}"], ""
