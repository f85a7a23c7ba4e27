"""The demo: a model is adapted to simulated scans of centres that it was not trained at."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from scantune.adaptation.adapt import adapt
from scantune.adaptation.figure import case_figure
from scantune.adaptation.result import Result
from scantune.adaptation.scan_run import Outcome, ScanObserver
from scantune.config.presets import Preset
from scantune.errors import InputError
from scantune.evaluation.metrics import dice
from scantune.evaluation.rows import REQUIRED_COLUMNS, write_table
from scantune.methods import METHODS, ModelParts
from scantune.model.model import Model, load
from scantune.plots.files import save_figure
from scantune.runtime.devices import find_device
from scantune.scans.case import Case
from scantune.scans.files import require_writable
from scantune.simulate import COHORTS, Anatomy, Cohort

DEMO_PRESET: Preset = "fast"
DEMO_COHORTS: dict[str, tuple[str, int | None]] = {
    "segmentation": ("contrasts", 8),
    "registration": ("registration", None),
}
"""Cohort of the demo's scans by task of the model, and number of slices per scan; None for all slices."""
SCORES_FILE = "demo.csv"


@dataclass(frozen=True)
class DemoScan:
    """A simulated scan of the demo, its result, and its Dice before and after adaptation.

    Attributes:
        centre: The simulated centre.
        result: The result of the adaptation, or of the source network at the source centre.
        before: Dice before adaptation, by structure, on the scan's own grid.
        after: Dice after adaptation, by structure.
        figure: File with a figure of the scan; None for the source centre.
    """

    centre: str
    result: Result
    before: dict[str, float]
    after: dict[str, float]
    figure: Path | None = None

    @property
    def dice_before(self) -> float:
        """Return the mean Dice over the structures before adaptation."""
        return _mean(self.before)

    @property
    def dice_after(self) -> float:
        """Return the mean Dice over the structures after adaptation."""
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
) -> list[DemoScan]:
    """Adapt a model to one simulated scan of each shifted centre, and draw and score the results.

    Writes a page and `CENTRE.png` for each scan, `index.html` and `demo.csv` with all scores.

    Args:
        model: A model, or its name or path. Its structures must be those of the cohort.
        out: The output folder. It is created if needed.
        centres: Names of shifted centres; by default all of them.
        steps: Number of steps per scan; by default the preset's.
        slices: Slices per scan; by default those of `DEMO_COHORTS`.
        anatomy: Anatomy of the simulated people; by default the cohort's own.
        device: `auto`, `cpu`, `cuda`, ...
        observer: Receives the progress.

    Returns:
        The scan of the source centre, which is not adapted, then those of the shifted centres.

    Raises:
        InputError: A centre, the model or the device is unknown, or the folder is not writable.
    """
    out, observer = Path(out), observer or ScanObserver()
    require_writable(out)
    find_device(device)
    model = load(model) if isinstance(model, str | Path) else model
    name, default_slices = DEMO_COHORTS[model.task.name]
    cohort = COHORTS[name]
    chosen = _choose(cohort, centres)
    _require_fit(model, cohort)
    people = anatomy or cohort.anatomy()

    def simulated(centre: str) -> Case:
        return next(cohort.cases(centre, "test", anatomy=people, count=1, slices=slices or default_slices))

    reference = adapt(model, simulated(cohort.source), method="source", device=device)
    scans = [_scored(cohort.source, reference, cohort.labels)]
    observer.begin(chosen)
    for centre in chosen:
        observer.start(centre)
        result = adapt(
            model,
            simulated(centre),
            preset=DEMO_PRESET,
            steps=steps,
            device=device,
            on_step=partial(observer.step, centre),
        )
        scans.append(_draw(_scored(centre, result, cohort.labels), model, out))
        _write_scores(scans, cohort, out)
        _write_pages(scans, out)
        observer.end(Outcome(centre, "done", result.manifest_entry()))
    return scans


def _choose(cohort: Cohort, names: Sequence[str]) -> list[str]:
    """Return the shifted centres of these names without repetitions, or all if there are no names."""
    shifted = [name for name in cohort.centres if name != cohort.source]
    for name in names:
        if name not in shifted:
            raise InputError(f"There is no shifted centre {name!r} to adapt to. Available: {', '.join(shifted)}.")
    return list(dict.fromkeys(names)) or shifted


def _require_fit(model: Model, cohort: Cohort) -> None:
    """Raise an error unless the model segments the structures of the cohort and can be adapted."""
    if {name: value for name, value in model.labels.items() if value} != dict(cohort.labels):
        expected, found = (
            ", ".join(f"{n} = {v}" for n, v in labels.items()) for labels in (cohort.labels, model.labels)
        )
        raise InputError(
            f"The demo's scans have the structures {expected}, but the model {model.name} has {found}. Use a model of "
            "brain tissues, such as brain, or adapt this one to scans of its own kind with scantune adapt."
        )
    METHODS[model.task.method](ModelParts(model.task, model.prior))  # fails at once if the prior is missing


def _scored(centre: str, result: Result, labels: Mapping[str, int]) -> DemoScan:
    case = result.case
    assert case is not None and case.reference is not None
    before, after = (
        {name: dice(found, case.reference, value) for name, value in labels.items()}
        for found in (result.source_prediction, result.prediction)
    )
    return DemoScan(centre, result, before, after)


def _draw(scan: DemoScan, model: Model, out: Path) -> DemoScan:
    change = f"{scan.dice_before:.3f} → {scan.dice_after:.3f}"
    figure = case_figure(
        scan.result,
        title=f"Simulated scan, centre {scan.centre}: mean Dice {change}",
        captions={"Before": _listed(scan.before), "After": _listed(scan.after)},
        floor=None if model.prior is None else model.prior.floor(),
    )
    path = out / f"{scan.centre}.png"
    save_figure(figure, path)
    return replace(scan, figure=path)


def _write_scores(scans: Sequence[DemoScan], cohort: Cohort, out: Path) -> None:
    rows: list[tuple[object, ...]] = []
    for scan in scans:
        assert scan.result.case is not None
        key = (cohort.name, scan.centre, scan.result.case.subject)
        scores = {"source": scan.before, str(scan.result.facts["method"]): scan.after}
        for method, by_structure in scores.items():
            for structure, value in by_structure.items():
                rows.append((*key, method, scan.result.facts["seed"], structure, f"{value:.8g}"))
    write_table(out / SCORES_FILE, REQUIRED_COLUMNS, rows)


def _write_pages(scans: Sequence[DemoScan], out: Path) -> None:
    """Write the page of the newest scan, and the index of all scans."""
    from scantune.pages import INDEX, write_case, write_index

    rows = []
    for scan in scans:
        view = scan.result.view(scan.result.manifest_entry())
        page = f"{scan.centre}_page.html"
        if scan in (scans[0], scans[-1]):
            write_case(out / page, view)
        rows.append(view.summary(page))
    write_index(out / INDEX, rows, "Simulated scans of other scanners")


def _mean(scores: Mapping[str, float]) -> float:
    known = [value for value in scores.values() if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _listed(scores: Mapping[str, float]) -> str:
    return "  ".join(["Dice", *(f"{name} {value:.2f}" for name, value in scores.items())])
