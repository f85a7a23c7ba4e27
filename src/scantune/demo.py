"""The demo: bundled models meet simulated scans of other scanners, which are left alone, rescued or flagged."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from scantune.adaptation.adapt import adapt
from scantune.adaptation.calibration.degradations import Degradation
from scantune.adaptation.figure import case_figure
from scantune.adaptation.guard.base import Action
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

DEMO_MODELS = ("brain", "spine")
"""Models that the demo shows by default."""

DEMO_PRESET: Preset = "fast"

SPLIT, SEED = "validation", 1
"""The first person of this split is scanned at each centre. The bundled networks were trained and chosen on people of
seed 0, so that this one is new to them even at the training centre."""

RULE = (
    "Each scan is of the first validation person of its centre, drawn with seed 1. None was chosen by its result. All "
    "centres are shown unless you name some. Names such as gamma-0 are scans of the training site with another "
    "brightness: each kind of change at full strength, with two draws if it is random. The bundled model spine was "
    "trained without augmentation, so such changes often make it fail."
)
"""The rule by which scans are drawn, for pages."""

TITLE = "What scantune does: examples"
EXAMPLES = (
    "These are examples of simulated scans, so the truth is known. They show what scantune does, not how well it works "
    "on real scans."
)
UNKNOWN = "unknown"

BRIGHTNESS = (
    *(Degradation(family, 1.0, draw) for family in ("gamma", "gain", "curve") for draw in (0, 1)),
    Degradation("inverted", 1.0),
)
"""Changes of brightness at full strength, as networks meet them that were trained without augmentation."""

SCORES_FILE = "demo.csv"


@dataclass(frozen=True)
class Programme:
    """Scans that the demo shows to models of one kind.

    Args:
        cohort: Name of their cohort.
        task: Task of the models.
        slices: Slices per scan; None for those of the protocol.
        changes: Changes of scans of the training centre that are shown beside other centres.
    """

    cohort: str
    task: str = "segmentation"
    slices: int | None = None
    changes: tuple[Degradation, ...] = ()

    @property
    def centres(self) -> tuple[str, ...]:
        """Return the training centre, all other centres, and the names of changed scans."""
        return (*COHORTS[self.cohort].centres, *self.changed)

    @property
    def changed(self) -> dict[str, Degradation]:
        """Return the changes by name, such as `gamma-0`."""
        return {f"{change.family}-{change.person}": change for change in self.changes}


PROGRAMMES = (
    Programme("contrasts", slices=8),
    Programme("spine", changes=BRIGHTNESS),
    Programme("registration", "registration"),
)


@dataclass(frozen=True)
class DemoScan:
    """A simulated scan of the demo, its result, and its Dice before and after adaptation.

    Attributes:
        model: Name of the model.
        cohort: Name of the cohort.
        centre: The simulated centre.
        at_home: Whether the model was trained at this centre.
        result: The result of the adaptation.
        before: Dice before adaptation, by structure, on the scan's own grid.
        after: Dice after adaptation, by structure.
    """

    model: str
    cohort: str
    centre: str
    at_home: bool
    result: Result
    before: dict[str, float]
    after: dict[str, float]

    @property
    def name(self) -> str:
        """Return what the scan's files are called."""
        return file_name(self.model, self.centre)

    @property
    def title(self) -> str:
        """Return what the scan is called in tables."""
        return f"{self.model}, {self.centre}{' (training site)' if self.at_home else ''}"

    @property
    def action(self) -> Action:
        """Return what was done about the scan."""
        return self.result.decision.action

    @property
    def verdicts(self) -> list[str]:
        """Return the verdicts on the segmentations before and after, once if they are the same; empty if unknown."""
        facts = self.result.facts
        return list(dict.fromkeys((facts["verdict_before"], facts["verdict"]))) if "verdict" in facts else []

    @property
    def dice_before(self) -> float:
        """Return the mean Dice over the structures before adaptation."""
        return _mean(self.before)

    @property
    def dice_after(self) -> float:
        """Return the mean Dice over the structures after adaptation."""
        return _mean(self.after)


@dataclass(frozen=True)
class Words:
    """Words for what was done about scans.

    Args:
        heading: Above such scans.
        meaning: What it means, in a sentence.
        one: What is said of one scan.
        several: What is said of several scans.
        changes: Whether their segmentations may have changed.
    """

    heading: str
    meaning: str
    one: str
    several: str
    changes: bool = True


OUTCOMES: dict[Action, Words] = {
    "adapted": Words(
        "Adapted",
        "The network's segmentation did not look reliable. That of the adapted network is expected to be better.",
        "was adapted",
        "were adapted",
    ),
    "left alone": Words(
        "Left alone",
        "The network's segmentation looked as reliable as at the training site, so nothing was changed.",
        "was left alone",
        "were left alone",
        changes=False,
    ),
    "unsolved": Words(
        "Flagged as unsolved",
        "The network is not reliable on these scans, and adaptation did not help enough. Do not use such a "
        "segmentation without looking at it.",
        "is flagged as unsolved",
        "are flagged as unsolved",
    ),
}
"""Words by what the guard decided, in the order in which scans are shown."""


def demo(
    models: Sequence[str | Path | Model] = DEMO_MODELS,
    out: str | Path = "demo",
    *,
    centres: Sequence[str] = (),
    steps: int | None = None,
    anatomy: Anatomy | None = None,
    slices: int | None = None,
    device: str = "auto",
    observer: ScanObserver | None = None,
) -> list[DemoScan]:
    """Adapt models to one simulated scan of each centre, and draw and score the results.

    Writes a page and a figure for each scan, `index.html`, and `demo.csv` with all scores.

    Args:
        models: Models, or their names or paths. Their structures must be those of a cohort of `PROGRAMMES`.
        out: The output folder. It is created if needed.
        centres: Names of other centres than those that the models were trained at; by default all of them.
        steps: Number of steps per scan; by default the preset's.
        anatomy: Anatomy of the simulated people; by default the cohort's own.
        slices: Slices per scan; by default the programme's.
        device: `auto`, `cpu`, `cuda`, ...
        observer: Receives the progress.

    Returns:
        For each model a scan of its training centre, then those of the other centres.

    Raises:
        InputError: A centre, a model or the device is unknown, or the folder is not writable.
    """
    out, observer = Path(out), observer or ScanObserver()
    require_writable(out)
    find_device(device)
    loaded = [load(model) if isinstance(model, str | Path) else model for model in models]
    shows = _chosen([Show.of(model) for model in loaded], centres)
    observer.begin([file_name(show.model.name, centre) for show in shows for centre in show.centres])
    scans: list[DemoScan] = []
    for show in shows:
        people = anatomy or show.cohort.anatomy()
        for centre in show.centres:
            name = file_name(show.model.name, centre)
            observer.start(name)
            result = adapt(
                show.model,
                show.case(centre, people, slices),
                preset=DEMO_PRESET,
                steps=steps,
                device=device,
                on_step=partial(observer.step, name),
            )
            scans.append(show.scored(centre, result))
            _draw(scans[-1], show.model, out / f"{name}.png")
            _write_scores(scans, out)
            _write_pages(scans, out)
            observer.end(Outcome(name, "done", result.manifest_entry()))
    return scans


@dataclass(frozen=True)
class Show:
    """A model and the centres whose scans it is shown on, the training centre first."""

    model: Model
    programme: Programme
    centres: tuple[str, ...]

    @classmethod
    def of(cls, model: Model) -> "Show":
        """Find the programme for a model.

        Raises:
            InputError: There is no cohort with its structures, or it cannot be adapted.
        """
        labels = {name: value for name, value in model.labels.items() if value}
        for programme in PROGRAMMES:
            cohort = COHORTS[programme.cohort]
            if programme.task == model.task.name and labels == dict(cohort.labels):
                METHODS[model.task.method](ModelParts(model.task, model.prior))  # fails at once if the prior is missing
                return cls(model, programme, programme.centres)
        known = "; ".join(_listed(COHORTS[each.cohort].labels) for each in PROGRAMMES if each.task == model.task.name)
        raise InputError(
            f"The demo has scans for models with the structures {known}, but the model {model.name} has "
            f"{_listed(labels)}. Use a bundled model, or adapt this one to scans of its own kind with scantune adapt."
        )

    @property
    def cohort(self) -> Cohort:
        """Return the cohort of the scans."""
        return COHORTS[self.programme.cohort]

    def case(self, centre: str, anatomy: Anatomy, slices: int | None) -> Case:
        """Simulate the scan of a centre, or that of the training centre with a change."""
        wanted, change = slices or self.programme.slices, self.programme.changed.get(centre)
        site = centre if change is None else self.cohort.source
        case = next(self.cohort.cases(site, SPLIT, seed=SEED, anatomy=anatomy, count=1, slices=wanted))
        if change is None:
            return case
        return replace(change.apply(case, "axial"), name=f"{case.name}_{centre}")

    def scored(self, centre: str, result: Result) -> DemoScan:
        """Score a result by the truth."""
        case = result.case
        assert case is not None and case.reference is not None
        before, after = (
            {name: dice(found, case.reference, value) for name, value in self.cohort.labels.items()}
            for found in (result.source_prediction, result.prediction)
        )
        at_home = centre == self.cohort.source
        return DemoScan(self.model.name, self.cohort.name, centre, at_home, result, before, after)


def _draw(scan: DemoScan, model: Model, path: Path) -> None:
    """Write the figure of a scan."""
    figure = case_figure(
        scan.result,
        title=f"Simulated scan, centre {scan.centre}: mean Dice {scan.dice_before:.3f} → {scan.dice_after:.3f}",
        captions={"Before": _scores(scan.before), "After": _scores(scan.after)},
        floor=None if model.prior is None else model.prior.floor(),
    )
    save_figure(figure, path)


def file_name(model: str, centre: str) -> str:
    """Return what the files of a scan are called, without suffix."""
    return f"{model}-{centre}"


def _chosen(shows: Sequence[Show], names: Sequence[str]) -> list[Show]:
    """Return the shows with these centres and the training centre, without those that have none of them.

    Raises:
        InputError: No model has a centre of such a name, or it is the training centre.
    """
    if not names:
        return list(shows)
    shifted = [centre for show in shows for centre in show.programme.centres[1:]]
    for name in names:
        if name not in shifted:
            raise InputError(f"There is no shifted centre {name!r} to adapt to. Available: {', '.join(shifted)}.")
    wanted = dict.fromkeys(names)
    kept = [(show, [name for name in wanted if name in show.programme.centres]) for show in shows]
    return [replace(show, centres=(show.centres[0], *found)) for show, found in kept if found]


def summary(scans: Sequence[DemoScan]) -> list[str]:
    """Describe in sentences what became of the shifted scans."""
    others = [scan for scan in scans if not scan.at_home]
    if not others:
        return []
    changes = [scan.dice_after - scan.dice_before for scan in others]
    counted = _joined([_counted(words, found) for words, found in by_outcome(others)])
    return [
        f"Of {len(others)} shifted {'scan' if len(others) == 1 else 'scans'}, {counted}.",
        f"Their mean Dice changed by {fmean(changes):+.3f}, and that of the worst scan by {min(changes):+.3f}.",
    ]


def _counted(words: Words, scans: Sequence[DemoScan]) -> str:
    """Count scans of one outcome, with their mean Dice."""
    before, after = (fmean(part) for part in zip(*((s.dice_before, s.dice_after) for s in scans), strict=True))
    dice = f"{before:.2f} before, {after:.2f} after" if words.changes else f"{before:.2f}"
    return f"{len(scans)} {words.one if len(scans) == 1 else words.several} (Dice {dice})"


def by_outcome(scans: Sequence[DemoScan]) -> Iterator[tuple[Words, list[DemoScan]]]:
    """Yield the scans in groups of the same outcome, without empty groups."""
    for action, words in OUTCOMES.items():
        if found := [scan for scan in scans if scan.action == action]:
            yield words, found


def _write_scores(scans: Sequence[DemoScan], out: Path) -> None:
    rows: list[tuple[object, ...]] = []
    for scan in scans:
        assert scan.result.case is not None
        key = (scan.cohort, scan.centre, scan.result.case.subject)
        for method, by_structure in (("source", scan.before), (str(scan.result.facts["method"]), scan.after)):
            for structure, value in by_structure.items():
                rows.append((*key, method, scan.result.facts["seed"], structure, f"{value:.8g}"))
    write_table(out / SCORES_FILE, REQUIRED_COLUMNS, rows)


def _write_pages(scans: Sequence[DemoScan], out: Path) -> None:
    """Write the page of the newest scan, and the index of all scans."""
    from scantune.pages import INDEX, Card, Gallery, Group, write_case, write_index

    views = {scan.name: scan.result.view(scan.result.manifest_entry()) for scan in scans}
    newest = scans[-1].name
    write_case(out / _page(newest), views[newest])
    groups = [
        Group(
            words.heading,
            words.meaning,
            [Card.of(views[each.name], _page(each.name), each.title, _facts(each)) for each in found],
        )
        for words, found in by_outcome(scans)
    ]
    gallery = Gallery((EXAMPLES, RULE, *summary(scans)), groups)
    write_index(out / INDEX, gallery.rows, TITLE, gallery=gallery)


def _page(name: str) -> str:
    return f"{name}_page.html"


def _facts(scan: DemoScan) -> dict[str, str]:
    """Return what stands on the card of a scan."""
    known = scan.result.facts

    def change(before: float, after: float | None) -> str:
        first, last = (UNKNOWN if value is None else f"{value:.2f}" for value in (before, after))
        return first if scan.result.adapted is scan.result.source else f"{first} → {last}"

    facts = {"Dice": change(scan.dice_before, scan.dice_after)}
    if scan.verdicts:
        facts["Expected without the truth"] = change(known["expected_before"], known["expected"])
        facts["Verdict"] = " → ".join(scan.verdicts)
    return facts


def _listed(labels: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in labels.items())


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _mean(scores: Mapping[str, float]) -> float:
    known = [value for value in scores.values() if not math.isnan(value)]
    return fmean(known) if known else math.nan


def _scores(scores: Mapping[str, float]) -> str:
    return "  ".join(["Dice", *(f"{name} {value:.2f}" for name, value in scores.items())])
