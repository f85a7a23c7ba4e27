"""Examples for the gallery by networks of `scripts/small_models.py`: for each anatomy, a scan with every decision.

A rule chooses them without a look at any score. It goes through the first test person of every centre, in the order of
the centres, first with the network trained without augmentation, then with the one trained with strong augmentation. Of
each decision it takes the first scan. If there are networks of several runs, that of the last run counts.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scantune.adaptation.adapt import adapt
from scantune.adaptation.guard.base import Action
from scantune.adaptation.result import Result
from scantune.model.model import Model, load
from scantune.simulate import COHORTS

AUGMENTS = {"none": "without augmentation", "strong": "with strong augmentation"}
"""How networks were trained, by the word in their names, in the order of the rule."""
ANATOMIES = {
    "prostate-v2": "Prostate",
    "cardiac-v2": "Heart",
    "spine-v2": "Spinal cord",
    "brain-v2": "Brain",
    "wmh-v2": "White matter lesions",
}
"""Titles of the cohorts, in the order of the page."""
ACTIONS: tuple[Action, ...] = ("adapted", "left alone", "unsolved")
SLICES = 8


@dataclass(frozen=True)
class Found:
    """A scan that the rule chose.

    Args:
        model: What it was adapted with.
        augment: How that was trained, a word of `AUGMENTS`.
        result: The result.
    """

    model: Model
    augment: str
    result: Result

    @property
    def site(self) -> str:
        """The centre of the scan."""
        assert self.result.case is not None
        return self.result.case.site


@dataclass(frozen=True)
class Anatomy:
    """The examples of an anatomy.

    Args:
        cohort: Name of its cohort.
        models: Its networks by their augmentation.
        counts: How many of the scans that the rule looks at ended with each decision.
        found: The chosen scan of every decision that occurs.
    """

    cohort: str
    models: Mapping[str, Model]
    counts: Counter[Action]
    found: Mapping[Action, Found]

    @property
    def name(self) -> str:
        """The cohort without its version."""
        return self.cohort.rpartition("-")[0]

    @property
    def title(self) -> str:
        """The heading of the anatomy."""
        return ANATOMIES[self.cohort]


def anatomies(folder: Path, device: str) -> Iterator[Anatomy]:
    """Yield the examples of every anatomy.

    Args:
        folder: Of networks called COHORT-AUGMENT-RUN.
        device: Where scans are adapted.
    """
    for cohort in ANATOMIES:
        if models := networks(folder, cohort):
            yield chosen(cohort, models, device)
        else:
            print(f"{cohort}: no network", file=sys.stderr)


def networks(folder: Path, cohort: str) -> dict[str, Model]:
    """The networks of the last run of a cohort by their augmentation, in the order of the rule."""
    last: dict[str, int] = {}
    for path in folder.glob(f"{cohort}-*.safetensors"):
        if name := re.fullmatch(rf"{cohort}-({'|'.join(AUGMENTS)})-(\d+)", path.stem):
            last[name[1]] = max(int(name[2]), last.get(name[1], 0))
    return {
        augment: load(folder / f"{cohort}-{augment}-{last[augment]}.safetensors")
        for augment in AUGMENTS
        if augment in last
    }


def chosen(cohort: str, models: Mapping[str, Model], device: str) -> Anatomy:
    """The examples among the scans that the rule looks at."""
    counts: Counter[Action] = Counter()
    found: dict[Action, Found] = {}
    for augment, model in models.items():
        for centre in COHORTS[cohort].centres:
            case = next(COHORTS[cohort].cases(centre, "test", count=1, slices=SLICES))
            result = adapt(model, case, device=device)
            action = result.decision.action
            print(f"{model.name} {centre}: {action}", file=sys.stderr, flush=True)
            counts[action] += 1
            found.setdefault(action, Found(model, augment, result))
    return Anatomy(cohort, models, counts, found)
