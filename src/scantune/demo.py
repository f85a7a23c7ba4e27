"""Demonstrate: a model meets simulated scans of centres that it was not trained at, and is adapted to each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scantune.adapt import adapt
from scantune.batch import Observer, Outcome
from scantune.devices import find_device
from scantune.errors import InputError
from scantune.evaluate import Evaluation, ScoreRow
from scantune.filenames import Matches
from scantune.methods import METHODS, Equipment
from scantune.metrics import Score, score
from scantune.modelfile import Model, load
from scantune.outputs import require_writable
from scantune.plots import case_figure, save_figure
from scantune.results import Result
from scantune.scans import Case
from scantune.simulate import COHORTS, Anatomy, Cohort

METHOD = "foe-cnn-pca"
COHORT = "brain"
SCORES = "demo.csv"


@dataclass(frozen=True)
class Showing:
    """A simulated scan, what adaptation made of it, and how well both agree with the truth.

    Attributes:
        centre: Where the scan comes from.
        result: Before and after adaptation; for the source centre, without any.
        before: Scores before adaptation, by structure, on the scan's own grid.
        after: Scores after it.
        figure: The file that shows it; None for the source centre.
    """

    centre: str
    result: Result
    before: dict[str, Score]
    after: dict[str, Score]
    figure: Path | None = None

    @property
    def dice_before(self) -> float:
        """Mean Dice over the structures before adaptation."""
        return _mean_dice(self.before)

    @property
    def dice_after(self) -> float:
        """Mean Dice over the structures after adaptation."""
        return _mean_dice(self.after)


def demo(
    model: str | Path | Model = "brain",
    out: str | Path = "demo",
    *,
    centres: Sequence[str] = (),
    steps: int | None = None,
    slices: int = 8,
    anatomy: Anatomy | None = None,
    device: str = "auto",
    observer: Observer | None = None,
) -> list[Showing]:
    """Adapt a model to one unseen simulated scan of each shifted centre, and draw and score what comes of it.

    Writes `CENTRE.png` for each scan and `demo.csv` with all scores.

    Args:
        model: A model, or what `scantune.load` takes; its structures must be those of the cohort.
        out: The output folder, made where needed.
        centres: Names of shifted centres; by default all of them.
        steps: Number of steps per scan; by default the preset's.
        slices: Slices per scan.
        anatomy: What the scans are simulated from; by default the cohort's own.
        device: `auto`, `cpu`, `cuda`, ...
        observer: Is told about the progress.

    Returns:
        The source centre, which is not adapted to, then the shifted centres.

    Raises:
        InputError: There is no such centre, model or device, or the folder takes no files.
    """
    cohort, out, watch = COHORTS[COHORT], Path(out), observer or Observer()
    chosen = _choose(cohort, centres)
    require_writable(out)
    find_device(device)
    model = _fitting(load(model) if isinstance(model, str | Path) else model, cohort)
    people = anatomy or cohort.anatomy()

    def scan(centre: str) -> Case:
        return next(cohort.cases(centre, "test", anatomy=people, count=1, slices=slices))

    reference = adapt(model, scan(cohort.source), method="source", device=device)
    showings = [_showing(cohort.source, reference, cohort.labels)]
    watch.begin(chosen)
    for centre in chosen:
        watch.start(centre)
        result = adapt(model, scan(centre), method=METHOD, steps=steps, device=device, on_step=watch.step)
        showings.append(_draw(_showing(centre, result, cohort.labels), model, out))
        _write_scores(showings, cohort, out)
        watch.end(Outcome(centre, "done", result.manifest_entry()))
    return showings


def _choose(cohort: Cohort, names: Sequence[str]) -> list[str]:
    """The shifted centres of these names, each once; all of them where there are no names."""
    shifted = [name for name in cohort.centres if name != cohort.source]
    for name in names:
        if name not in shifted:
            raise InputError(f"There is no shifted centre {name!r} to adapt to. Available: {', '.join(shifted)}.")
    return list(dict.fromkeys(names)) or shifted


def _fitting(model: Model, cohort: Cohort) -> Model:
    """The model, when it can be shown on the cohort."""
    if {name: value for name, value in model.labels.items() if value} != dict(cohort.labels):
        ours, theirs = (", ".join(f"{n} = {v}" for n, v in labels.items()) for labels in (cohort.labels, model.labels))
        raise InputError(
            f"The demo's scans have the structures {ours}, but the model {model.name} has {theirs}. Use a model of "
            "brain tissues, such as brain, or adapt this one to scans of its own kind with scantune adapt."
        )
    METHODS[METHOD](Equipment(model.task, model.prior))  # tells at once where the prior is missing
    return model


def _showing(centre: str, result: Result, labels: Mapping[str, int]) -> Showing:
    case = result.case
    assert case is not None and case.reference is not None
    before, after = (
        {name: score(found, case.reference, value, case.spacing) for name, value in labels.items()}
        for found in (result.source_prediction, result.prediction)
    )
    return Showing(centre, result, before, after)


def _draw(showing: Showing, model: Model, out: Path) -> Showing:
    assert model.prior is not None
    figure = case_figure(
        showing.result,
        title=f"Simulated scan, centre {showing.centre}: mean Dice {showing.dice_before:.3f} → {showing.dice_after:.3f}",
        captions={"Before": _dices(showing.before), "After": _dices(showing.after)},
        floor=model.prior.floor(),
    )
    path = out / f"{showing.centre}.png"
    save_figure(figure, path)
    return replace(showing, figure=path)


def _write_scores(showings: Sequence[Showing], cohort: Cohort, out: Path) -> None:
    rows = []
    for showing in showings:
        methods = {"source": showing.before}
        if showing.centre != cohort.source:
            methods[METHOD] = showing.after
        assert showing.result.case is not None
        subject, seed = showing.result.case.subject, showing.result.facts["seed"]
        for method, scores in methods.items():
            for structure, one in scores.items():
                rows.append(ScoreRow(cohort.name, showing.centre, subject, method, seed, structure, one))
    Evaluation(rows, Matches([]), {}).save(out / SCORES)


def _mean_dice(scores: Mapping[str, Score]) -> float:
    there = [one.dice for one in scores.values() if not math.isnan(one.dice)]
    return fmean(there) if there else math.nan


def _dices(scores: Mapping[str, Score]) -> str:
    return "  ".join(["Dice", *(f"{name} {one.dice:.2f}" for name, one in scores.items())])
