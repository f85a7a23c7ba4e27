"""Measure how much Dice small networks lose at the centres of several versions of the simulated cohorts.

    python scripts/cohort_versions.py run prostate-v2 cardiac-v2 brain-v2 wmh-v2 --models MODELS --out rows.csv
    python scripts/cohort_versions.py run spine spine-v2 --augment none strong --real DATA/gm-challenge --out rows.csv
    python scripts/cohort_versions.py table rows.csv > results/cohort-versions.md

Each version trains a network at its training centre, of few channels and on coarse pixels (`COARSE`), in minutes on one
core of a CPU. It is scored at every centre, on people that no result counts (split `validation`, numbers from 21), or
with --split test --first 0 on others. With --real it is scored on scans of the grey matter challenge too, cut around
the cord: of the people that were looked at (`cord_measures.py`), or with --all-real of all. With --models, networks are
kept and found again. The table puts the loss beside that of the paper's baseline on real scans.
"""

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from cord_measures import DEVELOPMENT
from paper_figures import CENTRES, PAPER, PAPER_AT_HOME
from readme_tables import SCORES
from transfer_results import LOOKED_AT, spine

import scantune
from scantune.config.recipe import read_recipe
from scantune.evaluation.metrics import dice
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.simulate import COHORTS
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model

COLUMNS = ("cohort", "augment", "seed", "data", "site", "subject", "scan", "structure", "dice")
SIMULATED, OTHERS, SEEN, NEW = "simulated", "simulated, new people", "seen", "new"
"""What rows call simulated people that settings were chosen by, other ones, real ones that were looked at, others."""
RECIPES = {"brain": "hcp"}
"""Recipes that are not called as their cohort."""
FIRST = 20
"""Number of the first person of a centre that counts in no result."""
COARSE = {
    "prostate": (64, 2.5, 8, 3000),
    "cardiac": (72, 3.0, 11, 3000),
    "spine": (80, 0.5, 12, 1200),
    "brain": (80, 2.2, 8, 600),
    "wmh": (96, 2.0, 8, 500),
}
"""Pixels along an edge, their size in mm, slices per person and iterations."""


def paper_drops() -> dict[tuple[str, str], float]:
    """The Dice that the paper's baseline loses, by cohort and centre."""
    return {
        (cohort, site): PAPER_AT_HOME[cohort] - dice
        for (cohort, site), dice in zip(CENTRES, PAPER["baseline"], strict=True)
    }


def anatomy_of(cohort: str) -> str:
    """The name of a cohort without its version."""
    return cohort.removesuffix("-v2")


def trained(cohort: str, augment: str, arguments: argparse.Namespace) -> Model:
    """A small network of the cohort's training centre."""
    name = anatomy_of(cohort)
    pixels, spacing, slices, iterations = COARSE[name]
    iterations = arguments.iterations or iterations
    kept = Path(arguments.models) / f"{cohort}-{augment}-{iterations}-{arguments.seed}.safetensors"
    if arguments.models and kept.exists():
        return scantune.load(kept)
    recipe = read_recipe(RECIPES.get(name, name))
    train = replace(
        recipe.train,
        **{"iterations": iterations, "batch": 8, "augment": augment, "validate_every": max(iterations // 3, 1)},
        checkpoint_every=iterations,
        device="cpu",
        precision="float32",
        seed=arguments.seed,
    )
    coarse = {**recipe.preprocessing, "size": [pixels, pixels], "spacing": spacing}
    network = {**recipe.network, "width": arguments.width}
    data = {"cohort": cohort, "slices": slices, "validation": 2, "cache": arguments.cache}
    if arguments.people:
        data["train"] = arguments.people
    model = train_model(TrainingPlan.read(replace(recipe, train=train, preprocessing=coarse, network=network), data))
    if arguments.models:
        kept.parent.mkdir(parents=True, exist_ok=True)
        model.save(kept)
    return model


def scans(cohort: str, arguments: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    """Yield the simulated and the real scans, with what kind of data they are."""
    known = COHORTS[cohort]
    people = {"start": arguments.first, "count": arguments.first + arguments.count}
    for centre in known.centres:
        kept = {"slices": arguments.slices, "cache": arguments.cache or None}
        for case in known.cases(centre, arguments.split, **people, **kept):
            yield OTHERS if arguments.split == "test" else SIMULATED, case
    if arguments.real and anatomy_of(cohort) == "spine":
        for case in spine(Path(arguments.real)):
            if case.subject in DEVELOPMENT or arguments.all_real:
                yield SEEN if case.subject.partition("Ses")[0] in LOOKED_AT else NEW, case


def scores(cohort: str, case: Case, prediction: np.ndarray, labels: dict[str, int]) -> Iterator[tuple[str, float]]:
    """Dice of each structure, of all of them together and their mean."""
    assert case.reference is not None
    found = {name: dice(prediction, case.reference, value) for name, value in labels.items()}
    yield from found.items()
    known = [value for value in found.values() if not np.isnan(value)]
    yield "mean", fmean(known) if known else float("nan")
    if SCORES[anatomy_of(cohort)] == "whole":
        yield "whole", dice(np.minimum(prediction, 1), np.minimum(case.reference, 1), 1)


def run(arguments: argparse.Namespace) -> None:
    """Train and score every version."""
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for cohort in arguments.cohorts:
            for augment in arguments.augment:
                start = time.perf_counter()
                model = trained(cohort, augment, arguments)
                found = model.provenance["validation_dice"]
                print(cohort, augment, found, f"{time.perf_counter() - start:.0f} s", flush=True)
                for data, case in scans(cohort, arguments):
                    prediction = scantune.adapt(model, case, method="source", device="cpu").prediction
                    row = {
                        "cohort": cohort,
                        "augment": augment,
                        "seed": arguments.seed,
                        "data": data,
                        "site": case.site,
                    }
                    for name, score in scores(cohort, case, prediction, model.labels):
                        told = {"subject": case.subject, "scan": case.name, "structure": name, "dice": f"{score:.4f}"}
                        rows.writerow({**row, **told})
                file.flush()
    table(argparse.Namespace(files=[arguments.out]))


def table(arguments: argparse.Namespace) -> None:
    """Print what each centre loses, beside the paper's."""
    known: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
    for path in arguments.files:
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                counts = SCORES[anatomy_of(row["cohort"])] if row["data"] in (SIMULATED, OTHERS) else "mean"
                if row["structure"] == counts and row["dice"] != "nan":
                    for site in (row["site"], *(("all",) if row["data"] in (SEEN, NEW) else ())):
                        which = (row["cohort"], row["augment"], row["seed"], row["data"], site)
                        known[which].append(float(row["dice"]))
    paper = paper_drops()
    print("| cohort | augment | seed | data | centre | scans | Dice | lowest | drop | paper's |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (cohort, augment, seed, data, site), found in known.items():
        home = known.get((cohort, augment, seed, data, COHORTS[cohort].source))
        theirs = None if home is None else paper.get((anatomy_of(cohort), site))
        drop = "" if home is None else f"{fmean(home) - fmean(found):.3f}"
        print(
            f"| {cohort} | {augment} | {seed} | {data} | {site} | {len(found)} | {fmean(found):.3f} | {min(found):.3f} "
            f"| {drop} | {'' if theirs is None else f'{theirs:.2f}'} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    known = [name for name in COHORTS if anatomy_of(name) in COARSE]
    one.add_argument("cohorts", nargs="+", choices=known)
    one.add_argument("--real", default="", help="the data set gm-challenge, for cords")
    one.add_argument("--all-real", action="store_true", help="score the people that were not looked at too")
    one.add_argument("--augment", nargs="+", default=["none"], choices=["none", "strong"])
    one.add_argument("--iterations", type=int, default=0, help="by default those of COARSE")
    one.add_argument("--width", type=int, default=8)
    one.add_argument("--slices", type=int, default=8, help="of scans to score")
    one.add_argument("--split", default="validation", choices=["train", "validation", "test"])
    one.add_argument("--first", type=int, default=FIRST, help="person of each centre to begin with, from 0")
    one.add_argument("--people", type=int, default=0, help="to train on; by default the centre's own number")
    one.add_argument("--count", type=int, default=4, help="people per centre to score")
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--models", default="", help="folder in which networks are kept and looked for")
    one.add_argument("--cache", default="", help="folder in which simulated scans are kept")
    one.add_argument("--out", required=True)
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(call=table)
    chosen = parser.parse_args()
    chosen.call(chosen)
