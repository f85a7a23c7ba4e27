"""Is a data set sound: what it holds, by site and split, and what is wrong with it, by name."""

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
from scantune.datasets.inspect import NOTES, ScanSummary, inspect_scan
from scantune.datasets.subjects import SPLITS, subjects_in_two_splits
from scantune.errors import InputError
from scantune.plots.contact_sheet import CentreView, contact_sheet
from scantune.plots.files import save_figure
from scantune.runtime.processes import in_parallel
from scantune.scans.files import require_writable, write_text
from scantune.training.case_sources import ListedSource
from scantune.training.sources import read_source

REPORT, SHEET = "check.json", "contact.png"

_MOST_OUTLINES = 14

Span = tuple[float, float]


@dataclass(frozen=True)
class SiteGroup:
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
    spacing: tuple[Span, ...]
    shape: tuple[Span, ...]
    labels: Mapping[int, float]


@dataclass(frozen=True)
class CheckReport:
    """What is in a data set.

    Attributes:
        dataset: Its layout, a name of `DATASETS`.
        labels: Label value of each structure, as far as it is told.
        groups: The scans by site and split.
        problems: What makes scans or people unusable, by name.
        notes: Names of scans that have something worth knowing, by what it is.
        hint: What should be said about the data set; empty where all is clear.
    """

    dataset: str
    labels: Mapping[str, int]
    groups: tuple[SiteGroup, ...]
    problems: Mapping[str, str]
    notes: Mapping[str, Sequence[str]]
    hint: str = ""

    @property
    def scans(self) -> int:
        """Number of all scans."""
        return sum(group.scans for group in self.groups)

    def record(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
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
    """Read every scan of a data set, and tell what it holds and what is wrong with it.

    Args:
        data: A folder, a CSV file, or a recipe.
        dataset: A name of `scantune.datasets.DATASETS`; by default the folder tells.
        options: What the data set takes beside where it is.
        out: Folder for check.json and contact.png, with a slice of a scan of each site; None writes nothing.
        workers: Number of processes; by default one for each core.
        on_scan: Is told the number of scans that are done, of all, and the name of the last.

    Raises:
        InputError: The data set cannot be opened, or the folder takes no files.
    """
    found = open_data(data, dataset, options or {})
    if out is not None:
        require_writable(Path(out))
    entries = found.entries()
    looks = []
    on_scan(0, len(entries), "")
    for look in in_parallel(inspect_scan, entries, workers):
        looks.append(look)
        on_scan(len(looks), len(entries), look.entry.name)
    report = CheckReport(found.name, dict(found.labels), _groups(looks), _problems(looks), _notes(looks), found.hint())
    if out is not None:
        write_text(Path(out) / REPORT, json.dumps(report.record(), indent=2, ensure_ascii=False) + "\n")
        _draw(looks, report, Path(out) / SHEET)
    return report


def open_data(data: str | Path, dataset: str = "", options: Mapping[str, Any] | None = None) -> DataSet:
    """Open a data set in a folder or CSV file, or that of a recipe.

    Raises:
        InputError: There is none, or it is not laid out as expected.
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


def _groups(looks: Sequence[ScanSummary]) -> tuple[SiteGroup, ...]:
    order = {split: number for number, split in enumerate(SPLITS)}
    keys = sorted(
        {(look.entry.site, look.entry.split) for look in looks}, key=lambda key: (key[0], order.get(key[1], 9), key[1])
    )
    return tuple(
        _group(site, split, [look for look in looks if (look.entry.site, look.entry.split) == (site, split)])
        for site, split in keys
    )


def _group(site: str, split: str, looks: Sequence[ScanSummary]) -> SiteGroup:
    totals: dict[int, int] = {}
    for look in looks:
        for value, count in look.labels.items():
            totals[value] = totals.get(value, 0) + count
    voxels = sum(totals.values())
    return SiteGroup(
        site,
        split,
        len({look.entry.subject for look in looks}),
        len(looks),
        _spans([look.spacing for look in looks if look.spacing]),
        _spans([look.shape for look in looks if look.shape]),
        {value: totals[value] / voxels for value in sorted(totals)},
    )


def _spans(rows: Sequence[tuple[float, ...]]) -> tuple[Span, ...]:
    return tuple((min(axis), max(axis)) for axis in zip(*rows, strict=True))


def _problems(looks: Sequence[ScanSummary]) -> dict[str, str]:
    problems = {look.entry.name: look.problem for look in looks if look.problem}
    same: dict[str, list[str]] = {}
    for look in looks:
        if look.content:
            same.setdefault(look.content, []).append(look.entry.name)
    for names in same.values():
        if len(names) > 1:
            problems[", ".join(names)] = "These scans hold the same voxels: copies of one, or mistaken for each other."
    for person, splits in subjects_in_two_splits([look.entry for look in looks]).items():
        problems[f"the person {person}"] = (
            f"There are scans of this person in more than one split: {', '.join(splits)}."
        )
    return problems


def _notes(looks: Sequence[ScanSummary]) -> dict[str, list[str]]:
    notes = {name: [look.entry.name for look in looks if name in look.notes] for name in NOTES}
    return {name: scans for name, scans in notes.items() if scans}


def _draw(looks: Sequence[ScanSummary], report: CheckReport, path: Path) -> None:
    """Draw a slice of one scan of each site: a labelled one where there is one."""
    sound = sorted((look for look in looks if look.shape), key=lambda look: not set(look.labels) - {0})
    first = {look.entry.site: look for look in reversed(sound)}
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
    """The structures to outline: those that are named, or the largest of those that are not."""
    if report.labels:
        return dict(report.labels)
    shares: dict[int, float] = {}
    for group in report.groups:
        for value, share in group.labels.items():
            shares[value] = max(share, shares.get(value, 0.0))
    largest = sorted((value for value in shares if value), key=lambda value: -shares[value])
    return {f"label {value}": value for value in sorted(largest[:_MOST_OUTLINES])}
