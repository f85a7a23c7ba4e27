"""The output folder of `adapt`: what lies in it, and its manifest."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scantune.adaptation.output_names import NAMINGS, OutputNames, PlainNames
from scantune.errors import ScanError
from scantune.scans.files import write_text
from scantune.scans.manifest import OUTPUT_ENDINGS, STRUCTURE_KINDS, ManifestEntry, read_manifest, write_manifest


@dataclass(frozen=True)
class OutputFolder:
    """A folder with segmentations and their manifest.

    Attributes:
        path: The folder.
        naming: How the files of a scan are named.
    """

    path: Path
    naming: OutputNames = field(default_factory=PlainNames)

    def names(self) -> list[str]:
        """Return the names of the scans in the manifest."""
        return list(read_manifest(self.path)["scans"])

    def arrange(self, names: Sequence[str]) -> None:
        """Move these scans to the end of the manifest, in this order."""
        with _alone_in(self.path):
            manifest = read_manifest(self.path)
            scans = manifest["scans"]
            moved = {name: scans[name] for name in names if name in scans}
            ordered = {name: entry for name, entry in scans.items() if name not in moved} | moved
            if list(ordered) != list(scans):
                write_manifest(self.path, manifest | {"scans": ordered})

    def entry(self, name: str) -> ManifestEntry:
        """Return the manifest's entry of a scan, which is empty if the scan is not in it."""
        return dict(read_manifest(self.path)["scans"].get(name, {}))

    def holds(self, entry: Mapping[str, Any]) -> bool:
        """Tell whether the outputs of an entry are all there."""
        files = entry.get("outputs", {}).values()
        return bool(files) and all((self.path / file).is_file() for file in files)

    def protect(self, name: str, content: str, structures: Sequence[str] = ()) -> None:
        """Refuse to replace the results of another scan, or files that scantune did not make here.

        Args:
            name: The scan that is about to be adapted to.
            content: The hash of its content.
            structures: Structures, which have files of their own if they may overlap.

        Raises:
            ScanError: Its outputs would replace such a file.
        """
        entry = self.entry(name)
        if self.holds(entry) and entry.get("input_hash", content) != content:
            raise ScanError(
                f"{self.path} holds results of another scan named {name}, which would be replaced. Choose "
                "another output folder, or use --overwrite."
            )
        if self._claim(name).exists():
            return
        parts = [self.naming.path(name, kind, part) for kind in STRUCTURE_KINDS for part in structures]
        for file in (*(self.naming.path(name, kind) for kind in OUTPUT_ENDINGS), *parts):
            if (self.path / file).exists() and file not in entry.get("outputs", {}).values():
                raise ScanError(
                    f"{self.path / file} already exists, but the folder's manifest does not list it. Choose another "
                    "output folder, or use --overwrite to replace it."
                )

    def claim(self, name: str) -> None:
        """Mark the outputs of a scan as this program's before they are written.

        The mark is removed when the manifest lists them. If the process is killed between the two, the next run knows
        by the mark that it may replace them.

        Raises:
            InputError: The mark cannot be written.
        """
        write_text(self._claim(name), "")

    def _claim(self, name: str) -> Path:
        return self.path / f".{name}.begun"

    def note(self, name: str, entry: ManifestEntry, head: Mapping[str, Any]) -> None:
        """Renew the manifest; after a failure, results of an earlier run that are still there stay described.

        What an earlier run wrote and a run that is done did not, such as a page, is removed: it shows another result.

        Args:
            name: The scan.
            entry: What became of it.
            head: The part of the manifest about the run.
        """
        with _alone_in(self.path):
            scans = read_manifest(self.path)["scans"]
            before = scans.get(name, {})
            kept = entry["status"] == "failed" and self.holds(before)
            scans[name] = before | {"later_failure": entry["reason"]} if kept else entry
            manifest = dict(head)
            if len(scans) == 1:
                manifest |= {key: scans[name].get(key) for key in ("decision", "reason")}
            write_manifest(self.path, manifest | {"scans": scans})
            if entry["status"] == "done":
                self._remove_earlier(name, before.get("outputs", {}), entry["outputs"])
                self._claim(name).unlink(missing_ok=True)

    def _remove_earlier(self, name: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """Remove files of an earlier run that the present one did not write, under any of their names."""
        for key, file in before.items():
            kind, _, structure = key.partition(" ")
            known = {naming.path(name, kind, structure) for naming in (self.naming, *NAMINGS) if kind in OUTPUT_ENDINGS}
            if file in known - set(now.values()):
                (self.path / file).unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let other runs that write into the folder wait, so that none loses what another one notes in the manifest."""
    import fcntl

    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems that know no locks
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        os.close(place)
