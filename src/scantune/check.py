"""The check of a data set: its content by site and split, and its problems by scan."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scantune.config.recipe import bundled_recipes, read_recipe
from scantune.datasets import DATASETS, DataSet, find_layout
from scantune.datasets.inspect import SCAN_NOTES, ScanSummary, inspect_scan
from scantune.datasets.subjects import SPLITS, subjects_in_two_splits
from scantune.errors import InputError
from scantune.plots.contact_sheet import CentreView, contact_sheet
from scantune.plots.files import save_figure
from scantune.runtime.processes import in_parallel
from scantune.scans.files import require_writable, write_text
from scantune.training.sources import ListedSource, read_source

CHECK_FILE, CONTACT_SHEET = "check.json", "contact.png"

_MAX_OUTLINES = 14
"""Structures outlined in the contact sheet if the data set names none."""

ValueRange = tuple[float, float]


@dataclass(frozen=True)
class SiteSummary:
    """The scans of a site in one split.

    Attributes:
        site: The site.
        split: The split.
        people: Number of people.
        scans: Number of scans, those with problems included.
        spacing: Lowest and highest, in mm, along each axis.
        shape: Fewest and most voxels along each axis.
        labels: Share of the voxels that have each label.
    """

    site: str
    split: str
    people: int
    scans: int
    spacing: tuple[ValueRange, ...]
    shape: tuple[ValueRange, ...]
    labels: Mapping[int, float]


@dataclass(frozen=True)
class CheckReport:
    """Content and problems of a data set.

    Attributes:
        dataset: Layout of the data set, a name of `DATASETS`.
        labels: Label value of each structure, as far as the data set names them.
        groups: The scans by site and split.
        problems: Why scans or people cannot be used, by their name.
        notes: Names of scans with a peculiarity, by kind of peculiarity.
        hint: Advice on the data set; empty if there is none.
    """

    dataset: str
    labels: Mapping[str, int]
    groups: tuple[SiteSummary, ...]
    problems: Mapping[str, str]
    notes: Mapping[str, Sequence[str]]
    hint: str = ""

    @property
    def scans(self) -> int:
        """Return the number of all scans."""
        return sum(group.scans for group in self.groups)

    def record(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return {"scans": self.scans, **dataclasses.asdict(self)}


def check(
    data: str | Path,
    dataset: str = "",
    options: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    on_scan: Callable[[int, int, str], None] = lambda done, scans, name: None,  # noqa: ARG005
) -> CheckReport:
    """Read every scan of a data set, and report its content and its problems.

    Args:
        data: A folder, a CSV file, or a recipe.
        dataset: A name of `scantune.datasets.DATASETS`; by default it is detected.
        options: Options of the layout.
        out: Folder for check.json, and for contact.png with a slice of one scan per site; None writes nothing.
        workers: Number of processes; by default one per core.
        on_scan: Called with the number of checked scans, the number of all scans, and the name of the last one.

    Raises:
        InputError: The data set cannot be opened, or the folder is not writable.
    """
    found = open_data(data, dataset, options or {})
    if out is not None:
        require_writable(Path(out))
    entries = found.entries()
    scans = []
    on_scan(0, len(entries), "")
    for scan in in_parallel(inspect_scan, entries, workers):
        scans.append(scan)
        on_scan(len(scans), len(entries), scan.entry.name)
    report = CheckReport(found.name, dict(found.labels), _groups(scans), _problems(scans), _notes(scans), found.hint())
    if out is not None:
        write_text(Path(out) / CHECK_FILE, json.dumps(report.record(), indent=2, ensure_ascii=False) + "\n")
        _draw(scans, report, Path(out) / CONTACT_SHEET)
    return report


def open_data(data: str | Path, dataset: str = "", options: Mapping[str, Any] | None = None) -> DataSet:
    """Open the data set of a folder, a CSV file or a recipe.

    Raises:
        InputError: The data set does not exist, or has another layout.
    """
    path, options = Path(data).expanduser(), options or {}
    if path.suffix.lower() == ".toml" or (not path.exists() and str(data) in bundled_recipes()):
        if dataset:
            raise InputError(f"The recipe {data} names its data set itself; leave out --dataset {dataset}.")
        source = read_source({**read_recipe(data).data, **options}, f"[data] of the recipe {data}")
        if not isinstance(source, ListedSource):
            raise InputError(
                f"The recipe {data} simulates its scans, so there are no files to check; scantune simulate writes some."
            )
        return source.dataset()
    if dataset and dataset not in DATASETS:
        raise InputError(f"Unknown data set {dataset!r}. Available: {', '.join(DATASETS)}.")
    return DATASETS[dataset or find_layout(path)].open(path, **options)


def _groups(scans: Sequence[ScanSummary]) -> tuple[SiteSummary, ...]:
    """Summarise the scans of each site and split, sorted by site, then in the order of the splits."""
    order = {split: number for number, split in enumerate(SPLITS)}
    keys = sorted(
        {(scan.entry.site, scan.entry.split) for scan in scans}, key=lambda key: (key[0], order.get(key[1], 9), key[1])
    )
    return tuple(
        _group(site, split, [scan for scan in scans if (scan.entry.site, scan.entry.split) == (site, split)])
        for site, split in keys
    )


def _group(site: str, split: str, scans: Sequence[ScanSummary]) -> SiteSummary:
    totals: dict[int, int] = {}
    for scan in scans:
        for value, count in scan.labels.items():
            totals[value] = totals.get(value, 0) + count
    voxels = sum(totals.values())
    return SiteSummary(
        site,
        split,
        len({scan.entry.subject for scan in scans}),
        len(scans),
        _ranges([scan.spacing for scan in scans if scan.spacing]),
        _ranges([scan.shape for scan in scans if scan.shape]),
        {value: totals[value] / voxels for value in sorted(totals)},
    )


def _ranges(rows: Sequence[tuple[float, ...]]) -> tuple[ValueRange, ...]:
    return tuple((min(axis), max(axis)) for axis in zip(*rows, strict=True))


def _problems(scans: Sequence[ScanSummary]) -> dict[str, str]:
    """Return the problems of scans, of scans with the same voxels, and of people in several splits."""
    problems = {scan.entry.name: scan.problem for scan in scans if scan.problem}
    by_content: dict[str, list[str]] = {}
    for scan in scans:
        if scan.content:
            by_content.setdefault(scan.content, []).append(scan.entry.name)
    for names in by_content.values():
        if len(names) > 1:
            problems[", ".join(names)] = "These scans have the same voxels. Remove the copies, or correct the files."
    for person, splits in subjects_in_two_splits([scan.entry for scan in scans]).items():
        problems[f"the person {person}"] = f"Scans of this person are in more than one split: {', '.join(splits)}."
    return problems


def _notes(scans: Sequence[ScanSummary]) -> dict[str, list[str]]:
    notes = {name: [scan.entry.name for scan in scans if name in scan.notes] for name in SCAN_NOTES}
    return {name: scans for name, scans in notes.items() if scans}


def _draw(scans: Sequence[ScanSummary], report: CheckReport, path: Path) -> None:
    """Draw a slice of one scan per site, preferably of a labelled one."""
    sound = sorted((scan for scan in scans if scan.shape), key=lambda scan: not set(scan.labels) - {0})
    first = {scan.entry.site: scan for scan in reversed(sound)}
    views = []
    for site in sorted(first):
        case = first[site].entry.read()
        if case.reference is None:
            case = dataclasses.replace(case, reference=np.zeros(case.shape, np.uint8))
        size = " x ".join(f"{edge:.3g}" for edge in case.spacing)
        views.append(CentreView(site or report.dataset, f"{case.name}, {size} mm", case))
    if views:
        save_figure(contact_sheet(views, _outlined(report), "One scan of each site"), path, dots_per_inch=150)


def _outlined(report: CheckReport) -> dict[str, int]:
    """Return the structures to outline: the named ones, or the largest labels if none is named."""
    if report.labels:
        return dict(report.labels)
    shares: dict[int, float] = {}
    for group in report.groups:
        for value, share in group.labels.items():
            shares[value] = max(share, shares.get(value, 0.0))
    largest = sorted((value for value in shares if value), key=lambda value: -shares[value])
    return {f"label {value}": value for value in sorted(largest[:_MAX_OUTLINES])}
