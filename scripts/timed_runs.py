"""Runs that end in time, and go on later on another machine: for `scripts/paper_runs.py`."""

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from bench_runs import Journal, Paced, Pool, say

from scantune.benchmark.engines import JobOutcome
from scantune.benchmark.jobs import Adaptation, HelperTraining, Job, JobEnvironment, OnProgress, Training
from scantune.benchmark.store import Store
from scantune.model.model import Model
from scantune.scans.tensors import read_tensors, write_tensors
from scantune.training.helpers import fit_helper

UNKNOWN = 10.0
"""Seconds that a job is taken to need while none of its kind has ended; a training needs as many for a checkpoint."""


class OutOfTimeError(Exception):
    """There is no time left for any job that waits."""


class TimedJournal(Journal):
    """A journal that knows how long jobs take, and ends the run in time.

    Args:
        path: The file.
        names: The experiment of each job, by key.
        ends: When the run ends, by the monotonic clock.
    """

    def __init__(self, path: Path, names: Mapping[str, str], ends: float) -> None:
        super().__init__(path, names)
        self.ends, self.longest = ends, defaultdict[str, float](float)

    def expected(self, job: Job) -> float:
        """Seconds that a job needs, so that it is not begun in vain; trainings go on from their checkpoints."""
        if not isinstance(job, Adaptation):
            return UNKNOWN
        return 1.1 * (self.longest[job.row] or UNKNOWN)

    def end(self, job: Job, ended: JobOutcome) -> None:
        """Note how long it took."""
        if isinstance(job, Adaptation):
            self.longest[job.row] = max(self.longest[job.row], time.monotonic() - self.began[job.key])
        super().end(job, ended)

    def tick(self, store: Store) -> None:
        """Stop at the end."""
        super().tick(store)
        if time.monotonic() > self.ends:
            raise OutOfTimeError


class Timed(Paced):
    """Begins jobs that end in time, and helper networks once their early training is done.

    Attributes:
        early: The early training of a helper network, by the key of its job.
    """

    observer: TimedJournal
    early: Mapping[str, str]

    def can_begin(self, job: Job) -> bool:
        """Also asks for time."""
        early = self.early.get(job.key)
        if early is not None and early not in self.finished and early not in self.broken:
            return False
        return super().can_begin(job)

    def _ready(self, waiting: dict[str, Job], free: int) -> list[Job]:
        able = list(islice(filter(self.can_begin, waiting.values()), max(free, 0) and None))
        left = self.observer.ends - time.monotonic()
        ready = [job for job in able if self.observer.expected(job) < left]
        if free > 0 and able and not ready and not self.observer.began:
            raise OutOfTimeError
        return ready[: max(free, 0)]


_OTHER_DATA = re.compile(r"The checkpoint (.+) is of a run with data = '(\w+)', this run has '(\w+)'")


class MovingPool(Pool):
    """Lets a training go on from a checkpoint of another machine.

    A checkpoint knows its scans by a checksum of their values. The job's key says that they are the same people and
    protocols, but another processor may round some values otherwise when it simulates them.
    """

    def submit(self, job: Job) -> None:
        """Remember the job."""
        self.jobs: dict[str, Job] = {**getattr(self, "jobs", {}), job.key: job}
        super().submit(job)

    def wait(self, seconds: float) -> list[JobOutcome]:
        """Start trainings again that refused a checkpoint for the values of its scans."""
        return [ended for ended in super().wait(seconds) if not self._goes_on(ended)]

    def _goes_on(self, ended: JobOutcome) -> bool:
        found = _OTHER_DATA.search(ended.reason)
        if found is None:
            return False
        path, before, now = found.groups()
        say(f"{path}: scans are rounded otherwise here ({before}, {now}); the training goes on")
        move_checkpoint(Path(path), now)
        super().submit(self.jobs[ended.key])
        return True


def move_checkpoint(path: Path, data: str) -> None:
    """Give a checkpoint the checksum of the scans as they are on this machine."""
    tensors, metadata = read_tensors(path)
    run = json.loads(metadata["run"])
    run["identity"]["data"] = data
    write_tensors(path, tensors, {**metadata, "run": json.dumps(run)})


@dataclass(frozen=True, eq=False)
class EarlyTraining(Job):
    """Training of a denoiser while its network is trained: it learns from label maps alone.

    Leaves the checkpoint of the job that waits for the network, which then finds its work done.

    Attributes:
        network: The network that it is going to help.
        helper: The job that waits.
    """

    kind: ClassVar[str] = "early"
    version: ClassVar[int] = 1

    network: Training
    helper: HelperTraining

    def settings(self) -> dict[str, Any]:
        """The job that waits."""
        return {"helper": self.helper.key}

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Train, or continue an interrupted run."""
        plan = self.network.plan
        plan = replace(plan, recipe=replace(plan.recipe, train=replace(plan.recipe.train, device=environment.device)))
        architecture = plan.network.architecture  # type: ignore[union-attr]
        fit_helper(
            Model(architecture.build(), plan.source.names(), plan.preprocessing, architecture.record),
            plan,
            self.helper.method,
            {**self.helper.chosen, "seed": self.seed},
            device=environment.device,
            checkpoint=environment.checkpoint(self.helper),
            on_progress=lambda at: on_progress(at.iteration, at.iterations),
        )
        (out / "done.txt").write_text("The checkpoint in running/ is complete.\n", encoding="utf-8")


def early_trainings(jobs: Sequence[Job], store: Store) -> Iterator[EarlyTraining]:
    """Yield the early trainings of the denoisers that are not done."""
    for job in jobs:
        if isinstance(job, HelperTraining) and job.method == "dae" and not store.has(job.key):
            early = EarlyTraining(f"{job.title}, early", job.seed, job.network, job)
            if not store.has(early.key) and not store.has(job.network.key):
                yield early
