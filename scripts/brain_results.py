"""Baseline, strong baseline and adaptation methods at every centre of the simulated brain cohort.

    python scripts/brain_results.py run MODELS --out results/brain.csv [--atlas atlas.npz] [--part 0/1]
    python scripts/brain_results.py table results/brain*.csv > results/brain.md

MODELS is a folder with `strong-0.safetensors`, `none-0.safetensors`, ... of the training seeds (recipe `brain`, with
and without augmentation). A run that was interrupted goes on. The subjects are the cohort's test subjects (people
seed 0); settings were chosen on other people (seed 100). Each row of the CSV is one scan, method and structure, scored
on the scan's own grid.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from verbs import Verbs

import scantune
from scantune.evaluation.metrics import dice
from scantune.simulate import COHORTS, Atlas

COHORT = COHORTS["contrasts"]
# Name in the table, training, method, guard.
METHODS = [
    ("baseline", "none", "source", True),
    ("source (strong baseline)", "strong", "source", True),
    ("entropy", "strong", "entropy", True),
    ("foe-cnn", "strong", "foe-cnn", True),
    ("foe-cnn-pca", "strong", "foe-cnn-pca", True),
    ("foe-cnn-pca, no guard", "strong", "foe-cnn-pca", False),
]
COLUMNS = [
    *("cohort", "site", "subject", "method", "seed", "structure", "dice"),
    *("energy_before", "energy_after", "decision", "steps", "seconds"),
]


def run(arguments: argparse.Namespace) -> None:
    anatomy = Atlas.load(arguments.atlas) if arguments.atlas else COHORT.anatomy()
    part, parts = map(int, arguments.part.split("/"))
    jobs = [(s, centre) for s in arguments.seeds for centre in COHORT.centres]
    done = _done(Path(arguments.out))
    with Path(arguments.out).open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        if not done:
            rows.writeheader()
        for seed, centre in jobs[part::parts]:
            models = {a: scantune.load(Path(arguments.models) / f"{a}-{seed}.safetensors") for a in ("strong", "none")}
            for case in COHORT.cases(
                centre, "test", anatomy=anatomy, count=arguments.subjects, device=arguments.device
            ):
                for name, training, method, guard in METHODS:
                    if (str(seed), case.subject, name) in done:
                        continue
                    model = models[training]
                    result = scantune.adapt(model, case, method=method, guard=guard, device=arguments.device)
                    prediction = result.prediction
                    shared = {
                        "cohort": COHORT.name,
                        "site": centre,
                        "subject": case.subject,
                        "method": name,
                        "seed": seed,
                        "energy_before": f"{result.energy_before:.5f}",
                        "energy_after": f"{result.energy_after:.5f}",
                        "decision": result.decision.action,
                        "steps": result.facts["steps"],
                        "seconds": f"{result.seconds:.2f}",
                    }
                    for structure, value in COHORT.labels.items():
                        score = dice(prediction, case.reference, value)
                        rows.writerow({**shared, "structure": structure, "dice": f"{score:.4f}"})
            file.flush()
            print(seed, centre, flush=True)


def _done(path: Path) -> set[tuple[str, str, str]]:
    """What an earlier, interrupted run has finished."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["seed"], row["subject"], row["method"]) for row in rows if row["structure"] == [*COHORT.labels][-1]}


def table(arguments: argparse.Namespace) -> None:
    scans: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    decisions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in arguments.files:
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                scans[row["method"], row["site"], row["seed"], row["subject"]].append(float(row["dice"]))
                decisions[row["method"], row["site"]].append(row["decision"])
    mean = {key: fmean(values) for key, values in scans.items()}
    sites = [site for site in COHORT.centres if any(key[1] == site for key in mean)]
    print("| |", " | ".join(sites), "|")
    print("|---" * (len(sites) + 1) + "|")
    for name, *_ in METHODS:
        cells = [fmean(v for (m, s, _, _), v in mean.items() if (m, s) == (name, site)) for site in sites]
        print(f"| {name} |", " | ".join(f"{cell:.3f}" for cell in cells), "|")
    print("\nChange of single scans against the strong baseline: mean, worst and best; kept of all.\n")
    print("| |", " | ".join(sites), "|")
    print("|---" * (len(sites) + 1) + "|")
    for name, *_ in METHODS[2:]:
        cells = []
        for site in sites:
            change = [v - mean[METHODS[1][0], s, k, p] for (m, s, k, p), v in mean.items() if (m, s) == (name, site)]
            kept = decisions[name, site]
            share = f"{kept.count('kept') // 3}/{len(kept) // 3}"
            cells.append(f"{fmean(change):+.3f} ({min(change):+.3f}, {max(change):+.3f}); {share}")
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("models")
    one.add_argument("--out", required=True)
    one.add_argument("--atlas")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--subjects", type=int, default=8)
    one.add_argument("--part", default="0/1")
    one.add_argument("--device", default="cpu")
    verbs.add(table).add_argument("files", nargs="+")
    verbs.call()
