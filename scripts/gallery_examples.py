"""Examples for the gallery from a store of `scripts/paper_runs.py`: for each anatomy, a scan with every decision.

A rule chooses them without a look at any score. It goes through the first test person of every centre, in the order of
the centres, first with the network trained without augmentation, then with the one trained with strong augmentation. Of
each decision it takes the first scan.

Decisions are those of the runs in the store. If it has a network with its prior but no run, the scan is adapted
here. The chosen scans are always adapted here, as a store keeps no pictures.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scantune.adaptation.adapt import adapt
from scantune.adaptation.guard.base import Action
from scantune.adaptation.result import Result
from scantune.benchmark.expand import expand
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Adaptation, Job, JobEnvironment
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
        result: The result of adapting it here.
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
        device: Where scans are adapted.
    """
    paths = {path.stem.removeprefix(PREFIX): path for path in store.folder.glob(f"{PREFIX}*.toml")}
    for name in sorted(paths, key=lambda name: ([*ANATOMIES, name].index(name), name)):
        jobs = looked_at(expand(Experiment.read(paths[name]), str(store.folder / "scans")).rows, store)
        if jobs:
            yield Choice(store, device).of(name, jobs)
        else:
            print(f"{name}: no network with a prior", file=sys.stderr)


def looked_at(rows: Sequence[Adaptation], store: Store) -> list[Adaptation]:
    """Return the runs that the rule looks at, in its order: those whose network is in the store."""
    first = [job for job in rows if job.row in NETWORKS and job.scan.number == 0 and store.has(network_of(job).key)]
    once = {(job.row, job.scan.site): job for job in reversed(first)}  # a person's first session
    return sorted(once.values(), key=lambda job: (list(NETWORKS).index(job.row), rows.index(job)))


def network_of(job: Adaptation) -> Job:
    """Return the job that made the network with its prior."""
    return job.prior or job.network


@dataclass
class Choice:
    """Chooses the examples of an anatomy.

    Args:
        store: Where networks and finished runs are.
        device: Where scans are adapted.
        results: The results of scans that were adapted here.
    """

    store: Store
    device: str
    results: dict[Adaptation, Result] = field(default_factory=dict)

    def of(self, name: str, jobs: Sequence[Adaptation]) -> Anatomy:
        """Return the examples among some runs."""
        decisions = {job: self._decision(job) for job in jobs}
        found = {}
        for action in ACTIONS:
            there = [job for job, decided in decisions.items() if decided == action]
            if there:
                found[action] = self._repeated(there, action)
        return Anatomy(name, Counter(decisions.values()), found)

    def _decision(self, job: Adaptation) -> Action:
        if not self.store.has(job.key):
            return self._result(job).decision.action
        said = read_rows(self.store.finished / job.key)[0].decision
        return next(action for action in ACTIONS if action == said)

    def _result(self, job: Adaptation) -> Result:
        if job not in self.results:
            print(job.title, file=sys.stderr, flush=True)
            self.results[job] = adapted(job, self.store, self.device)
        return self.results[job]

    def _repeated(self, jobs: Sequence[Adaptation], action: Action) -> Found:
        """Return the first scan with a decision. It is shown only if adapting it here ends with the same decision."""
        for job in jobs:
            result = self._result(job)
            if result.decision.action == action:
                return Found(job, result)
            print(f"{job.title}: {result.decision.action} here, {action} in the store", file=sys.stderr)
        sys.exit(f"No decision {action!r} of the store could be repeated. Run it on the device of the store.")


def adapted(job: Adaptation, store: Store, device: str) -> Result:
    """Adapt to the scan of a run."""
    model = JobEnvironment(store.finished, store.running, device).model(network_of(job))
    where = find_device(device)
    case = restrict_to_slab(job.scan.read(where), model.backend)
    with reproducible(where):
        return adapt(model, case, **{**job.how.arguments, "device": device})
