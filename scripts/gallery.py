"""The gallery of the documentation: of the model `brain` a scan that was rescued, one left alone and one flagged.

python scripts/gallery.py              writes docs/gallery.md and docs/figures/gallery-*.png
python scripts/gallery.py --device cuda

All scans are simulated: the first test person of each centre of `SCANS`.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from scantune.adaptation.adapt import adapt
from scantune.adaptation.figure import case_figure
from scantune.adaptation.result import Result
from scantune.evaluation.metrics import dice
from scantune.model.model import Model, load
from scantune.plots.files import save_figure
from scantune.simulate import COHORTS, read_centres

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"

MODEL, COHORT, SLICES = "brain", "contrasts", 8

WORDS = {
    "adapted": "The prediction of the trained network is not reliable here. The adapted one replaces it.",
    "left alone": "The prediction looks as reliable as at the training site, so nothing was changed.",
    "unsolved": "The network fails on this scan and adaptation does not help. scantune says so, and the "
    "prediction of the trained network stands.",
}
"""What a decision means."""


@dataclass(frozen=True)
class Example:
    """A centre of the gallery.

    Args:
        centre: Its name.
        title: Heading of its section.
        about: What is special about its scanner.
    """

    centre: str
    title: str
    about: str


SCANS = (
    Example(
        "coil-1",
        "Rescued: a coil that makes the back bright",
        "A surface coil receives the back of the head far more strongly than the front. This centre was made for the "
        "gallery, with a coil stronger than in `surface-coil-3T` ([protocol](../scripts/gallery.toml)).",
    ),
    Example(
        "source-3T-mprage",
        "Left alone: the scanner of the training",
        "The scanner that the network was trained at, with a person whom it has not seen.",
    ),
    Example(
        "pd-3T",
        "Flagged: another order of brightness",
        "A proton-density contrast, in which grey matter is brighter than white matter.",
    ),
)

HEAD = f"""# Gallery

What scantune does with its bundled model `{MODEL}`, on simulated scans of which the truth is known. These are chosen
examples: they do not say how often each outcome occurs ([results](claims.md)). `scantune demo` shows all centres,
and spinal cords of another brightness with the bundled model `spine`.
The third bundled model, `brain-register`, [registers an atlas](registration.md), where no verdict is given.

`python scripts/gallery.py` makes this page."""


def adapted(example: Example, model: Model, device: str) -> Result:
    """The result for the first test person of a centre."""
    cohort = COHORTS[COHORT]
    if example.centre not in cohort.centres:
        cohort = replace(cohort, given=read_centres(HERE / "gallery.toml"))
    (case,) = cohort.cases(example.centre, "test", anatomy=cohort.anatomy(), count=1, slices=SLICES)
    return adapt(model, case, device=device)


def section(example: Example, model: Model, device: str) -> str:
    """The part of a centre, whose picture is written beside the page."""
    result = adapted(example, model, device)
    case = result.case
    assert case is not None and case.reference is not None
    before, after = (
        {name: dice(found, case.reference, value) for name, value in model.labels.items() if value}
        for found in (result.source_prediction, result.prediction)
    )
    captions = {
        heading: "Dice " + "  ".join(f"{name} {value:.2f}" for name, value in scores.items())
        for heading, scores in (("Before", before), ("After", after))
    }
    prior = model.prior
    figure = case_figure(
        result,
        title=f"Simulated scan, {example.centre}: {result.decision.action}",
        captions=captions,
        floor=None if prior is None else prior.floor(),
    )
    name = f"gallery-{example.centre}.png"
    save_figure(figure, DOCS / "figures" / name, 90)
    facts = result.facts
    verdicts = " → ".join(dict.fromkeys((facts["verdict_before"], facts["verdict"])))
    scores = f"{fmean(before.values()):.2f} before, {fmean(after.values()):.2f} after"
    return "\n\n".join(
        [
            f"## {example.title}",
            f"{example.about} Decision: `{result.decision.action}`. {WORDS[result.decision.action]}",
            f"Mean Dice {scores}; expected without the truth: {facts['expected_before']:.2f} before. "
            f"Verdict: {verdicts}.",
            f"![{example.title}](figures/{name})",
        ]
    )


def main(device: str) -> None:
    """Write the page and its pictures."""
    model = load(MODEL)
    parts = [section(example, model, device) for example in SCANS]
    (DOCS / "gallery.md").write_text("\n\n".join([HEAD, *parts]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    main(parser.parse_args().device)
