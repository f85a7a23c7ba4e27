"""The contract of a job: what decides its result, which jobs come before it, and the files it makes."""

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from scantune.model.model import Model
from scantune.model.source import ModelSource

MODEL = "model.safetensors"
"""The file that every job about networks makes."""

OnProgress = Callable[[int, int], None]
"""Callback that receives the number of finished steps and of all steps."""


@dataclass(frozen=True)
class JobEnvironment:
    """The folders and the device of a job.

    Attributes:
        finished: Has a folder for each finished job, by its key.
        running: Has the checkpoints of interrupted jobs.
        device: Where to compute.
        network: What makes networks of the user's own, with its arguments; None where the user named none.
    """

    finished: Path
    running: Path
    device: str = "auto"
    network: Mapping[str, Any] | None = None

    def model(self, job: "Job") -> Model:
        """Return the model that a finished job made."""
        return _loaded(ModelSource(self.finished / job.key / MODEL, self.network))

    def checkpoint(self, job: "Job") -> Path:
        """Return the checkpoint file of an interrupted job."""
        return self.running / f"{job.key}.run"


@functools.lru_cache(maxsize=4)
def _loaded(source: ModelSource) -> Model:
    # Several jobs in a row are about the same network; none of them changes it.
    return source.load()


@dataclass(frozen=True, eq=False)
class Job(ABC):
    """A piece of work whose result is known by its key.

    Attributes:
        title: What the job is called while it runs.
        seed: Seed of everything random in it.
    """

    kind: ClassVar[str]
    version: ClassVar[int]
    """Part of the key. Raise it if a change of the code changes the results of such jobs."""

    title: str
    seed: int

    @property
    def inputs(self) -> "tuple[Job, ...]":
        """Return the jobs whose results it needs."""
        return ()

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what decides the result besides the seed and the inputs, as JSON."""

    @abstractmethod
    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Do the work, and write its files into an empty folder."""

    @cached_property
    def key(self) -> str:
        """Return a hash of everything that decides the result: its name in the store."""
        return _digest([self._own(), self.seed, self.scan_identity(), [job.key for job in self.inputs]])

    @cached_property
    def settings_key(self) -> str:
        """Return a hash of the settings, the same for all scans and seeds."""
        return _digest([self._own(), [job.settings_key for job in self.inputs]])

    def scan_identity(self) -> str:
        """Return a hash of the scan of the job; empty for jobs about several scans."""
        return ""

    def before(self) -> "Iterator[Job]":
        """Yield all jobs that it needs, then the job itself. Jobs may come more than once."""
        for job in self.inputs:
            yield from job.before()
        yield self

    def _own(self) -> list[Any]:
        return [self.kind, self.version, self.settings()]


def _digest(record: list[Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
