"""Demonstrate: a model meets simulated scans of centres that it was not trained at, and is adapted to each."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from scantune.adaptation.adapt import PRESETS, adapt
from scantune.adaptation.figure import case_figure
from scantune.adaptation.outcomes import Outcome, ScanObserver
from scantune.adaptation.result import Result
from scantune.errors import InputError
from scantune.evaluation.metrics import dice
from scantune.methods import METHODS, ModelParts
from scantune.model.model import Model, load
from scantune.plots.files import save_figure
from scantune.runtime.devices import find_device
from scantune.scans.case import Case
from scantune.scans.files import require_writable, write_text
from scantune.simulate import COHORTS, Anatomy, Cohort

PRESET = "fast"
COHORT: dict[str, tuple[str, int | None]] = {"segmentation": ("contrasts", 8), "registration": ("registration", None)}
"""The cohort that a model is shown on, by its task, and how many slices of each scan; None for all."""
SCORES = "demo.csv"
COLUMNS = ("cohort", "site", "subject", "method", "seed", "structure", "dice")
"""Of the scores; they are the first columns of every score file."""


@dataclass(frozen=True)
class Showing:
    """A simulated scan, what adaptation made of it, and how well both agree with the truth.

    Attributes:
        centre: Where the scan comes from.
        result: Before and after adaptation; for the source centre, without any.
        before: Dice before adaptation, by structure, on the scan's own grid.
        after: Dice after it.
        figure: The file that shows it; None for the source centre.
    """

    centre: str
    result: Result
    before: dict[str, float]
    after: dict[str, float]
    figure: Path | None = None

    @property
    def dice_before(self) -> float:
        """Mean Dice over the structures before adaptation."""
        return _mean(self.before)

    @property
    def dice_after(self) -> float:
        """Mean Dice over the structures after adaptation."""
        return _mean(self.after)


def demo(
    model: str | Path | Model = "brain",
    out: str | Path = "demo",
    *,
    centres: Sequence[str] = (),
    steps: int | None = None,
    slices: int | None = None,
    anatomy: Anatomy | None = None,
    device: str = "auto",
    observer: ScanObserver | None = None,
) -> list[Showing]:
    """Adapt a model to one unseen simulated scan of each shifted centre, and draw and score what comes of it.

    Writes a page and `CENTRE.png` for each scan, `index.html` and `demo.csv` with all scores.

    Args:
        model: A model, or what `scantune.load` takes; its structures must be those of the cohort.
        out: The output folder, made where needed.
        centres: Names of shifted centres; by default all of them.
        steps: Number of steps per scan; by default the preset's.
        slices: Slices per scan; by default those of `COHORT`.
        anatomy: What the scans are simulated from; by default the cohort's own.
        device: `auto`, `cpu`, `cuda`, ...
        observer: Is told about the progress.

    Returns:
        The source centre, which is not adapted to, then the shifted centres.

    Raises:
        InputError: There is no such centre, model or device, or the folder takes no files.
    """
    out, watch = Path(out), observer or ScanObserver()
    require_writable(out)
    find_device(device)
    model = load(model) if isinstance(model, str | Path) else model
    name, usual = COHORT[model.task.name]
    cohort = COHORTS[name]
    chosen = _choose(cohort, centres)
    model = _fitting(model, cohort)
    people = anatomy or cohort.anatomy()

    def scan(centre: str) -> Case:
        return next(cohort.cases(centre, "test", anatomy=people, count=1, slices=slices or usual))

    reference = adapt(model, scan(cohort.source), method="source", device=device)
    showings = [_showing(cohort.source, reference, cohort.labels)]
    steps = PRESETS[PRESET].steps if steps is None else steps
    watch.begin(chosen)
    for centre in chosen:
        watch.start(centre)
        result = adapt(
            model, scan(centre), preset=PRESET, steps=steps, device=device, on_step=partial(watch.step, centre)
        )
        showings.append(_draw(_showing(centre, result, cohort.labels), model, out))
        _write_scores(showings, cohort, out)
        _write_pages(showings, out)
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
    METHODS[model.task.method](ModelParts(model.task, model.prior))  # tells at once where the prior is missing
    return model


def _showing(centre: str, result: Result, labels: Mapping[str, int]) -> Showing:
    case = result.case
    assert case is not None and case.reference is not None
    before, after = (
        {name: dice(found, case.reference, value) for name, value in labels.items()}
        for found in (result.source_prediction, result.prediction)
    )
    return Showing(centre, result, before, after)


def _draw(showing: Showing, model: Model, out: Path) -> Showing:
    change = f"{showing.dice_before:.3f} → {showing.dice_after:.3f}"
    figure = case_figure(
        showing.result,
        title=f"Simulated scan, centre {showing.centre}: mean Dice {change}",
        captions={"Before": _listed(showing.before), "After": _listed(showing.after)},
        floor=None if model.prior is None else model.prior.floor(),
    )
    path = out / f"{showing.centre}.png"
    save_figure(figure, path)
    return replace(showing, figure=path)


def _write_scores(showings: Sequence[Showing], cohort: Cohort, out: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for showing in showings:
        assert showing.result.case is not None
        scan = (cohort.name, showing.centre, showing.result.case.subject)
        scores = {"source": showing.before, str(showing.result.facts["method"]): showing.after}
        for method, by_structure in scores.items():
            for structure, value in by_structure.items():
                writer.writerow([*scan, method, showing.result.facts["seed"], structure, f"{value:.8g}"])
    write_text(out / SCORES, text.getvalue())


def _write_pages(showings: Sequence[Showing], out: Path) -> None:
    """Write the page of the newest scan, and the index of all."""
    from scantune.pages import INDEX, write_case, write_index

    rows = []
    for showing in showings:
        view = showing.result.view(showing.result.manifest_entry())
        page = f"{showing.centre}_page.html"
        if showing in (showings[0], showings[-1]):
            write_case(out / page, view)
        rows.append(view.summary(page))
    write_index(out / INDEX, rows, "Simulated scans of other scanners")


def _mean(scores: Mapping[str, float]) -> float:
    there = [value for value in scores.values() if not math.isnan(value)]
    return fmean(there) if there else math.nan


def _listed(scores: Mapping[str, float]) -> str:
    return "  ".join(["Dice", *(f"{name} {value:.2f}" for name, value in scores.items())])
