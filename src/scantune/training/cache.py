"""A folder of prepared cases, each under a name made from everything that decides what it looks like.

The name is a hash of the content of the case's files (all bytes, so that copies and touched files are found again, and
changed ones never are), of how the case is read from them, of the preprocessing, and of `CACHE_VERSION`. A case that is
there is never prepared again, by any run, and a run that was stopped continues where it was.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from scantune.backends import Backend, Prepared, PreparedSlices, PreparedT, Preprocessing
from scantune.datasets import ScanEntry
from scantune.errors import InputError, ScanError
from scantune.runtime.processes import in_parallel
from scantune.scans.data_files import data_files
from scantune.scans.files import require_writable, write_whole
from scantune.scans.grid import Orientation, Slab, SliceGrid

OnCase = Callable[[int, int, str], None]
"""Called with the number of cases that are done, of all, and the name of the last."""

CACHE_VERSION = 1
"""Version of prepared cases: raise it when a change of the code makes any prepared case look different."""

_NO_PART = tuple(field.name for field in dataclasses.fields(ScanEntry))  # a case looks the same in another split


def ignore_progress(done: int, cases: int, name: str) -> None:
    """Do nothing with the progress."""
    del done, cases, name


def prepared_cases(
    entries: Sequence[ScanEntry],
    backend: Backend[Any],
    folder: str | Path | None = None,
    *,
    workers: int | None = None,
    on_case: OnCase = ignore_progress,
) -> Iterator[tuple[str, Prepared]]:
    """Yield names and prepared volumes of entries, in their order.

    Args:
        entries: The cases.
        backend: How to prepare them.
        folder: Where prepared slices are kept; None keeps none.
        workers: Processes that prepare cases for the folder; by default one for each core.
        on_case: Called after each case.

    Raises:
        InputError: The folder takes no files; or cases cannot be read or prepared, which are all named after the last.
    """
    cases = (
        _kept(entries, backend, Path(folder).expanduser(), workers)
        if folder is not None and isinstance(backend, Preprocessing)
        else (_made(entry, backend) for entry in entries)
    )
    bad: dict[str, str] = {}
    on_case(0, len(entries), "")
    for number, (entry, case) in enumerate(zip(entries, cases, strict=True), start=1):
        on_case(number, len(entries), entry.name)
        if isinstance(case, ScanError):
            bad[entry.name] = str(case)
        else:
            yield entry.name, case
    refuse_scans(bad, len(entries))


def refuse_scans(bad: dict[str, str], scans: int) -> None:
    """Raise an error that names all scans that cannot be used, if there are any.

    Args:
        bad: Reasons, by the name of the scan.
        scans: How many were looked at.

    Raises:
        InputError: There are some.
    """
    if bad:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in bad.items())
        raise InputError(f"{len(bad)} of {scans} scans cannot be used. Repair them, or leave them out:{reasons}")


def case_key(entry: ScanEntry, backend: Backend[Any]) -> str:
    """Return the name under which a prepared case is kept.

    Raises:
        ScanError: A file cannot be read.
    """
    record = json.dumps(backend.record(), sort_keys=True)
    about = [part for part in _plain(entry) if part[0] not in _NO_PART]
    parts = [str(CACHE_VERSION), record, type(entry).__qualname__, repr(about)]
    digest = hashlib.sha256("\x1f".join(parts).encode())
    try:
        for path in entry.files():
            for file in sorted(path.rglob("*")) if path.is_dir() else [path, *data_files(path)]:
                if file.is_file() or not path.is_dir():
                    with file.open("rb") as stream:
                        digest.update(hashlib.file_digest(stream, "sha256").digest())
    except OSError as error:
        raise ScanError(
            f"{error.filename} cannot be read ({error.strerror}). Check the path, or copy it again."
        ) from error
    return digest.hexdigest()[:40]


@dataclass(frozen=True)
class _Job:
    """A case to prepare into a file."""

    entry: ScanEntry
    preprocessing: Preprocessing
    path: Path


def _kept(
    entries: Sequence[ScanEntry], preprocessing: Preprocessing, folder: Path, workers: int | None
) -> Iterator[PreparedSlices | ScanError]:
    """Yield cases from the folder; missing ones are prepared first, several at a time."""
    require_writable(folder)
    with ThreadPoolExecutor() as threads:  # hashing lets go of Python's lock
        paths = list(threads.map(lambda entry: _place(entry, preprocessing, folder), entries))
    jobs = [
        _Job(entry, preprocessing, path)
        for entry, path in zip(entries, paths, strict=True)
        if isinstance(path, Path) and not path.is_file()
    ]
    outcomes = in_parallel(_prepare, jobs, workers)
    waiting = [job.path for job in jobs]
    for entry, path in zip(entries, paths, strict=True):
        failure = path if isinstance(path, ScanError) else None
        if waiting and path == waiting[0]:
            waiting.pop(0)
            failure = next(outcomes)
        yield failure or _read_or_made(_Job(entry, preprocessing, path))  # type: ignore[arg-type]


def _place(entry: ScanEntry, preprocessing: Preprocessing, folder: Path) -> Path | ScanError:
    try:
        return folder / f"{case_key(entry, preprocessing)}.npz"
    except ScanError as error:
        return error


def _prepare(job: _Job) -> ScanError | None:
    """Prepare a case into its file; return the error if it cannot be used."""
    case = _made(job.entry, job.preprocessing)
    if isinstance(case, ScanError):
        return case
    _write(job.path, case)
    return None


def _read_or_made(job: _Job) -> PreparedSlices | ScanError:
    """Return a kept case, or prepare it again if its file is damaged."""
    try:
        return _read(job.path)
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile):
        return _prepare(job) or _read(job.path)


def _made(entry: ScanEntry, backend: Backend[PreparedT]) -> PreparedT | ScanError:
    try:
        case = entry.read()
        if len(case.channels) != backend.channels:
            raise ScanError(f"It has {len(case.channels)} channels, but the model takes {backend.channels}.")
        return backend.prepare(case)
    except ScanError as error:
        return ScanError(str(error))  # without its cause, which other processes may not be able to send


def _write(path: Path, case: PreparedSlices) -> None:
    about = {
        "grid": dataclasses.asdict(case.grid),
        "orientation": dataclasses.asdict(case.orientation),
        "limits": case.limits,
        "distance": case.distance,
        "slab": None if case.slab is None else dataclasses.asdict(case.slab),
    }
    arrays: dict[str, Any] = {"volume": case.volume.numpy(), "about": np.array(json.dumps(about))}
    if case.reference is not None:
        arrays["reference"] = case.reference.numpy().astype(np.min_scalar_type(int(case.reference.max())))
    write_whole(path, lambda temporary: np.savez(temporary, **arrays))


def _read(path: Path) -> PreparedSlices:
    with np.load(path, allow_pickle=False) as arrays:
        volume = torch.from_numpy(arrays["volume"])
        reference = torch.from_numpy(arrays["reference"].astype(np.int64)) if "reference" in arrays else None
        about = json.loads(str(arrays["about"]))
    grid = SliceGrid(**{name: tuple(values) for name, values in about["grid"].items()})
    orientation = Orientation(**{name: tuple(values) for name, values in about["orientation"].items()})
    low, high = about["limits"]
    padding = grid.padding
    if padding is not None:
        padding = padding.expand(len(volume), 1, *grid.size)
    slab = None if about["slab"] is None else Slab(**about["slab"])
    return PreparedSlices(volume, padding, reference, (low, high), orientation, grid, about["distance"], slab)


def _plain(value: Any) -> Any:
    """Return a value without the folders of its files, so that a data set may be moved."""
    if isinstance(value, Path):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, _plain(getattr(value, field.name))) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return sorted((str(key), repr(_plain(entry))) for key, entry in value.items())
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value
