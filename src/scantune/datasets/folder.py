"""Folders of any images and label maps, which two file patterns find and pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from scantune.datasets.generic import GenericDataSet, GenericOptions
from scantune.datasets.layered_entry import LabelLayer, LayeredEntry
from scantune.datasets.patterns import SITE_PLACEHOLDER, PatternMatch, find_partners, match_pattern, pair_files
from scantune.datasets.subjects import SPLITS, find_subject
from scantune.errors import InputError
from scantune.scans.names import scan_name

SPLIT = "{split}"


@dataclass(frozen=True)
class FolderOptions(GenericOptions):
    """File patterns of a data set."""

    images: str = ""
    """Pattern of the images, such as *_T1w.nii.gz. {site} and {split} in it stand for a part of a path."""
    labels: str = ""
    """Pattern of the label maps, such as *_tissue.nii.gz. Empty without references."""
    brain_mask: str = ""
    """Pattern of masks, such as *_mask.nii.gz. Images are set to 0 outside."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word in (SPLIT, SITE_PLACEHOLDER):
            for name, pattern in (("labels", self.labels), ("brain_mask", self.brain_mask)):
                if pattern and (word in self.images) != (word in pattern):
                    raise InputError(
                        f"The patterns images and {name} must both have {word} or neither, got {self.images} and "
                        f"{pattern}."
                    )


@dataclass(frozen=True)
class ScanFolder(GenericDataSet):
    """Images and label maps of file patterns, which belong together if they have the same name.

    The name is the text that the pattern's `*` and `{site}` stand for, in folders too. If the pattern has neither, it
    is the file's own name without extension and suffix (`_labels`, `_seg`, ...). `**` stands for any folders and adds
    nothing to the name. `{site}` stands for the site, and `{split}` for train, validation and test. A scan is named
    after its image file, or by the name of the pattern if several files have the same name.
    """

    name: ClassVar[str] = "folder"
    options_type: ClassVar[type[GenericOptions]] = FolderOptions

    options: FolderOptions = field(default_factory=FolderOptions)

    def require_layout(self) -> None:
        """Check that there is a pattern."""
        if not self.options.images:
            raise InputError(
                f"The folder {self.root} has no known layout. Give file patterns, such as images = "
                f'"*_T1w.nii.gz" and labels = "*_labels.nii.gz". {_endings(self.root)}'
            )

    def find_entries(self) -> list[LayeredEntry]:
        """Return all images with their label maps."""
        splits = SPLITS if SPLIT in self.options.images else ("",)
        pairs = [(split, *pair) for split in splits for pair in self._pairs(split)]
        masks = [
            mask for split in splits for mask in self._masks(split, [pair[1] for pair in pairs if pair[0] == split])
        ]
        stems = {scan_name(image.path) for _, _, image, _ in pairs}
        return [
            LayeredEntry(
                scan_name(image.path) if len(stems) == len(pairs) else name,
                find_subject(name, self.options.person, scan_name(image.path)),
                image.site,
                split,
                image=image.path,
                layers=() if reference is None else (LabelLayer(reference.path),),
                allowed=self.options.allowed,
                brain_mask=mask,
            )
            for (split, name, image, reference), mask in zip(pairs, masks, strict=True)
        ]

    def _pairs(self, split: str) -> list[tuple[str, PatternMatch, PatternMatch | None]]:
        images, labels = (pattern.replace(SPLIT, split) for pattern in (self.options.images, self.options.labels))
        if split and not match_pattern(images, self.root) and not (labels and match_pattern(labels, self.root)):
            return []
        return pair_files(images, labels, self.root)

    def _masks(self, split: str, names: Sequence[str]) -> list[Path] | list[None]:
        """Return the brain masks of the scans of a split, in their order."""
        pattern = self.options.brain_mask.replace(SPLIT, split)
        return list(find_partners(names, pattern, self.root).values()) if pattern else [None] * len(names)


def _endings(root: Path) -> str:
    """Describe the endings of a folder's files in a sentence."""
    counts: dict[str, int] = {}
    for path in sorted(root.iterdir()):
        if path.is_file() and ".nii" in path.name:
            stem = scan_name(path)
            ending = f"*_{stem.rsplit('_', 1)[1]}" if "_" in stem else "*"
            ending += path.name[len(stem) :]
            counts[ending] = counts.get(ending, 0) + 1
    common = sorted(counts, key=lambda ending: (-counts[ending], ending))[:5]
    return f"It holds {', '.join(f'{ending} ({counts[ending]} files)' for ending in common)}." if common else ""
