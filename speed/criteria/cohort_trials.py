"""Trials of models that were trained on simulated scans, on people of their cohorts who were not used before.

Besides the bundled models, every model that `scripts/small_models.py FOLDER/models` made takes part.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from subjects import Scan, Trial

import scantune
from scantune.backends import PreparedSlices
from scantune.model.model import Model
from scantune.simulate import COHORTS, Cohort

SEED, SLICES, PEOPLE, HOME_PEOPLE = 73, 6, 2, 6
HOME_FIRST = 60
"""Number of the first held-out person, by whom criteria learn what is usual at home; the others have shifted scans."""

BUNDLED = (("brain", "contrasts", "contrasts"), ("brain", "contrasts", "brain"), ("spine", "spine", "spine"))
"""Bundled models, the cohort whose source centre is their home, and the cohort of the shifted scans."""


def cohort_trial(name: str, model: Model, home: Cohort, cohort: Cohort) -> Trial:
    """Return the trial of a model on every centre of a cohort; a scan is some slices of a person."""

    def fit(model: Model) -> Model:
        assert model.prior is not None
        return model

    def held_out() -> list[PreparedSlices]:
        people = range(HOME_FIRST, HOME_FIRST + HOME_PEOPLE)
        return [_scan(model, home, str(number), home.source).prepared for number in people]

    names = tuple((str(number), centre) for number in range(PEOPLE) for centre in cohort.centres)
    return Trial(name, "simulated", lambda: model, fit, held_out, names, partial(_scan, model, cohort))


def _scan(model: Model, cohort: Cohort, person: str, centre: str) -> Scan:
    """Simulate a person at a centre."""
    first = int(person)
    case = next(cohort.cases(centre, "test", seed=SEED, start=first, count=first + 1, slices=SLICES))
    return Scan(person, centre, case, model.backend.prepare(case))


def cohort_trials(folder: Path) -> Iterator[Trial]:
    """Yield the trials of bundled models, and of small ones in a folder, whose names begin with their cohort."""
    for name, home, cohort in BUNDLED:
        yield cohort_trial(f"{name}-{cohort}", scantune.load(name), COHORTS[home], COHORTS[cohort])
    for path in sorted((folder / "models").glob("*.safetensors")):
        cohort = COHORTS[path.stem.split("-")[0]]
        yield cohort_trial(path.stem, scantune.load(path), cohort, cohort)
