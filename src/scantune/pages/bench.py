"""Pages of a benchmark: an index of all its runs, and a page of each scan that was kept."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.pages.base import CaseView, IndexRow
from scantune.pages.case import is_current, write_case
from scantune.pages.index import INDEX, write_index
from scantune.rows import MEAN, ROWS, Row, read_rows

FOLDER = "cases"
"""Of the scans' pages, beside the index."""


@dataclass(frozen=True)
class _Job:
    """A finished run: its folder, what its manifest tells, and its row of means."""

    folder: Path
    manifest: Mapping[str, Any]
    row: Row

    @property
    def name(self) -> str:
        """The scan, its method and seed."""
        scan = self.manifest.get("scan") or " ".join(filter(None, (self.row.subject, self.row.session)))
        return f"{scan}, {self.row.method}, seed {self.row.seed}"

    @property
    def entry(self) -> dict[str, Any]:
        """As the manifest of a single scan tells it."""
        run = self.manifest.get("run") or {}
        return {
            **{key: run[key] for key in ("preset", "options") if key in run},
            **(self.manifest.get("facts") or {}),
            **self.manifest,
            "method": self.row.method,
            "seconds": self.row.seconds,
            "device": self.row.device,
            "peak_memory_mb": self.row.peak_memory_mb,
        }


def pages_of_bench(folder: str | Path, out: str | Path) -> Path | None:
    """Write an index of all runs of a benchmark, and the pages of those whose scan was kept.

    A page that is there and newer than its job is left as it is.

    Args:
        folder: A bench folder, with `jobs/HASH/` of `manifest.json`, `rows.csv`, `trace.json` and, where the scan was
            kept, `case.npz`.
        out: Gets `index.html` and `cases/HASH.html`.

    Returns:
        The index; None where no run has finished.

    Raises:
        InputError: A file cannot be read or written.
    """
    folder, out = Path(folder), Path(out)
    rows = [_show(job, out) for job in _jobs(folder)]
    if not rows:
        return None
    rows.sort(key=lambda row: (row.site, row.subject, row.method, row.name))
    write_index(out / INDEX, rows, f"Benchmark {folder.resolve().name}")
    return out / INDEX


def _jobs(folder: Path) -> Iterator[_Job]:
    for manifest in sorted((folder / "jobs").glob("*/manifest.json")):
        if not (manifest.parent / ROWS).is_file():
            continue
        means = [row for row in read_rows(manifest.parent / ROWS) if row.structure == MEAN]
        if means:
            yield _Job(manifest.parent, _read(manifest), means[0])


def _show(job: _Job, out: Path) -> IndexRow:
    """Write a run's page, where its scan was kept, and return its row of the index."""
    row = job.row
    file, kept = f"{FOLDER}/{job.folder.name}.html", job.folder / "case.npz"
    before = None
    if kept.is_file():
        view = _view(job, kept)
        before = view.summary(file).dice_before
        if not is_current(out / file, kept):
            write_case(out / file, view)
    return IndexRow(
        file if kept.is_file() else "",
        str(job.manifest.get("scan") or row.subject),
        row.site,
        row.subject,
        f"{row.method}, seed {row.seed}",
        row.decision,
        str(job.manifest.get("reason", "")),
        before,
        _known(row.dice),
        _known(row.energy_before),
        _known(row.energy_after),
        _known(row.seconds),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _view(job: _Job, kept: Path) -> CaseView:
    try:
        with np.load(kept, allow_pickle=False) as arrays:
            parts = {name: arrays[name] for name in arrays.files}
        labels, reference = _common(job.manifest["labels"], parts)
        return CaseView(
            job.name,
            parts["image"],
            parts["affine"],
            parts["before"],
            parts["after"],
            labels,
            job.entry,
            _read(job.folder / "trace.json"),
            reference,
            job.row.site,
            job.row.subject,
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{kept} must be a scan that scantune bench kept, but cannot be read ({error}).") from error


def _common(labels: Mapping[str, int], parts: Mapping[str, NDArray[Any]]) -> tuple[dict[str, int], NDArray[Any] | None]:
    """The structures that network and reference have both, and the reference in the network's values."""
    if "reference" not in parts:
        return dict(labels), None
    theirs = json.loads(str(parts["labels"])) if "labels" in parts else dict(labels)
    both = {name: value for name, value in labels.items() if value and name in theirs}
    reference = np.zeros_like(parts["reference"])
    for name, value in both.items():
        reference[parts["reference"] == theirs[name]] = value
    return both, reference


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} must be JSON that scantune bench wrote, but cannot be read ({error}).") from error
