"""Trials of models that were trained on simulated scans, on people of their cohorts who were not used before.

Besides the bundled models, every model that `scripts/small_models.py FOLDER/models` made takes part. Those of the
training run 0 count as development, with people of the split `validation`; the bundled ones and those of other runs
are for the report, with people of the split `test`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from subjects import Scan, Trial

import scantune
from scantune.backends import PreparedSlices
from scantune.model.model import Model
from scantune.simulate import COHORTS, Cohort

SEED, SLICES, HOME_PEOPLE = 73, 8, 6
HOME_FIRST = 60
"""Number of the first held-out person, by whom criteria learn what is usual at home; the others have shifted scans."""

BUNDLED = (("brain", "contrasts", "contrasts"), ("brain", "contrasts", "brain"), ("spine", "spine", "spine"))
"""Bundled models, the cohort whose source centre is their home, and the cohort of the shifted scans."""


@dataclass(frozen=True)
class People:
    """The people whose scans are adapted to.

    Args:
        group: The set that they count in.
        split: Of their cohort.
        first: Number of the first of them at each centre.
        count: How many there are.
    """

    group: str
    split: str
    first: int
    count: int


DEVELOPMENT = People("simulated development", "validation", 20, 3)
REPORTED = People("simulated", "test", 0, 4)
REPORTED_IN_FULL = People("simulated", "test", 0, 1)
"""Rules are chosen on the first, and reported on the others; the last are for the bundled models, of finer pixels."""


def cohort_trial(name: str, model: Model, home: Cohort, cohort: Cohort, people: People) -> Trial:
    """Return the trial of a model on every centre of a cohort; a scan is some slices of a person."""

    def fit(model: Model) -> Model:
        assert model.prior is not None
        return model

    def held_out() -> list[PreparedSlices]:
        numbers = range(HOME_FIRST, HOME_FIRST + HOME_PEOPLE)
        return [_scan(model, home, "test", str(number), home.source).prepared for number in numbers]

    chosen = range(people.first, people.first + people.count)
    names = tuple((str(number), centre) for number in chosen for centre in cohort.centres)
    scan = partial(_scan, model, cohort, people.split)
    return Trial(name, people.group, lambda: model, fit, held_out, names, scan)


def _scan(model: Model, cohort: Cohort, split: str, person: str, centre: str) -> Scan:
    """Simulate a person at a centre."""
    first = int(person)
    case = next(cohort.cases(centre, split, seed=SEED, start=first, count=first + 1, slices=SLICES))
    return Scan(person, centre, case, model.backend.prepare(case))


def cohort_trials(folder: Path) -> Iterator[Trial]:
    """Yield the trials of bundled models, and of small ones in a folder, called COHORT-AUGMENT-RUN."""
    for name, home, cohort in BUNDLED:
        yield cohort_trial(f"{name}-{cohort}", scantune.load(name), COHORTS[home], COHORTS[cohort], REPORTED_IN_FULL)
    for path in sorted((folder / "models").glob("*.safetensors")):
        cohort_name, _, run = path.stem.rsplit("-", 2)
        people = DEVELOPMENT if run == "0" else REPORTED
        yield cohort_trial(path.stem, scantune.load(path), COHORTS[cohort_name], COHORTS[cohort_name], people)
