"""Calibration of the assessment by degraded scans of held-out people: coefficients, range and margin."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from scantune.adaptation.calibration.degradations import FAMILIES
from scantune.adaptation.calibration.margin import Rehearsed, fit_gain
from scantune.adaptation.calibration.rehearsal import Person, Stand, thinned, without_bias
from scantune.backends import Preprocessing
from scantune.model.model import Model
from scantune.prior.assessment import assess
from scantune.prior.coefficients import SHIPPED, Contest, FitCounts, LocalCoefficients
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.local_fit import PEOPLE_FOR_A_FIT, GradedPrediction, fit_coefficients, fit_range
from scantune.scans.case import Case

MOST_PEOPLE = 12
"""Most people whose scans are degraded; of more, the first are taken."""

MOST_SLICES, SLICE_PIXELS = 12, 8 * 192 * 192
"""Most slices of a scan that are degraded, and most pixels of these slices together."""

ADAPTATIONS = 3
"""Degraded scans of a person that are adapted to."""

STEPS = 12
"""Steps of these adaptations."""

AS_IT_IS = "none"
"""The family of scans without degradation."""

FAMILY_PARTS, ADAPTATION_PARTS = 1, 6
"""What reading a family of degradations and adapting to a scan count in the progress."""

OnProgress = Callable[[int, int], None]
"""Called with the number of parts of the work that are done, and of all."""


def ignore_progress(done: int, parts: int) -> None:
    """Do nothing with the progress."""
    del done, parts


def calibrate(
    model: Model, cases: Iterable[Case], device: str = "auto", on_progress: OnProgress = ignore_progress
) -> Model:
    """Return a model whose assessment is calibrated on degraded scans of held-out people.

    With fewer than `PEOPLE_FOR_A_FIT` people, without home readings and their Dice, or where the network does not see
    slices, the model stays as it is: then the shipped coefficients count.

    Args:
        model: A model whose prior has home readings.
        cases: Scans of people that the network was not trained on, with references; of each person the first is taken.
        device: Where to compute.
        on_progress: Called after each part of the work.
    """
    known = None if model.prior is None else model.prior.calibration
    home = None if known is None else known.home
    if model.prior is None or known is None or home is None or home.dice is None or home.people < PEOPLE_FOR_A_FIT:
        return model
    if not isinstance(model.backend, Preprocessing):
        return model
    people: dict[str, Case] = {}
    for case in cases:
        if len(people) < MOST_PEOPLE:
            people.setdefault(case.subject, case)
    if len(people) < PEOPLE_FOR_A_FIT:
        return model
    home = replace(home, local=rehearse(model, list(people.values()), device, on_progress).fit())
    return replace(model, prior=replace(model.prior, calibration=replace(known, home=home)))


@dataclass
class Rehearsal:
    """Graded predictions and adaptations.

    Args:
        people: Number of people.
        predictions: Predictions for scans as they are, for degraded scans, and of stages of adaptations to these.
        adaptations: The adaptations.
    """

    people: int
    predictions: list[GradedPrediction] = field(default_factory=list)
    adaptations: list[Rehearsed] = field(default_factory=list)

    def fit(self) -> LocalCoefficients:
        """Return the coefficients, the range and the margin, each with what it comes to on what was left out."""
        fitted, error = fit_coefficients(self.predictions)
        widest, shifts, reach = fit_range(self.predictions, fitted if error.local <= error.shipped else SHIPPED)
        fitted = replace(fitted, widest=widest, shifts=shifts)
        local = LocalCoefficients(fitted, error, reach, None, Contest(0.0, 0.0), self.counts)
        gain, value = fit_gain([replace(run, home=replace(run.home, local=local)) for run in self.adaptations])
        return replace(local, gain=gain, value=value)

    @property
    def counts(self) -> FitCounts:
        """Count what coefficients are fitted to."""
        families = {each.family for each in self.predictions} - {AS_IT_IS}
        return FitCounts(self.people, len(families), len(self.predictions), len(self.adaptations))


def rehearse(
    model: Model, cases: Sequence[Case], device: str = "auto", on_progress: OnProgress = ignore_progress
) -> Rehearsal:
    """Read and grade predictions for degraded scans, and stages of adaptations to some of them.

    Args:
        model: A model whose prior has home readings.
        cases: A scan of each person, with reference.
        device: Where to compute.
        on_progress: Called after each part of the work.
    """
    assert isinstance(model.backend, Preprocessing)
    rows, columns = model.backend.size
    slices = max(1, min(MOST_SLICES, SLICE_PIXELS // (rows * columns)))
    progress = _Progress(len(cases) * (len(FAMILIES) * FAMILY_PARTS + ADAPTATIONS * ADAPTATION_PARTS), on_progress)
    few = [without_bias(thinned(case, model.backend, slices), model.backend) for case in cases]
    stand = Stand.of(model, few[0], device, STEPS)
    usual = [stand.read(case) for case in few]
    found = Rehearsal(len(few))
    for number, case in enumerate(few):
        person = Person(number, case, stand)
        others = _home(usual[:number] + usual[number + 1 :])
        found.predictions.append(GradedPrediction(number, AS_IT_IS, usual[number], others))
        failing = list(_read(person, others, found, progress))
        first = number * ADAPTATIONS
        turns = [failing[(first + turn) % len(failing)] for turn in range(min(ADAPTATIONS, len(failing)))]
        for family, degraded, readings in turns:
            reader, stages = stand.adapt(degraded, others, readings)
            found.adaptations.append(Rehearsed(number, family, others, reader, readings, stages))
            graded = (stage.readings for stage in stages)
            found.predictions += [
                GradedPrediction(number, family, each, others) for each in graded if isinstance(each, GradedReadings)
            ]
            progress.add(ADAPTATION_PARTS)
        progress.add((ADAPTATIONS - len(turns)) * ADAPTATION_PARTS)
    return found


def _read(
    person: Person, others: HomeReadings, found: Rehearsal, progress: "_Progress"
) -> Iterator[tuple[str, Case, GradedReadings]]:
    """Read the degraded scans of a person, and yield the first of each family whose prediction is not fine."""
    for family in FAMILIES:
        waiting = True
        for case, readings in person.degraded(family):
            found.predictions.append(GradedPrediction(person.number, family, readings, others))
            if waiting and not assess(readings, others).leave:
                waiting = False
                yield family, case, readings
        progress.add(FAMILY_PARTS)


def _home(readings: Sequence[GradedReadings]) -> HomeReadings:
    """Return home readings of people."""
    return HomeReadings.fit(readings, [each.dice for each in readings])


@dataclass
class _Progress:
    """Progress in parts of the work.

    Args:
        parts: Number of all parts.
        report: Called after each.
        done: Number of those that are done.
    """

    parts: int
    report: OnProgress
    done: int = 0

    def __post_init__(self) -> None:
        self.report(0, self.parts)

    def add(self, parts: int) -> None:
        """Count parts."""
        self.done += parts
        self.report(self.done, self.parts)
