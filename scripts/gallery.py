"""The gallery of the documentation: scans that were adapted, left alone and flagged.

    python scripts/gallery.py                      the part about bundled models

    python scripts/small_models.py MODELS --version v2 --coarse --augment none --seed 1      five networks, and
    python scripts/small_models.py MODELS --version v2 --coarse --augment strong --seed 1    five more, minutes each
    python scripts/gallery.py --models MODELS      the part about every anatomy, by these networks

Each part of gallery.md and its figures/gallery-*.png are written in docs/ or with --out in another folder. The other
part stays as it is. All scans are simulated. `gallery_examples.py` says which scans of every anatomy are shown.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from few_colours import reduce_colours
from gallery_examples import ACTIONS, AUGMENTS, SLICES, Anatomy, anatomies
from numpy.typing import NDArray

from scantune.adaptation.adapt import INVERTED, adapt
from scantune.adaptation.figure import case_figure
from scantune.adaptation.guard.base import Action
from scantune.adaptation.result import Result
from scantune.benchmark.jobs.scoring import common_structures, dices
from scantune.demo import Show
from scantune.evaluation.rows import MEAN
from scantune.model.model import Model, load
from scantune.plots.files import save_figure
from scantune.prior.field_of_experts import FieldOfExperts
from scantune.scans.case import Case
from scantune.simulate import COHORTS, read_centres

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"

NAMED = 3
"""Structures that captions name, at most. Of more, they give the mean."""
LEAST_HEIGHT = 6.4
"""Inches that a picture with a curve is high, so that the curve has room beside its legend."""

TITLES: dict[Action, str] = {"adapted": "Adapted", "left alone": "Left alone", "unsolved": "Flagged"}


@dataclass(frozen=True)
class Example:
    """A scan for a bundled model.

    Args:
        picture: What its picture is called, gallery-PICTURE.png.
        scan: Name of a changed scan of the demo, or of a centre whose first test person is scanned.
        title: Heading of its section, without the decision.
        about: What is special about it.
        model: Name of the model.
    """

    picture: str
    scan: str
    title: str
    about: str
    model: str = "brain"


SCANS = (
    Example(
        "spine-inverted",
        "inverted-0",
        "an inverted contrast",
        "No scanner made this contrast: we inverted the brightness of a scan of the training site, as the demo does. "
        "What was bright is dark now. The trained network marks other tissue and misses the cord.",
        "spine",
    ),
    Example(
        "coil-1",
        "coil-1",
        "a coil that makes the back bright",
        "A surface coil receives the back of the head far more strongly than the front. This centre was made for the "
        "gallery, with a coil stronger than in `surface-coil-3T` ([protocol](../scripts/gallery.toml)).",
    ),
    Example(
        "source-3T-mprage",
        "source-3T-mprage",
        "the scanner of the training",
        "The scanner that the network was trained on, and a person whom it has not seen.",
    ),
    Example(
        "pd-3T",
        "pd-3T",
        "another order of brightness",
        "A proton-density contrast, in which grey matter is brighter than white matter.",
    ),
)

HEAD = """# Gallery

What scantune does with simulated scans, of which the truth is known. Pictures show one slice of each scan. These are
examples: they do not say how often each outcome occurs. [The paper's claims](claims.md) has the measurements.

`python scripts/gallery.py` makes the part about bundled models. It also makes the part about every anatomy, from small
networks that `scripts/small_models.py` trains on a CPU: its first lines name the commands."""

BUNDLED = """## Bundled models

These scans were chosen by hand to show several outcomes. The first is one of `scantune demo`, which shows spinal cords
of another brightness with the bundled model `spine`, and all centres with the bundled model `brain`. There are two more
bundled models: `brain-register` [registers an atlas](registration.md) and gives no verdict, and `spine-varied` is for
[real spinal cords](real.md#cords-with-the-bundled-model)."""

EVERY = """## Every anatomy of the paper

A rule chose these scans, whatever their Dice. It goes through the first test person of every centre, first with the
network trained without augmentation, then with the one trained with strong augmentation, if there is one. It takes the
first scan with each decision. So an adapted scan need not be a rescued one: compare the Dice before and after. The
networks are small and see coarse pixels, so that anyone can train them on a CPU."""

PARTS = ("bundled", "anatomies")
"""The parts of the page, in their order."""


def bundled(out: Path, device: str) -> Iterator[str]:
    """Yield the paragraphs on bundled models, whose pictures are written to a folder."""
    yield BUNDLED
    for example in SCANS:
        model = load(example.model)
        result = adapt(model, case_of(example, model), device=device)
        name = f"gallery-{example.picture}.png"
        title = f"Simulated scan, {example.model}, {example.scan}: {result.decision.action}"
        save_small(result, title, model.prior, out / "figures" / name)
        heading = f"{TITLES[result.decision.action]}: {example.title}"
        yield f"### {heading}"
        yield f"{example.about} {outcome(result)}"
        yield f"![{heading}](figures/{name})"


def case_of(example: Example, model: Model) -> Case:
    """The scan of an example."""
    show = Show.of(model)
    if example.scan in show.programme.changed:
        return show.case(example.scan, show.cohort.anatomy(), None)
    cohort = show.cohort
    if example.scan not in cohort.centres:
        cohort = replace(cohort, given=read_centres(HERE / "gallery.toml"))
    return next(cohort.cases(example.scan, "test", count=1, slices=SLICES))


def every_anatomy(folder: Path, out: Path, device: str) -> Iterator[str]:
    """Yield the paragraphs on every anatomy, whose pictures are written to a folder."""
    found = list(anatomies(folder, device))
    if not found:
        sys.exit(f"{folder} has no network such as prostate-v2-none-1.safetensors. The page stays as it is.")
    yield EVERY
    for anatomy in found:
        yield f"### {anatomy.title}"
        yield introduction(anatomy)
        for action in ACTIONS:
            picture = out / "figures" / f"gallery-{anatomy.name}-{action.replace(' ', '-')}.png"
            picture.unlink(missing_ok=True)
            if action not in anatomy.found:
                yield f"**{TITLES[action]}: none.** No scan among these ended as `{action}`."
                continue
            shown = anatomy.found[action]
            title = f"Simulated scan, {anatomy.cohort}, {shown.site}: {action}"
            save_small(shown.result, title, shown.model.prior, picture)
            trained = f"by the network trained {AUGMENTS[shown.augment]}"
            yield f"**{TITLES[action]}: {shown.site}, {trained}.** {outcome(shown.result)}"
            yield f"![{anatomy.title}, {action}](figures/{picture.name})"


def introduction(anatomy: Anatomy) -> str:
    """What was trained, and how the scans of the rule ended."""
    trained = " and one ".join(AUGMENTS[augment] for augment in anatomy.models)
    source = COHORTS[anatomy.cohort].source
    counted = ", ".join(f"{anatomy.counts[action]} {action}" for action in ACTIONS)
    return (
        f"A network was trained {trained}, at {source} of the cohort `{anatomy.cohort}`. "
        f"Of {anatomy.counts.total()} scans, {counted}."
    )


def outcome(result: Result) -> str:
    """What was decided and why, in the words of scantune, with the Dice before and after, and what it expected."""
    decision, facts = result.decision, result.facts
    before, after = (scores(result, found)[MEAN] for found in (result.source_prediction, result.prediction))
    expected = facts.get("expected_before")
    told = "" if expected is None else f"; expected without the truth: {expected:.2f} before"
    verdicts = " → ".join(dict.fromkeys(str(facts[key]) for key in ("verdict_before", "verdict") if facts.get(key)))
    parts = [f"Mean Dice {before:.2f} before, {after:.2f} after{told}."]
    parts += [f"Verdict: {verdicts}."] if verdicts else []
    parts += [INVERTED] if INVERTED in facts["remarks"] else []
    return f"Decision: `{decision.action}`. {decision.reason}\n\n{' '.join(parts)}"


def scores(result: Result, prediction: NDArray[Any]) -> dict[str, float]:
    """The Dice of every structure that the scan has, and their mean."""
    assert result.case is not None
    return dices(prediction, result.case, common_structures(result.labels, result.labels), whole=False)


def save_small(result: Result, title: str, prior: FieldOfExperts | None, path: Path) -> None:
    """Write the picture of a result with few colours."""
    captions = {}
    for heading, prediction in (("Before", result.source_prediction), ("After", result.prediction)):
        each = scores(result, prediction)
        shown = each if len(each) <= NAMED + 1 else {MEAN: each[MEAN]}
        named = {name: value for name, value in shown.items() if name != MEAN or len(shown) == 1}
        captions[heading] = "Dice " + "  ".join(f"{name} {value:.2f}" for name, value in named.items())
    floor = None if prior is None else prior.floor()
    figure = case_figure(result, title=title, captions=captions, floor=floor)
    if result.trace:
        figure.set_figheight(max(figure.get_figheight(), LEAST_HEIGHT))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(figure, path, 90)
    reduce_colours(path)


def with_part(page: str, name: str, text: str) -> str:
    """The page with a part replaced."""
    parts = dict(re.findall(r"<!-- part (\w+) -->\n\n(.*?)\n\n<!-- end -->", page, re.DOTALL)) | {name: text}
    kept = (f"<!-- part {part} -->\n\n{parts[part]}\n\n<!-- end -->" for part in PARTS if part in parts)
    return "\n\n".join([HEAD, *kept]) + "\n"


def main(models: Path | None, out: Path, device: str) -> None:
    """Write a part of the page and its pictures."""
    paragraphs = bundled(out, device) if models is None else every_anatomy(models, out, device)
    text = "\n\n".join(paragraphs)
    page = out / "gallery.md"
    old = page if page.exists() else DOCS / "gallery.md"
    page.write_text(with_part(old.read_text(encoding="utf-8"), PARTS[models is not None], text), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of networks of small_models.py")
    parser.add_argument("--out", type=Path, default=DOCS)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    main(given.models, given.out, given.device)
