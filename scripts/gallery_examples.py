"""Examples for the gallery from a store of `scripts/paper_runs.py`: for each anatomy, a scan with every decision.

A rule chooses them without a look at any score. It goes through the first test person of every centre, in the order of
the centres, first with the network trained without augmentation, then with the one trained with strong augmentation. Of
each decision it takes the first scan. That scan is adapted again, as a store keeps no pictures.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scantune.adaptation.adapt import adapt
from scantune.adaptation.guard.base import Action
from scantune.adaptation.result import Result
from scantune.benchmark.expand import expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, JobEnvironment
from scantune.benchmark.jobs.scoring import restrict_to_slab
from scantune.benchmark.store import Store
from scantune.evaluation.rows import read_rows
from scantune.runtime.devices import find_device, reproducible
from scantune.training.plan import TrainingPlan

PREFIX = "rescue-"
"""What the names of the experiments begin with."""
NETWORKS = {"plain, default": "without augmentation", "strong, default": "with strong augmentation"}
"""Rows of the experiments, in the order of the rule, with how their networks were trained."""
ANATOMIES = {
    "prostate": "Prostate",
    "cardiac": "Heart",
    "spine": "Spinal cord",
    "brain": "Brain",
    "wmh": "White matter lesions",
}
"""Titles, in the order of the page."""
ACTIONS: tuple[Action, ...] = ("adapted", "left alone", "unsolved")


@dataclass(frozen=True)
class Found:
    """A scan that the rule chose.

    Args:
        job: Which scan, and how it is adapted.
        result: What adapting it again gave.
    """

    job: Adaptation
    result: Result

    @property
    def trained(self) -> str:
        """How the network was trained."""
        return NETWORKS[self.job.row]


@dataclass(frozen=True)
class Anatomy:
    """The examples of an anatomy.

    Args:
        name: Name of its cohort without a version.
        counts: How many of the scans that the rule looks at ended with each decision.
        found: The chosen scan of every decision that occurs.
    """

    name: str
    counts: Counter[str]
    found: dict[Action, Found]

    @property
    def plan(self) -> TrainingPlan:
        """How its networks were trained."""
        return next(iter(self.found.values())).job.network.plan

    @property
    def title(self) -> str:
        """The heading of the anatomy."""
        return ANATOMIES.get(self.name, self.name.capitalize())


def anatomies(store: Store, device: str) -> Iterator[Anatomy]:
    """Yield the examples of every anatomy of a store.

    Args:
        store: Of `scripts/paper_runs.py`, with experiments `rescue-NAME`.
        device: Where the chosen scans are adapted again.
    """
    paths = {path.stem.removeprefix(PREFIX): path for path in store.folder.glob(f"{PREFIX}*.toml")}
    for name in sorted(paths, key=lambda name: ([*ANATOMIES, name].index(name), name)):
        jobs = looked_at(expand(Experiment.read(paths[name]), str(store.folder / "scans")).rows, store)
        if jobs:
            yield _anatomy(name, jobs, store, device)
        else:
            print(f"{name}: no finished run of a first person", file=sys.stderr)


def looked_at(rows: Sequence[Adaptation], store: Store) -> list[tuple[Adaptation, Action]]:
    """Return the finished runs that the rule looks at, in its order, with their decisions."""
    first = [job for job in rows if job.row in NETWORKS and job.scan.number == 0 and store.has(job.key)]
    once = {(job.row, job.scan.site): job for job in reversed(first)}  # a person's first session
    order = sorted(once.values(), key=lambda job: (list(NETWORKS).index(job.row), rows.index(job)))
    return [(job, _decision(store, job)) for job in order]


def _decision(store: Store, job: Adaptation) -> Action:
    said = read_rows(store.finished / job.key)[0].decision
    return next(action for action in ACTIONS if action == said)


def _anatomy(name: str, jobs: Sequence[tuple[Adaptation, Action]], store: Store, device: str) -> Anatomy:
    found = {action: one for action in ACTIONS if (one := _repeated(jobs, action, store, device)) is not None}
    return Anatomy(name, Counter(action for _, action in jobs), found)


def _repeated(jobs: Sequence[tuple[Adaptation, Action]], action: Action, store: Store, device: str) -> Found | None:
    """Return the first scan with a decision. It is shown only if the run ends with the same decision here."""
    there = [job for job, decided in jobs if decided == action]
    for job in there:
        result = again(job, store, device)
        if result.decision.action == action:
            return Found(job, result)
        print(f"{job.title}: {result.decision.action} here, {action} in the store", file=sys.stderr)
    if there:
        sys.exit(f"No decision {action!r} of the store could be repeated. Run it on the device of the store.")
    return None


def again(job: Adaptation, store: Store, device: str) -> Result:
    """Adapt to the scan of a finished run once more."""
    environment = JobEnvironment(store.finished, store.running, device)
    model = environment.model(job.prior or job.network)
    where = find_device(device)
    case = restrict_to_slab(job.scan.read(where), model.backend)
    with reproducible(where):
        return adapt(model, case, **{**job.how.arguments, "device": device})
