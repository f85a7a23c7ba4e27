"""The contract of an engine: takes jobs, runs some at a time, and reports when one has ended."""

import gc
import os
import socket
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from scantune.benchmark.jobs import Job, JobEnvironment
from scantune.benchmark.store import Store
from scantune.errors import InputError

MAX_RETRIES = 2
"""How often a job is repeated if its worker dies."""


@dataclass(frozen=True)
class EngineSettings:
    """The settings of every engine.

    Attributes:
        workers: Jobs at a time; None for the default of the engine.
        threads: Threads of each job.
        device: Device of the jobs.
        network: What makes networks of the user's own, with its arguments.
    """

    workers: int | None = None
    threads: int = 1
    device: str = "auto"
    network: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"The number of {name} must be 1 or more, got {value}.")


@dataclass(frozen=True)
class JobOutcome:
    """A job that ended.

    Attributes:
        key: The job's.
        reason: Why it failed, as a sentence; empty if it succeeded.
        details: Traceback of a failure.
    """

    key: str
    reason: str = ""
    details: str = ""


class Engine(ABC):
    """A context manager that runs jobs.

    Args:
        store: Where finished jobs are, and go to.
        settings: What was chosen.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.store, self.settings = store, settings

    @property
    @abstractmethod
    def slots(self) -> int:
        """Return the number of jobs that run at a time."""

    @abstractmethod
    def start(self) -> None:
        """Start workers, or connect to them."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Start a job whose inputs are finished. There must be a free slot."""

    @abstractmethod
    def wait(self, seconds: float) -> list[JobOutcome]:
        """Return the jobs that ended, after this number of seconds at the latest. Results are in the store."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all workers. Running jobs are lost."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def run_job(job: Job, environment: JobEnvironment, store: Store, progress_store: Store | None = None) -> JobOutcome:
    """Run a job in this process, and return errors as a sentence.

    Args:
        job: What to do.
        environment: Where models and checkpoints are.
        store: Gets the result.
        progress_store: Notes the progress; by default `store`.
    """
    try:
        if not store.has(job.key):
            with store.making(job.key) as out:
                job.run(environment, out, _Teller(job.key, progress_store or store))
    except InputError as error:
        return JobOutcome(job.key, str(error), traceback.format_exc())
    except Exception as error:  # one job must not take the others with it
        what = " ".join(str(error).split())[:300] or "no message"
        return JobOutcome(job.key, f"An unforeseen {type(error).__name__}: {what}", traceback.format_exc())
    finally:
        _let_go()
    return JobOutcome(job.key)


def _let_go() -> None:
    """Free cached GPU memory, which jobs of other processes may need."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()  # recorded steps, whose memory nobody else can have, are held by rings of references
        torch.cuda.empty_cache()


class _Teller:
    """Progress of a job, noted in the store once a second at most."""

    def __init__(self, key: str, store: Store) -> None:
        self.key, self.store, self.next = key, store, 0.0
        self.about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        self(0, 0)

    def __call__(self, done: int, steps: int) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + 1
            self.store.note_progress(self.key, {**self.about, "done": done, "steps": steps})
