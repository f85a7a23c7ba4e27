"""How much Dice a network loses at the simulated centres it was not trained at, with and without augmentation.

    scantune train prostate --augment none --out MODELS/prostate-none-0.safetensors      (and so on: see below)
    python scripts/simulated_shift.py run MODELS --out results/shift.csv [--device cuda] [--cohorts prostate wmh]
    python scripts/simulated_shift.py table results/shift.csv > results/shift.md

MODELS holds RECIPE-AUGMENT-SEED.safetensors, AUGMENT `none` (baseline) or `strong` (strong baseline). Every network is
scored on the test subjects of all centres of its cohort and, to see what is new about new subjects, on as many of those
it was trained on. Scores are taken on the scans' own grids; the prostate's zones count as one gland, as in the paper.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.case import Case
from scantune.simulate import COHORTS, Atlas, Cohort

RECIPES = {"prostate": "prostate", "cardiac": "cardiac", "spine": "spine", "brain": "hcp", "wmh": "wmh"}
NAMES = {"none": "baseline", "strong": "strong baseline"}
WHOLE = {"prostate": "gland"}
COLUMNS = ("cohort", "site", "subject", "method", "seed", "structure", "dice", "split")


def run(arguments: argparse.Namespace) -> None:
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for path in sorted(Path(arguments.models).glob("*.safetensors")):
            recipe, augment, seed = path.stem.split("-")
            cohort = next((COHORTS[name] for name in arguments.cohorts if RECIPES[name] == recipe), None)
            if cohort is None:
                continue
            model = scantune.load(path)
            for case in cases(cohort, arguments):
                prediction = scantune.adapt(model, case, method="source", device=arguments.device).prediction
                row = {"cohort": cohort.name, "site": case.site, "subject": case.subject, "split": case.split}
                for structure, score in scores(cohort, case, prediction):
                    rows.writerow(
                        {**row, "method": NAMES[augment], "seed": seed, "structure": structure, "dice": f"{score:.4f}"}
                    )
            file.flush()
            print(path.stem, flush=True)


def cases(cohort: Cohort, arguments: argparse.Namespace) -> Iterator[Case]:
    """Test cases of all centres, and as many training cases of the source."""
    path = Path(arguments.atlases or "") / f"{cohort.name}.npz"
    anatomy = cohort.made_from(Atlas.load(path)) if arguments.atlases and path.exists() else cohort.anatomy()
    for centre in cohort.centres:
        count = cohort.centres[centre].splits["test"] if arguments.count is None else arguments.count
        for split in ("test", "train") if centre == cohort.source else ("test",):
            yield from cohort.cases(centre, split, anatomy=anatomy, count=count, device=arguments.device)


def scores(cohort: Cohort, case: Case, prediction: Any) -> Iterator[tuple[str, float]]:
    """Dice of each structure, or of all of them together."""
    assert case.reference is not None
    if cohort.name in WHOLE:
        yield WHOLE[cohort.name], dice(np.minimum(prediction, 1), np.minimum(case.reference, 1), 1)
        return
    for structure, value in cohort.labels.items():
        yield structure, dice(prediction, case.reference, value)


def table(arguments: argparse.Namespace) -> None:
    means = mean_dice([Path(path) for path in arguments.files])
    print("| cohort | centre | baseline | loss | strong baseline | loss |\n|---|---|---|---|---|---|")
    losses: dict[str, dict[tuple[str, str], float]] = {name: {} for name in NAMES.values()}
    for cohort in dict.fromkeys(key[0] for key in means):
        source = COHORTS[cohort].source
        rows = [(source, "train"), *((centre, "test") for centre in COHORTS[cohort].centres)]
        for centre, split in rows:
            cells = []
            for name in NAMES.values():
                score = means[cohort, centre, split, name]
                against = "train" if centre == source else "test"
                loss = means[cohort, source, against, name] - score
                losses[name][cohort, centre if split == "test" else "seen in training"] = loss
                cells.append(f"{score:.3f} | {'' if split == 'train' else f'{loss:+.3f}'}")
            print(
                f"| {cohort} | {centre if split == 'test' else f'{centre}, seen in training'} | {' | '.join(cells)} |"
            )
    sources = {(cohort, COHORTS[cohort].source) for cohort in {key[0] for key in means}}
    shifted = [key for key in losses["baseline"] if key not in sources and key[1] != "seen in training"]
    plain, strong = (losses[name] for name in NAMES.values())
    much = sum(plain[key] >= 0.15 for key in shifted)
    less, still = sum(strong[key] < plain[key] for key in shifted), sum(strong[key] > 0.03 for key in shifted)
    print(
        f"\nOf {len(shifted)} test centres the baseline loses 0.15 or more at {much}; on new subjects of the training "
        f"centres at most {max(plain[key] for key in sources):.3f}. With the strong augmentation the loss is "
        f"smaller at {less} and still above 0.03 at {still}."
    )


def mean_dice(paths: list[Path]) -> dict[tuple[str, str, str, str], float]:
    """Mean over structures, then scans of a person, then people, by cohort, centre, split and network."""
    people: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row["dice"] != "nan":
                    key = (row["cohort"], row["site"], row["split"], row["method"])
                    people[key][row["subject"]].append(float(row["dice"]))
    return {key: fmean(fmean(values) for values in person.values()) for key, person in people.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("models")
    one.add_argument("--out", required=True)
    one.add_argument("--cohorts", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    one.add_argument("--count", type=int, help="people per centre; by default the cohort's")
    one.add_argument("--atlases", help="folder with COHORT.npz, for machines without nilearn")
    one.add_argument("--device", default="auto")
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(call=table)
    chosen = parser.parse_args()
    chosen.call(chosen)
