"""Trials of the bundled model `brain` on simulated people of its cohorts who were not used before."""

from functools import partial

from subjects import Scan, Trial

import scantune
from scantune.backends import PreparedSlices
from scantune.model.model import Model
from scantune.simulate import COHORTS, Cohort

SEED, SLICES, PEOPLE, HOME_PEOPLE = 73, 4, 1, 6
HOME_FIRST = 60
"""Number of the first held-out person, by whom criteria learn what is usual at home; the others have shifted scans."""


def cohort_trial(name: str) -> Trial:
    """Return the trial of the bundled model on every centre of a cohort; a scan is some slices of a person."""
    cohort, home = COHORTS[name], COHORTS["contrasts"]

    def fit(model: Model) -> Model:
        assert model.prior is not None
        return model

    def held_out(model: Model) -> list[PreparedSlices]:
        people = range(HOME_FIRST, HOME_FIRST + HOME_PEOPLE)
        return [_scan(model, home, str(number), home.source).prepared for number in people]

    model = scantune.load("brain")
    names = tuple((str(number), centre) for number in range(PEOPLE) for centre in cohort.centres)
    scan = partial(_scan, model, cohort)
    return Trial(f"brain-{name}", "simulated", lambda: model, fit, partial(held_out, model), names, scan)


def _scan(model: Model, cohort: Cohort, person: str, centre: str) -> Scan:
    """Simulate a person at a centre."""
    first = int(person)
    case = next(cohort.cases(centre, "test", seed=SEED, start=first, count=first + 1, slices=SLICES))
    return Scan(person, centre, case, model.backend.prepare(case))


def cohort_trials() -> list[Trial]:
    """Return the trials of both cohorts of heads."""
    return [cohort_trial(name) for name in ("contrasts", "brain")]
