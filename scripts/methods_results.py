"""What every method does to simulated scans of centres that the network was not trained at, as it falls.

    python scripts/methods_results.py run MODEL --cohort prostate --out rows.csv [--supervised FOLDER] [--count 3]
    python scripts/methods_results.py table rows*.csv > results/methods.md

MODEL is a strong baseline of `simulated_shift.py` after `scantune fit` with `--method foe`, `dae` and `ae`. FOLDER has
CENTRE.safetensors, the model fine-tuned on labelled scans of that centre (`scantune train RECIPE --start MODEL`).
Guards are off, so that the methods themselves are seen; the last row is the default, with its guard.
"""

import argparse
import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from verbs import Verbs

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.case import Case
from scantune.simulate import COHORTS, Atlas

RUNS: dict[str, dict[str, Any]] = {
    "source": {"method": "source"},
    "batchnorm": {"method": "batchnorm"},
    "entropy": {"method": "entropy"},
    "dae": {"method": "dae"},
    "ae": {"method": "ae"},
    "ae, identity": {"method": "ae", "options": {"start": "identity"}},
    "foe-cnn": {"method": "foe-cnn"},
    "foe-cnn-pca": {"method": "foe-cnn-pca"},
    "foe-cnn-pca, guard": {"method": "foe-cnn-pca", "guard": True},
}
SUPERVISED = "supervised"
COLUMNS = (
    *("cohort", "site", "subject", "method", "seed", "structure", "dice"),
    *("objective_before", "objective_after", "steps", "seconds", "decision"),
)


def run(arguments: argparse.Namespace) -> None:
    cohort, model = COHORTS[arguments.cohort], scantune.load(arguments.model)
    anatomy = cohort.made_from(Atlas.load(arguments.atlas)) if arguments.atlas else cohort.anatomy()
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for centre in arguments.centres or cohort.centres:
            tuned = Path(arguments.supervised or ".") / f"{centre}.safetensors"
            cases = cohort.cases(centre, "test", anatomy=anatomy, count=arguments.count, device=arguments.device)
            for case in cases:
                for name, settings in RUNS.items():
                    result = scantune.adapt(model, case, device=arguments.device, **{"guard": False, **settings})
                    rows.writerows(scored(cohort.name, case, name, result))
                if tuned.exists():
                    result = scantune.adapt(scantune.load(tuned), case, method="source", device=arguments.device)
                    rows.writerows(scored(cohort.name, case, SUPERVISED, result))
                file.flush()
                print(case.name, flush=True)


def scored(cohort: str, case: Case, method: str, result: scantune.Result) -> list[dict[str, Any]]:
    """Rows of one run, a structure each; the prostate's zones count as one gland."""
    assert case.reference is not None
    trace = result.trace
    common = {
        "cohort": cohort,
        "site": case.site,
        "subject": case.subject,
        "method": method,
        "seed": 0,
        "objective_before": f"{trace[0]['objective']:.6g}" if trace else "",
        "objective_after": f"{min(row['objective'] for row in trace):.6g}" if trace else "",
        "steps": result.facts["steps"],
        "seconds": f"{result.seconds:.2f}",
        "decision": result.decision.action,
    }
    predicted, reference, structures = result.prediction, case.reference, dict(COHORTS[cohort].labels)
    if cohort == "prostate":
        predicted, reference, structures = np.minimum(predicted, 1), np.minimum(reference, 1), {"gland": 1}
    return [
        {**common, "structure": name, "dice": f"{dice(predicted, reference, value):.4f}"}
        for name, value in structures.items()
    ]


def table(arguments: argparse.Namespace) -> None:
    rows = [row for path in arguments.files for row in csv.DictReader(Path(path).read_text().splitlines())]
    people: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        people[row["cohort"], row["site"], row["method"]][row["subject"]].append(float(row["dice"]))
    mean = {key: fmean(fmean(v) for v in scores.values()) for key, scores in people.items()}
    methods = [name for name in (*RUNS, SUPERVISED) if any(key[2] == name for key in mean)]
    for cohort in dict.fromkeys(key[0] for key in mean):
        sites = list(dict.fromkeys(key[1] for key in mean if key[0] == cohort))
        print(f"\n| {cohort} | {' | '.join(sites)} |\n|{'---|' * (1 + len(sites))}")
        for method in methods:
            cells = [f"{mean.get((cohort, site, method), math.nan):.3f}".replace("nan", "") for site in sites]
            print(f"| {method} | {' | '.join(cells)} |")
    print("\n| method | scans | own objective falls | Dice change, mean (worst, best) | seconds a scan |")
    print("|---|---|---|---|---|")
    for method in methods[1:]:
        _row(method, rows, people)
    print("\nErrors of the autoencoders (input and output) on scans that are not adapted, mean by centre:\n")
    print("; ".join(f"{cohort} {site} {error:.4f}" for (cohort, site), error in untouched(rows).items()) + ".")


def untouched(rows: list[dict[str, str]]) -> dict[tuple[str, str], float]:
    """Where the method `ae` starts from the identity, its first objective is the source's."""
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["method"] == "ae, identity":
            errors[row["cohort"], row["site"]].append(float(row["objective_before"]))
    return {key: fmean(values) for key, values in errors.items()}


def _row(method: str, rows: list[dict[str, str]], people: dict[tuple[str, str, str], dict[str, list[float]]]) -> None:
    """One line about all scans of a method."""
    # ED and ES of a heart are two scans of one subject, told apart by how their runs went.
    runs = {
        (row["cohort"], row["subject"], row["seconds"], row["objective_after"]): row
        for row in rows
        if row["method"] == method
    }
    moved = [row for row in runs.values() if row["objective_before"]]
    fell = sum(float(row["objective_after"]) < float(row["objective_before"]) for row in moved)
    changes = [
        fmean(scores[subject]) - fmean(people[cohort, site, "source"][subject])
        for (cohort, site, name), scores in people.items()
        if name == method
        for subject in scores
    ]
    seconds = fmean(float(row["seconds"]) for row in runs.values())
    share = f"{fell} of {len(moved)}" if moved else ""
    spread = f"{fmean(changes):+.3f} ({min(changes):+.3f}, {max(changes):+.3f})"
    print(f"| {method} | {len(runs)} | {share} | {spread} | {seconds:.1f} |")


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("model")
    one.add_argument("--cohort", required=True, choices=list(COHORTS))
    one.add_argument("--centres", nargs="+")
    one.add_argument("--count", type=int, default=3)
    one.add_argument("--supervised")
    one.add_argument("--atlas")
    one.add_argument("--out", required=True)
    one.add_argument("--device", default="auto")
    verbs.add(table).add_argument("files", nargs="+")
    verbs.call()
