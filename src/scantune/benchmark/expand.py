"""From an experiment to its jobs: networks, priors and helper networks, then every row of every scan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scantune.benchmark.experiment import Experiment
from scantune.benchmark.experiment_tables import SUPERVISED, RowTable
from scantune.benchmark.folds import Fold, folds_of
from scantune.benchmark.jobs import Adaptation, FineTuning, GivenModel, HelperTraining, Job, PriorFitting, Training
from scantune.benchmark.jobs.scoring import common_structures
from scantune.errors import InputError
from scantune.evaluation.rows import WHOLE
from scantune.model.source import ModelSource
from scantune.training.held_out import HeldOutScan
from scantune.training.helpers import TRAINERS
from scantune.training.plan import TrainingPlan
from scantune.training.sources import CaseSource


@dataclass(frozen=True)
class Selection:
    """The part of an experiment to run now. Empty fields stand for everything."""

    methods: Sequence[str] = ()
    centres: Sequence[str] = ()
    seeds: Sequence[int] = ()
    count: int | None = None

    def holds(self, job: Adaptation) -> bool:
        """Return whether a job belongs to the selection."""
        return (
            (not self.methods or job.row in self.methods)
            and (not self.centres or job.scan.site in self.centres)
            and (not self.seeds or job.seed in self.seeds)
            and (self.count is None or job.scan.number < self.count)
        )


@dataclass(frozen=True)
class JobGraph:
    """All jobs of an experiment.

    Attributes:
        rows: The jobs at the end, in the order of the results: by seed, row, centre and person.
    """

    rows: tuple[Adaptation, ...]

    def chosen(self, selection: Selection) -> list[Job]:
        """Return the jobs of a selection and all jobs they need, each once, in an order in which they can run.

        Raises:
            InputError: The selection names an unknown row or centre.
        """
        for what, asked, there in (
            ("row", selection.methods, [job.row for job in self.rows]),
            ("centre", selection.centres, [job.scan.site for job in self.rows]),
        ):
            for name in asked:
                if name not in there:
                    known = ", ".join(dict.fromkeys(there))
                    raise InputError(f"The experiment has no {what} {name!r}. Available: {known}.")
        ends = [job for job in self.rows if selection.holds(job)]
        # First one person of every centre, then the next, so that what an interrupted run leaves can be compared; and
        # the rows of a scan one after the other, so that a worker need not read it again.
        order = {job.scan.identity: place for place, job in reversed(list(enumerate(ends)))}
        ends.sort(key=lambda job: (job.seed, job.scan.number, order[job.scan.identity]))
        return _once(job for end in [*_networks(ends), *ends] for job in end.before())


def expand(experiment: Experiment, cache: str = "") -> JobGraph:
    """Expand an experiment to all of its jobs.

    Args:
        experiment: What to expand.
        cache: A folder for simulated scans, where [data] does not name one.

    Raises:
        InputError: The data are not there or do not fit, a centre is unknown, ...
    """
    return _Expansion(experiment, cache).graph()


@dataclass
class _Expansion:
    """Jobs by what identifies them, so that each is made once."""

    experiment: Experiment
    cache: str
    made: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def graph(self) -> JobGraph:
        table = self.experiment.table
        folds = folds_of([source.with_cache(self.cache) for source in self.experiment.sources()])
        home = folds[0].home.training_site()
        places = self._places(folds)
        jobs = [
            self._row(name, row, seed, fold, source, scan)
            for seed in table.seeds
            for name, row in self.experiment.rows.items()
            for site, turns in places.items()
            if row.at_home or site != home
            for fold, source, scan in self._held_out(turns, site)
            if table.count is None or scan.number < table.count
        ]
        if not jobs:
            raise InputError(f"The experiment {self.experiment.name} has no scan to test with.")
        return JobGraph(tuple(jobs))

    def _places(self, folds: Sequence[Fold]) -> dict[str, list[tuple[Fold, CaseSource]]]:
        """Return the chosen centres with the source of their scans in each fold."""
        there: dict[str, list[tuple[Fold, CaseSource]]] = {}
        for fold in folds:
            here: dict[str, CaseSource] = {}
            for source in fold.tested:
                here |= {site: source for site in source.test_sites() if site not in here}
            for site, source in here.items():
                there.setdefault(site, []).append((fold, source))
        wanted = self.experiment.table.centres
        for site in wanted:
            if site not in there:
                raise InputError(
                    f"There is no centre {site!r} in [data] of {self.experiment.name}. Available: {', '.join(there)}."
                )
        return {site: turns for site, turns in there.items() if not wanted or site in wanted}

    def _held_out(
        self, turns: Sequence[tuple[Fold, CaseSource]], site: str
    ) -> list[tuple[Fold, CaseSource, HeldOutScan]]:
        """Return the held-out scans of a centre, with its people numbered through all folds."""

        def make() -> list[tuple[Fold, CaseSource, HeldOutScan]]:
            found: list[tuple[Fold, CaseSource, HeldOutScan]] = []
            for fold, source in turns:
                first = 1 + max((scan.number for *_, scan in found), default=-1)
                here = source.test_scans(site)
                found += [(fold, source, replace(t, number=t.number + first) if first else t) for t in here]
            return found

        made: list[tuple[Fold, CaseSource, HeldOutScan]] = self._once(("scans", site), make)
        return made

    def _row(
        self, name: str, row: RowTable, seed: int, fold: Fold, source: CaseSource, scan: HeldOutScan
    ) -> Adaptation:
        table, adapt = self.experiment.table, self.experiment.adapt
        supervised = row.method == SUPERVISED
        bare = supervised or (row.network == "none" and row.method == "source")
        network = self._network(row.network, seed, fold)
        labels = self._labels(source)
        if not common_structures(self._labels(fold.home), labels) and table.score != WHOLE:
            raise InputError(f"{scan.site} has the labels {labels}, but the networks predict none of them.")
        return Adaptation(
            title=f"{name}, {scan.title}" + (f", seed {seed}" if len(table.seeds) > 1 else ""),
            seed=seed,
            scan=scan,
            network=self._supervised(network, source, scan.site, seed, fold) if supervised else network,
            prior=None if bare else self._prior(network, row, seed),
            helper=self._helper(network, row.method, seed) if row.method in TRAINERS else None,
            how=adapt.settings(row, seed),
            labels=labels,
            score=table.score,
            watch=table.watch,
            keep=scan.number < table.keep,
            cohort=source.cohort_name,
            row=name,
            tier=str(table.tier),
            fold=fold.name,
        )

    def _labels(self, source: CaseSource) -> dict[str, int]:
        found: dict[str, int] = self._once(("labels", id(source)), source.names)
        return found

    def _plan(self, source: CaseSource) -> TrainingPlan:
        plan: TrainingPlan = self._once(("plan",), self._read_plan)
        return replace(plan, source=source)

    def _read_plan(self) -> TrainingPlan:
        return TrainingPlan.read(self.experiment.recipe, network=self.experiment.network)

    def _network(self, augment: str, seed: int, fold: Fold) -> Training:
        def make() -> Training:
            recipe = self.experiment.training(augment, seed)
            plan = replace(self._plan(fold.home), recipe=recipe)
            kind = "strong baseline" if augment == "strong" else "baseline"
            given = self.experiment.table.models.get(augment)
            if given is not None:
                source = ModelSource(Path(given).resolve(), self.experiment.network)
                return GivenModel(f"take the {kind}, seed {seed}{_in(fold)}", seed, plan, source)
            return Training(f"train the {kind}, seed {seed}{_in(fold)}", seed, plan)

        made: Training = self._once(("network", augment, seed, fold.name), make)
        return made

    def _supervised(self, start: Training, source: CaseSource, site: str, seed: int, fold: Fold) -> FineTuning:
        def make() -> FineTuning:
            train = replace(self.experiment.supervised(), seed=seed)
            plan = replace(self._plan(source.at_site(site)), recipe=replace(self.experiment.recipe, train=train))
            return FineTuning(f"go on training at {site}, seed {seed}{_in(fold)}", seed, plan, start)

        made: FineTuning = self._once(("supervised", start.key, site, seed, fold.name), make)
        return made

    def _prior(self, network: Training, row: RowTable, seed: int) -> PriorFitting:
        settings = self.experiment.prior(row)
        title = f"fit the prior, {settings.density}, seed {seed}"
        made: PriorFitting = self._once(
            ("prior", network.key, settings), lambda: PriorFitting(title, seed, network, settings)
        )
        return made

    def _helper(self, network: Training, method: str, seed: int) -> HelperTraining:
        chosen = dict(self.experiment.recipe.helpers.get(method, {}))
        title = f"train the helper network of {method}, seed {seed}"
        made: HelperTraining = self._once(
            ("helper", network.key, method), lambda: HelperTraining(title, seed, network, method, chosen)
        )
        return made

    def _once(self, name: tuple[Any, ...], make: Any) -> Any:
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]


def _in(fold: Fold) -> str:
    """Return the end of a title."""
    return f", fold {fold.name}" if fold.name else ""


def _networks(ends: Sequence[Adaptation]) -> list[Job]:
    """Return networks before priors and helper networks, so that long jobs start first."""
    return [job for end in ends for job in end.inputs]


def _once(jobs: Iterable[Job]) -> list[Job]:
    return list({job.key: job for job in jobs}.values())
