"""Compare versions of the simulated spine cohort by small networks that are not adapted: shifts, and real scans.

    python scripts/spine_versions.py run --cohorts spine spine-v2 --real DATA/gm-challenge --out rows.csv
    python scripts/spine_versions.py table rows.csv > results/spine-versions.md

Each version trains two networks at its training centre, without and with augmentation, at half resolution. Both are
scored on test people of every simulated centre and on the real scans, cut around the cord. Three of the real people
were looked at while the second version was made (`cord_measures.py`), the others only here.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from cord_measures import DEVELOPMENT
from small_models import SMALL
from transfer_results import spine

import scantune
from scantune.config.recipe import read_recipe
from scantune.evaluation.metrics import dice
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.simulate import COHORTS
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model

COLUMNS = ("cohort", "augment", "data", "site", "subject", "structure", "dice")
SEEN = "seen"
"""How rows call real people who were looked at."""


def trained(cohort: str, augment: str, arguments: argparse.Namespace) -> Model:
    recipe = read_recipe("spine")
    every = max(arguments.iterations // 5, 1)
    train = replace(
        recipe.train,
        **{"iterations": arguments.iterations, "batch": 8, "augment": augment, "validate_every": every},
        checkpoint_every=every,
        device="cpu",
        precision="float32",
    )
    small = {**recipe.preprocessing, **SMALL["spine"]}
    network = {**recipe.network, "width": arguments.width}
    data = {"cohort": cohort, "slices": 6, "train": 8, "cache": arguments.cache}
    plan = TrainingPlan.read(replace(recipe, train=train, preprocessing=small, network=network), data)
    return train_model(plan)


def scans(cohort: str, arguments: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    """Yield the simulated and the real scans, with what kind of data they are."""
    known = COHORTS[cohort]
    for centre in known.centres:
        for case in known.cases(centre, "test", count=arguments.count, slices=6, cache=arguments.cache or None):
            yield "simulated", case
    for case in spine(Path(arguments.real)):
        yield SEEN if case.subject in DEVELOPMENT else "new", case


def run(arguments: argparse.Namespace) -> None:
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for cohort in arguments.cohorts:
            for augment in arguments.augment:
                model = trained(cohort, augment, arguments)
                print(cohort, augment, model.provenance["validation_dice"], flush=True)
                for data, case in scans(cohort, arguments):
                    result = scantune.adapt(model, case, method="source", device="cpu")
                    for name, value in model.labels.items():
                        score = f"{dice(result.prediction, case.reference, value):.4f}"
                        common = {"cohort": cohort, "augment": augment, "data": data, "site": case.site}
                        rows.writerow({**common, "subject": case.subject, "structure": name, "dice": score})
                file.flush()


def table(arguments: argparse.Namespace) -> None:
    with Path(arguments.file).open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        column = row["site"] if row["data"] == "simulated" else f"real, {row['data']}"
        scores[row["cohort"], row["augment"]][f"{column}: {row['structure']}"].append(float(row["dice"]))
    columns = list(dict.fromkeys(name for each in scores.values() for name in each))
    print(f"| cohort | augment | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
    for (cohort, augment), each in scores.items():
        cells = [f"{fmean(each[name]):.3f}" if name in each else "" for name in columns]
        print(f"| {cohort} | {augment} | {' | '.join(cells)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("--cohorts", nargs="+", default=["spine", "spine-v2"])
    one.add_argument("--real", required=True, help="the data set gm-challenge")
    one.add_argument("--augment", nargs="+", default=["none", "strong"], choices=["none", "strong"])
    one.add_argument("--iterations", type=int, default=500)
    one.add_argument("--width", type=int, default=8)
    one.add_argument("--count", type=int, default=4)
    one.add_argument("--cache", default="")
    one.add_argument("--out", required=True)
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("file")
    two.set_defaults(call=table)
    chosen = parser.parse_args()
    chosen.call(chosen)
