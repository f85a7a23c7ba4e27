"""Pages of a benchmark: an index of all its runs, and a page of each scan that was kept."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scantune.errors import InputError
from scantune.evaluation.rows import MEAN, ROWS_FILE, ScoreRow, read_rows
from scantune.pages.base import CaseView, IndexRow
from scantune.pages.case import is_current, write_case
from scantune.pages.index import INDEX, write_index

CASES_FOLDER = "cases"
"""Of the scans' pages, beside the index."""

MAX_FAILURES_LISTED = 20
"""Failures that an index names."""


@dataclass(frozen=True)
class _Job:
    """A finished run: its folder, what its manifest says, and its row of means."""

    folder: Path
    manifest: Mapping[str, Any]
    row: ScoreRow

    @property
    def name(self) -> str:
        """Return the scan, its method and seed."""
        scan = self.manifest.get("scan") or " ".join(filter(None, (self.row.subject, self.row.session)))
        return f"{scan}, {self.row.method}, seed {self.row.seed}"

    @property
    def entry(self) -> dict[str, Any]:
        """Return the entry as in the manifest of a single scan."""
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

    Runs are those of the folder's `rows.csv`, under their names there; where it has none, all in `jobs`. The index
    lists what is missing: jobs that failed, finished ones that `rows.csv` does not know, scans that cannot be read.
    A page that is there and newer than its job is left as it is.

    Args:
        folder: A bench folder, with `jobs/HASH/` of `manifest.json`, `rows.csv`, `trace.json` and, where the scan was
            kept, `case.npz`.
        out: Gets `index.html` and `cases/HASH.html`.

    Returns:
        The index; None where no run has finished.

    Raises:
        InputError: The rows cannot be read, or a file cannot be written.
    """
    folder, out = Path(folder), Path(out)
    finished = sorted(path.parent for path in (folder / "jobs").glob("*/manifest.json"))
    if not finished:
        return None
    runs = _means(
        [folder] if (folder / ROWS_FILE).is_file() else [job for job in finished if (job / ROWS_FILE).is_file()]
    )
    shown = [_show(row, folder / "jobs" / row.job, out) for row in runs]
    rows = sorted((one for one, _ in shown), key=lambda row: (row.site, row.subject, row.method, row.name))
    unknown = len({job.name for job in finished} - {row.job for row in runs})
    notes = [*_left_out(unknown), *(f"No page: {why}" for _, why in shown if why), *_failures(folder)]
    write_index(out / INDEX, rows, f"Benchmark {folder.resolve().name}", notes)
    return out / INDEX


def _means(places: Sequence[Path]) -> list[ScoreRow]:
    return [row for place in places for row in read_rows(place) if row.structure == MEAN]


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [
        f"{count} finished {'run' if count == 1 else 'runs'} in jobs/ not shown: rows.csv does not list "
        f"{'it' if count == 1 else 'them'}. Runs with other settings than the experiment's stay there; those that were "
        "copied from another machine are taken in by scantune bench with --collect."
    ]


def _failures(folder: Path) -> list[str]:
    """Return the failed jobs that are not done since, each by the first two lines of its note; many are counted."""
    failures = []
    for file in sorted((folder / "failed").glob("*.txt")):
        if not (folder / "jobs" / file.stem).is_dir():
            title, reason, *_ = [*file.read_text(encoding="utf-8", errors="replace").splitlines(), "", ""]
            failures.append(f"Failed: {title}: {reason} (failed/{file.name})")
    more = len(failures) - MAX_FAILURES_LISTED
    return failures if more <= 0 else [*failures[:MAX_FAILURES_LISTED], f"Failed: {more} more, in failed/."]


def _show(row: ScoreRow, folder: Path, out: Path) -> tuple[IndexRow, str]:
    """Write a run's page, where its scan was kept; its row of the index, and why there is no page where it failed."""
    file, kept = f"{CASES_FOLDER}/{folder.name}.html", folder / "case.npz"
    manifest: Mapping[str, Any] = {}
    view, failure = None, ""
    try:
        manifest = _read(folder / "manifest.json") if row.job and folder.is_dir() else {}
        view = _view(_Job(folder, manifest, row), kept) if manifest and kept.is_file() else None
    except InputError as error:
        failure = str(error)
    if view is not None and not is_current(out / file, kept):
        write_case(out / file, view)
    shown = IndexRow(
        "" if view is None else file,
        str(manifest.get("scan") or " ".join(filter(None, (row.subject, row.session)))),
        row.site,
        row.subject,
        f"{row.method}, seed {row.seed}",
        row.decision,
        str(manifest.get("reason", "")),
        None if view is None else view.summary(file).dice_before,
        _known(row.dice),
        _known(row.energy_before),
        _known(row.energy_after),
        _known(row.seconds),
    )
    return shown, failure


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _view(job: _Job, kept: Path) -> CaseView:
    trace = _read(job.folder / "trace.json")
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
            trace,
            reference,
            job.row.site,
            job.row.subject,
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{kept} must be a scan that scantune bench kept, but cannot be read ({error}).") from error


def _common(labels: Mapping[str, int], parts: Mapping[str, NDArray[Any]]) -> tuple[dict[str, int], NDArray[Any] | None]:
    """Return the structures that network and reference share, and the reference in the network's values."""
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
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} must be JSON that scantune bench wrote, but cannot be read ({error}).") from error
