"""A store in a few files of limited size: finished jobs, checkpoints and logs, without simulated scans.

Files of tensors share most of them (a prior's file has its network in it): each tensor is stored once. Everything else
is packed together. Of the traces of runs, every tenth step and those with a Dice are kept.
"""

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from bench_runs import say

PART = 15 * 2**20
"""Bytes of a file."""
PARTS = 4
"""Files at most."""
NAME = "state.zip"
TEXTS, INDEX = "texts.tar.xz", "tensors.json"
TRACE, MANIFEST = "trace.json", "manifest.json"


def archive(store: Path, out: Path, light: bool = False) -> None:
    """Write a store as files below a size.

    Args:
        store: The store.
        out: The folder for the files.
        light: Leave out what going on does not need: traces and manifests.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(_files(store, light))
    tensors = [path for path in files if path.suffix in (".safetensors", ".run")]
    whole = io.BytesIO()
    left_out = _write(whole, store, [path for path in files if path not in set(tensors)], tensors)
    content = whole.getvalue()
    for old in out.glob(f"{NAME}.*"):
        old.unlink()
    for number, start in enumerate(range(0, len(content), PART)):
        (out / f"{NAME}.{number:02d}").write_bytes(content[start : start + PART])
    say(f"archive: {len(files)} files, {len(content) / 2**20:.1f} MiB, {-(-len(content) // PART)} parts")
    for path in left_out:
        say(f"archive: NO ROOM for {path.relative_to(store)}")


def restore(folder: Path, store: Path) -> None:
    """Unpack what `archive` wrote into a store, over what is there."""
    parts = sorted(folder.glob(f"{NAME}.*"))
    content = b"".join(part.read_bytes() for part in parts)
    store.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(content)) as whole:
        with tarfile.open(fileobj=io.BytesIO(whole.read(TEXTS)), mode="r:xz") as texts:
            texts.extractall(store, filter="data")
        for name, blobs in json.loads(whole.read(INDEX)).items():
            path = store / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(whole.read(blob) for blob in blobs))
    for checkpoint in (store / "running").glob("*.run"):
        if (store / "jobs" / checkpoint.stem).is_dir():
            checkpoint.unlink()
    say(f"restore: {len(parts)} parts, {sum(1 for _ in (store / 'jobs').glob('*'))} jobs")


def _files(store: Path, light: bool) -> Iterator[Path]:
    yield from (path for path in store.glob("*.*") if path.is_file() and not path.name.startswith("."))
    yield from (store / "running").glob("*.run")
    yield from (store / "failed").glob("*.txt")
    for path in (store / "jobs").glob("*/*"):
        if not (light and path.name in (TRACE, MANIFEST)):
            yield path


def _write(whole: io.BytesIO, store: Path, texts: list[Path], tensors: list[Path]) -> list[Path]:
    """Write the archive; return the files that there was no room for: checkpoints before models, large ones first."""
    index: dict[str, list[str]] = {}
    seen: set[str] = set()
    left_out = []
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr(TEXTS, _packed(store, texts))
        for path in sorted(tensors, key=lambda one: (one.suffix == ".run", one.stat().st_size)):
            pieces = {hashlib.sha256(piece).hexdigest()[:24]: piece for piece in _pieces(path.read_bytes())}
            new = {name: piece for name, piece in pieces.items() if name not in seen}
            if whole.tell() + sum(map(len, new.values())) > PARTS * PART - 2**20:
                left_out.append(path)
                continue
            for name, piece in new.items():
                packed.writestr(name, piece)
            seen |= new.keys()
            index[path.relative_to(store).as_posix()] = [
                hashlib.sha256(piece).hexdigest()[:24] for piece in _pieces(path.read_bytes())
            ]
        packed.writestr(INDEX, json.dumps(index))
    return left_out


def _packed(store: Path, texts: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=2) as tar:
        for path in texts:
            content = _thinned(path) if path.name == TRACE else path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(store).as_posix())
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _thinned(path: Path) -> bytes:
    """A trace with every tenth step, those that were scored, and the last."""
    steps = json.loads(path.read_text(encoding="utf-8"))
    kept = [row for row in steps if "dice" in row or row["step"] % 10 == 0 or row is steps[-1]]
    return json.dumps(kept).encode()


def _pieces(content: bytes) -> Iterator[bytes]:
    """The header of a file of tensors, then each tensor as it lies in the file."""
    start = 8 + int.from_bytes(content[:8], "little")
    table = json.loads(content[8:start])
    ends = sorted({entry["data_offsets"][1] for name, entry in table.items() if name != "__metadata__"})
    place = 0
    for end in (start, *(start + end for end in ends)):
        if end > place:
            yield content[place:end]
        place = end
