"""Compare presets, and the default, on the same scans: the objective, and what becomes of Dice.

    python scripts/small_models.py MODELS --version v2 --coarse --seed 1 --recipes prostate spine
    python scripts/small_models.py MODELS --version v2 --coarse --seed 1 --recipes cardiac wmh hcp --augment none
    python scripts/fast_and_paper.py run MODELS/prostate-v2-strong-1.safetensors --cohort prostate-v2 --out FILE
    python scripts/fast_and_paper.py table results/fast-and-paper.csv > results/fast-and-paper.md

The committed rows are of --count 4, 3, 5, 7 and 7 for prostate, heart, cord, brain and lesions, with --slices 5
(heart 4), one file after the other.

Method foe-cnn-pca; without a guard, but for `default`; 1000 epochs of `paper`. The energy in the rows is that of the
kept step, of the whole volume for every preset. Scans are simulated test people of every centre but the training one.
An interrupted run goes on when the command is given again.
"""

import argparse
import csv
import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import scantune
from scantune.benchmark.jobs.scoring import common_structures, scores
from scantune.model.model import Model
from scantune.scans.case import Case
from scantune.simulate import COHORTS, Cohort

PRESETS = ("source", "fast", "default", "converged", "paper")
COLUMNS = ("cohort", "site", "subject", "preset", "seed", "structure", "dice", "energy", "seconds")
WORSE = 0.01
"""Loss of Dice from which a scan counts as worse."""


def adapted(model: Model, case: Case, preset: str) -> scantune.Result:
    """Adapt by a preset without the guard; `source` adapts nothing, and `default` has the guard."""
    if preset == "default":
        return scantune.adapt(model, case, device="cpu", seed=0)
    how = {"method": "source"} if preset == "source" else {"method": "foe-cnn-pca", "preset": preset}
    return scantune.adapt(model, case, guard=False, device="cpu", seed=0, **how)


def run(arguments: argparse.Namespace) -> None:
    model, cohort = scantune.load(arguments.model), COHORTS[arguments.cohort]
    out = Path(arguments.out)
    new = not out.exists()
    with out.open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            rows.writeheader()
            file.flush()
        done = {(row["subject"], row["preset"]) for row in _read(out)}
        for case in _scans(cohort, arguments.count, arguments.slices):
            for preset in PRESETS:
                if (case.name, preset) not in done:
                    rows.writerows(_rows(model, cohort, case, preset))
                    file.flush()
                    print(case.name, preset, flush=True)


def _scans(cohort: Cohort, count: int, slices: int) -> Iterator[Case]:
    """Yield the scans of test people of every centre but the training one: one person of each, then the next."""
    for number, centre in itertools.product(range(count), list(cohort.centres)[1:]):
        yield from cohort.cases(centre, "test", start=number, count=number + 1, slices=slices)


def _rows(model: Model, cohort: Cohort, case: Case, preset: str) -> Iterator[dict[str, object]]:
    structures = common_structures(model.labels, dict(cohort.labels))
    result = adapted(model, case, preset)
    about = {"cohort": cohort.name, "site": case.site, "subject": case.name, "preset": preset, "seed": 0}
    numbers = {"energy": f"{result.energy_after:.5g}", "seconds": f"{result.seconds:.1f}"}
    for name, one in scores(result.prediction, case, structures, False).items():
        yield {**about, "structure": name, "dice": f"{one.dice:.4f}", **numbers}


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(arguments: argparse.Namespace) -> None:
    people: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    energies: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    took: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for path in arguments.files:
        for row in _read(Path(path)):
            if row["structure"] != "mean":
                people[row["cohort"], row["subject"]][row["preset"]].append(float(row["dice"]))
                energies[row["cohort"], row["subject"]][row["preset"]] = float(row["energy"])
                took[row["cohort"], row["subject"]][row["preset"]] = float(row["seconds"])
    means = {who: {preset: fmean(each) for preset, each in found.items()} for who, found in people.items()}
    print(
        "| cohort | scans | preset | Dice | change: mean (worst, best) | worse | beside `paper`: mean, largest "
        "| CNN energy | seconds |"
    )
    print("|---" * 9 + "|")
    for cohort in ("all", *dict.fromkeys(name for name, _ in means)):
        here = {who: each for who, each in means.items() if cohort in ("all", who[0])}
        for preset in PRESETS:
            mean = fmean(each[preset] for each in here.values())
            moved = [each[preset] - each["source"] for each in here.values()]
            beside = [each[preset] - each["paper"] for each in here.values()]
            energy, seconds = (fmean(known[who][preset] for who in here) for known in (energies, took))
            print(
                f"| {cohort} | {len(here)} | {preset} | {mean:.3f} | {fmean(moved):+.3f} ({min(moved):+.3f}, "
                f"{max(moved):+.3f}) | {sum(move < -WORSE for move in moved)} | {fmean(beside):+.3f}, "
                f"{max(map(abs, beside)):.3f} | {energy:.4f} | {seconds:.1f} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("model")
    one.add_argument("--cohort", required=True, choices=list(COHORTS))
    one.add_argument("--count", type=int, default=3)
    one.add_argument("--slices", type=int, default=8)
    one.add_argument("--out", required=True)
    one.set_defaults(call=run)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(call=table)
    chosen = parser.parse_args()
    chosen.call(chosen)
