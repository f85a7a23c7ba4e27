"""BIDS: raw images by subject and session, labels under derivatives."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

from scantune.datasets.generic import GenericDataSet, GenericOptions
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.subjects import find_subject
from scantune.errors import InputError
from scantune.scans.names import scan_name

_RAW = (
    *("sub", "ses", "sample", "task", "acq", "ce", "trc", "stain", "rec", "dir", "run", "mod", "echo", "flip", "inv"),
    *("mt", "part", "proc", "chunk"),
)  # keys of raw images. All other keys describe derivatives
_SITES = ("site", "centre", "center", "institution")


@dataclass(frozen=True)
class BidsOptions(GenericOptions):
    """Images and labels to take from a BIDS folder."""

    suffix: str = ""
    """The contrast, at the end of the images' names, such as T2starw. May be left out if there is only one."""
    labels: str = ""
    """Names of the label maps under derivatives, such as *_dseg.nii.gz."""
    masks: dict[str, str] = field(default_factory=dict)
    """Instead of label maps, names of the masks of each structure, later ones over earlier. They get the values of
    structures, or 1, 2, ..."""
    brain_mask: str = ""
    """Names of masks under derivatives, such as *_desc-brain_mask.nii.gz. Images are set to 0 outside."""
    site_column: str = ""
    """The column of participants.tsv with the site. By default one named site, centre or institution."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels and self.masks:
            raise InputError("The labels of a BIDS data set are label maps (labels) or masks, not both. Leave one out.")
        if self.masks and self.groups:
            raise InputError(
                "Groups collect values of label maps (labels), but each of the masks is one structure. Leave one out."
            )
        if self.masks and self.structures and set(self.masks) != set(self.structures):
            raise InputError(
                f"The masks and structures must have the same names, got {', '.join(self.masks)} and "
                f"{', '.join(self.structures)}."
            )


@dataclass(frozen=True)
class Bids(GenericDataSet):
    """A BIDS folder: `sub-*/[ses-*/]DATATYPE/sub-*_SUFFIX.nii.gz`, with labels anywhere under `derivatives`.

    Labels belong to the image whose subject, session, run and so on they name. The sessions of a person stay together,
    even if they are written as subjects of their own (`sub-12Ses1`, `sub-12Ses2`).
    """

    name: ClassVar[str] = "bids"
    options_type: ClassVar[type[GenericOptions]] = BidsOptions

    options: BidsOptions = field(default_factory=BidsOptions)

    @property
    def labels(self) -> dict[str, int]:
        """Return the labels that the user named, or else the masks in their order."""
        return self.options.named or {name: n for n, name in enumerate(self.options.masks, start=1)}

    def require_layout(self) -> None:
        """Check that there are images of one contrast, and the column of sites."""
        self._images()
        self._sites()

    def find_entries(self) -> list[LayeredEntry]:
        """Return all images of the contrast."""
        sites = self._sites()
        files, derived = self._files(), self._derived()
        return [
            LayeredEntry(
                name := scan_name(path),
                find_subject(name, self.options.person),
                sites.get(name.split("_")[0], ""),
                image=path,
                layers=self._layers(path, derived),
                allowed=self.options.allowed,
                brain_mask=self._brain_mask(path, files),
            )
            for path in self._images()
        ]

    def hint(self) -> str:
        """Return a list of the files of labels if none are selected and an image has several."""
        if self.options.labels or self.options.masks:
            return ""
        derived = self._derived()
        kinds = Counter(_ending(path, image) for image in self._images() for path in derived if _belongs(path, image))
        if len(kinds) < 2:
            return ""
        found = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        return (
            f"No labels are read, since derivatives hold several kinds: {found}. Say which are label maps (labels) or "
            "masks of what, those that lie inside others last, such as masks.cord=*_seg.nii.gz masks.GM=*_gmseg.nii.gz."
        )

    def _derived(self) -> list[Path]:
        """Return all derived files except brain masks."""
        pattern = self.options.brain_mask
        return [path for path in self._files() if not (pattern and fnmatchcase(path.name, pattern))]

    def _files(self) -> list[Path]:
        return [path for path in sorted((self.root / "derivatives").rglob("*.nii*")) if path.is_file()]

    def _images(self) -> list[Path]:
        paths = [path for path in sorted(self.root.glob("sub-*/**/sub-*.nii*")) if path.is_file()]
        suffixes = Counter(scan_name(path).rsplit("_", 1)[-1] for path in paths)
        suffix = self.options.suffix or (next(iter(suffixes)) if len(suffixes) == 1 else "")
        if suffix not in suffixes:
            found = ", ".join(f"{name} ({count})" for name, count in sorted(suffixes.items())) or "none"
            asked = f"ending in _{suffix}" if suffix else "of one contrast, named by suffix"
            raise InputError(f"The BIDS folder {self.root} must hold images {asked}, but holds {found}.")
        return [path for path in paths if scan_name(path).endswith(f"_{suffix}")]

    def _layers(self, image: Path, derived: list[Path]) -> tuple[LabelLayer, ...]:
        """Return the labels of an image. If some of its masks exist, all others count as missing."""
        if not self.options.masks:
            pattern = self.options.labels or self._only_pattern(image, derived)
            found = self._belonging(image, derived, pattern) if pattern else None
            return (LabelLayer(found),) if found else ()
        paths = {name: self._belonging(image, derived, pattern) for name, pattern in self.options.masks.items()}
        if not any(paths.values()):
            return ()
        return tuple(
            LabelLayer(path or self._missing(image, self.options.masks[name]), self.labels[name])
            for name, path in paths.items()
        )

    def _brain_mask(self, image: Path, files: list[Path]) -> Path | None:
        pattern = self.options.brain_mask
        return (self._belonging(image, files, pattern) or self._missing(image, pattern)) if pattern else None

    def _missing(self, image: Path, pattern: str) -> Path:
        """Return the place where a derived file of an image would be."""
        return self.root / "derivatives" / f"{scan_name(image)}{pattern.lstrip('*')}"

    def _only_pattern(self, image: Path, derived: list[Path]) -> str:
        """Return the name of an image's label map if it has only one derived file, or else nothing."""
        mine = [path for path in derived if _belongs(path, image)]
        return mine[0].name if len(mine) == 1 else ""

    def _belonging(self, image: Path, derived: list[Path], pattern: str) -> Path | None:
        found = [path for path in derived if fnmatchcase(path.name, pattern) and _belongs(path, image)]
        if len(found) > 1:
            raise InputError(f"{image} must have one file {pattern}, but has {found[0]} and {found[1]}.")
        return found[0] if found else None

    def _sites(self) -> dict[str, str]:
        """Return the site of each participant."""
        path, wanted = self.root / "participants.tsv", self.options.site_column
        if not path.is_file():
            if wanted:
                raise InputError(f"{path} does not exist, so there is no column {wanted} with the sites.")
            return {}
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", restval=""))
        columns = list(rows[0]) if rows else []
        column = wanted or next((name for name in columns if name.lower() in _SITES), "")
        if wanted and wanted not in columns:
            raise InputError(f"{path} must have a column {wanted}, but has {', '.join(columns)}.")
        return {row.get("participant_id", ""): row[column] for row in rows} if column else {}


def _ending(derived: Path, image: Path) -> str:
    """Return the name of a derived file as a pattern, with `*` for what it shares with its image."""
    theirs, ours = scan_name(derived).split("_"), scan_name(image).split("_")
    shared = next((n for n, parts in enumerate(zip(theirs, ours, strict=False)) if len(set(parts)) > 1), len(ours))
    return "*" + derived.name[len("_".join(theirs[:shared])) :]


def _belongs(derived: Path, image: Path) -> bool:
    """Return whether a derived file was made from an image, by their names."""
    ours, theirs = _raw_parts(image), _raw_parts(derived)
    contrasts = [part for part in scan_name(derived).split("_")[:-1] if "-" not in part]
    return ours == theirs and (not contrasts or scan_name(image).rsplit("_", 1)[-1] in contrasts)


def _raw_parts(path: Path) -> dict[str, str]:
    pairs = [part.split("-", 1) for part in scan_name(path).split("_") if "-" in part]
    return {key: value for key, value in pairs if key in _RAW}
