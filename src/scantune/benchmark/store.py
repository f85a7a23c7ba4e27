"""The bench folder: finished jobs by their keys, what runs, what failed, and all rows in one file.

DIR/experiment.toml     what was run
DIR/rows.csv            all finished rows of the experiment (also rows.parquet, where pyarrow is installed)
DIR/jobs/KEY/           what a finished job made; copied from another machine's folder, it counts as done here
DIR/running/            checkpoints and progress of jobs that are not finished
DIR/failed/KEY.txt      why a job failed
DIR/scans/              simulated scans
"""

import fcntl
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scantune.errors import InputError
from scantune.scans.files import require_writable, write_whole


@dataclass(frozen=True)
class Store:
    """The jobs of a bench folder. The folder of a job exists once the job is finished, and is then complete."""

    folder: Path

    @property
    def finished(self) -> Path:
        """Return the folder with a subfolder for each finished job, by key."""
        return self.folder / "jobs"

    @property
    def running(self) -> Path:
        """Return the folder with the checkpoints and progress of unfinished jobs."""
        return self.folder / "running"

    def open(self) -> None:
        """Make the folders, and remove what stopped workers left."""
        for folder in (self.finished, self.running):
            require_writable(folder)
        for left in self.running.glob("*.new"):
            shutil.rmtree(left, ignore_errors=True)
        for note in self.running.glob("*.json"):
            note.unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs out of the folder.

        Raises:
            InputError: One is at work in it.
        """
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"Another scantune bench is running in {self.folder}. Wait, or stop it.") from error
            yield

    def has(self, key: str) -> bool:
        """Return whether a job is finished."""
        return (self.finished / key).is_dir()

    @contextmanager
    def making(self, key: str) -> Iterator[Path]:
        """Yield a new folder for a job's files, and move it to the finished jobs once all files are written."""
        new = self.running / f"{key}-{uuid.uuid4().hex[:8]}.new"
        new.mkdir(parents=True)
        try:
            yield new
            try:
                new.rename(self.finished / key)
            except OSError:
                if not self.has(key):  # else somebody else finished the same, which is as good
                    raise
            for left in (self.running / f"{key}.run", self.running / f"{key}.json", self.failure(key)):
                left.unlink(missing_ok=True)
            for left in self.running.glob(f"{key}-*.new"):  # of workers that died at it
                shutil.rmtree(left, ignore_errors=True)
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def failure(self, key: str) -> Path:
        """Return the file with the reason why a job failed."""
        return self.folder / "failed" / f"{key}.txt"

    def note_failure(self, key: str, text: str) -> None:
        """Write the reason why a job failed."""
        write_whole(self.failure(key), lambda temporary: temporary.write_text(text, encoding="utf-8"))
        (self.running / f"{key}.json").unlink(missing_ok=True)

    def note_progress(self, key: str, progress: Mapping[str, Any]) -> None:
        """Write the progress of a running job."""
        path = self.running / f"{key}.json"
        write_whole(path, lambda temporary: temporary.write_text(json.dumps(progress), encoding="utf-8"))

    def progress(self) -> dict[str, dict[str, Any]]:
        """Return the progress of running jobs, by key."""
        progress = {}
        for path in self.running.glob("[0-9a-f]*.json"):
            try:
                progress[path.stem] = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):  # just gone
                continue
        return progress
