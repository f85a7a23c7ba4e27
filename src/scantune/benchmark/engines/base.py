"""The contract of an engine: takes jobs, runs some at a time, and tells when one ended."""

import gc
import os
import socket
import time
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from scantune.benchmark.jobs import Job, JobEnvironment
from scantune.benchmark.store import Store
from scantune.errors import InputError

MAX_RETRIES = 2
"""How often a job is begun again whose worker died."""


@dataclass(frozen=True)
class EngineSettings:
    """What can be chosen of every engine.

    Attributes:
        workers: Jobs at a time; None leaves it to the engine.
        threads: Threads of each.
        device: Where they compute.
    """

    workers: int | None = None
    threads: int = 1
    device: str = "auto"

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
        reason: Why it failed, as a sentence; empty where it did not.
        details: What a developer wants to know of a failure.
    """

    key: str
    reason: str = ""
    details: str = ""


class Engine(ABC):
    """Runs jobs; use as a context manager.

    Args:
        store: Where finished jobs are, and go to.
        settings: What was chosen.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.store, self.settings = store, settings

    @property
    @abstractmethod
    def slots(self) -> int:
        """How many jobs it takes at a time."""

    @abstractmethod
    def start(self) -> None:
        """Get ready."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Take a job whose inputs are finished; there must be a free slot."""

    @abstractmethod
    def wait(self, seconds: float) -> list[JobOutcome]:
        """The jobs that ended, in the store where they are done; after so many seconds at the latest."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of everything; jobs that run are lost."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def run_job(job: Job, environment: JobEnvironment, store: Store, progress_store: Store | None = None) -> JobOutcome:
    """Run a job where it is; whatever it stumbles over comes back as a sentence.

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
    """Give a GPU's memory back that was kept for more of the same: jobs of other processes may need it."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gc.collect()  # recorded steps, whose memory nobody else can have, are held by rings of references
        torch.cuda.empty_cache()


class _Teller:
    """Notes in the store how far a job is, once a second at most."""

    def __init__(self, key: str, store: Store) -> None:
        self.key, self.store, self.next = key, store, 0.0
        self.about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        self(0, 0)

    def __call__(self, done: int, steps: int) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + 1
            self.store.note_progress(self.key, {**self.about, "done": done, "steps": steps})
