"""Choose the schedules of preset `fast`: every method gets the same budget on validation people of other centres.

    python scripts/small_models.py MODELS --recipes prostate --iterations 600 --shrink 2 --width 8
    python scripts/fast_schedules.py run MODELS/prostate-strong-0.safetensors --out results/fast-schedules.csv
    python scripts/fast_schedules.py table results/fast-schedules.csv > results/fast-schedules.md

The budget: four learning rates, 1, 3, 10 and 30 times the paper's, each to 48 steps of Adam with exact gradients; the
Dice is noted after 12, 24 and 48. Methods whose objective is steady have quasi-Newton steps, too. The people are the
first validation people of each centre, who are in no other result. The helper networks are trained here, briefly.
"""

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from verbs import Verbs

import scantune
from scantune.adaptation import schedules
from scantune.adaptation.loop import Schedule
from scantune.adaptation.sampling import WholeVolume
from scantune.adaptation.solvers import LBFGS, Adam, Solver
from scantune.benchmark.jobs.observe import DiceObserver
from scantune.benchmark.jobs.scoring import common_structures
from scantune.config.recipe import read_recipe
from scantune.methods import METHODS
from scantune.model.model import Model
from scantune.simulate import COHORTS
from scantune.training.helpers import fit_helper
from scantune.training.plan import TrainingPlan

TRIED = ("entropy", "dae", "ae", "foe-cnn-pca")
TIMES = (1, 3, 10, 30)
NOTED = (0, 12, 24, 48)
HELPERS = {
    "dae": {"iterations": 200, "width": 4, "shrink": 2, "validate_every": 50, "corruptions": 5, "learning_rate": 1e-3},
    "ae": {"iterations": 200, "batch": 8, "validate_every": 50, "learning_rate": 1e-3},
}
COLUMNS = ("cohort", "site", "subject", "method", "solver", "rate", "step", "dice", "objective")


def with_helpers(model: Model, arguments: argparse.Namespace) -> Model:
    """Train the helper networks, or take those that an earlier run left."""
    path = Path(arguments.model).with_suffix(".helpers.safetensors")
    if path.exists():
        return scantune.load(path)
    plan = TrainingPlan.read(read_recipe(arguments.cohort), {"cache": arguments.cache} if arguments.cache else {})
    for method, settings in HELPERS.items():
        model = fit_helper(model, plan, method, settings, device=arguments.device)
        print(method, model.provenance[method], flush=True)
    model.save(path)
    return model


def runs(method: str) -> list[tuple[str, Solver, float]]:
    """The budget of a method: solvers with their rates."""
    base = METHODS[method].Options().learning_rate
    tried: list[tuple[str, Solver, float]] = [("Adam", Adam(), base * times) for times in TIMES]
    return [*tried, ("L-BFGS", LBFGS(), 0.0)] if method != "dae" else tried


def run(arguments: argparse.Namespace) -> None:
    model = with_helpers(scantune.load(arguments.model), arguments)
    cohort = COHORTS[arguments.cohort]
    structures = common_structures(model.labels, dict(cohort.labels))
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for centre in arguments.centres:
            people = cohort.cases(
                centre, "validation", count=arguments.count, slices=arguments.slices, cache=arguments.cache or None
            )
            for case in people:
                for method in TRIED:
                    for name, solver, rate in runs(method):
                        schedules.OWN[method] = Schedule(WholeVolume(), solver, NOTED[-1], rate)
                        seen = DiceObserver(method, model, case, structures, "mean", NOTED)
                        result = scantune.adapt(model, case, method=seen.method(), guard=False, device=arguments.device)
                        common = {"cohort": cohort.name, "site": centre, "subject": case.subject, "method": method}
                        for row in seen.noted(result.trace):
                            if row["step"] in NOTED:
                                found = {"step": row["step"], "dice": round(row["dice"], 4)}
                                objective = f"{row['objective']:.6g}"
                                rows.writerow({**common, "solver": name, "rate": rate, **found, "objective": objective})
                    file.flush()
                print(case.name, flush=True)


def table(arguments: argparse.Namespace) -> None:
    with Path(arguments.file).open(newline="") as file:
        rows = list(csv.DictReader(file))
    finished = {row["subject"] for row in rows if row["method"] == TRIED[-1] and row["solver"] == "L-BFGS"}
    rows = [row for row in rows if row["subject"] in finished]
    source = {row["subject"]: float(row["dice"]) for row in rows if row["method"] == "entropy" and row["step"] == "0"}
    changes: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["step"] != "0":
            change = float(row["dice"]) - source[row["subject"]]
            changes[row["method"], row["solver"], row["rate"]][int(row["step"])].append(change)
    print(
        f"Change of mean Dice on {len(source)} validation people, mean (worst); source {fmean(source.values()):.3f}.\n"
    )
    print(f"| method | solver | learning rate | {' | '.join(f'{step} steps' for step in NOTED[1:])} |")
    print("|---|---|---|---|---|---|")
    for (method, solver, rate), by_step in changes.items():
        cells = [f"{fmean(by_step[step]):+.3f} ({min(by_step[step]):+.3f})" for step in NOTED[1:] if by_step[step]]
        print(f"| {method} | {solver} | {'-' if solver == 'L-BFGS' else f'{float(rate):g}'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("model")
    one.add_argument("--cohort", default="prostate", choices=list(COHORTS))
    one.add_argument("--centres", nargs="+", default=["BMC", "UCL", "HK", "BIDMC"])
    one.add_argument("--count", type=int, default=2)
    one.add_argument("--slices", type=int, default=8)
    one.add_argument("--cache", default="")
    one.add_argument("--device", default="cpu")
    one.add_argument("--out", required=True)
    verbs.add(table).add_argument("file")
    verbs.call()
