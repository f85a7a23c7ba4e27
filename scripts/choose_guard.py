"""How the brakes of the `fast` preset were chosen: on people that no result is reported of (people seed 100).

    python scripts/choose_guard.py run MODELS --out paths.json [--atlas atlas.npz] [--part 0/1]
    python scripts/choose_guard.py table paths*.json > results/choose_guard.md

`run` adapts without brakes and notes, at every evaluation of the objective, energy, Dice, proportions and agreement
with the source prediction. `table` plays the rules back on these paths: how many evaluations, how odd the proportions
may become, how far the prediction may move from the source's. MODELS as in brain_results.py.
"""

import argparse
import json
from copy import deepcopy
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import scantune
from scantune.adaptation.loop import Schedule, optimise
from scantune.adaptation.sampling import WholeVolume
from scantune.adaptation.solvers import LBFGS
from scantune.methods import METHODS, ModelParts
from scantune.scans.volume import Volume
from scantune.simulate import COHORTS, Atlas

COHORT = COHORTS["contrasts"]
PEOPLE = 100
VARIANTS = {"foe-cnn-pca": 14, "foe-cnn": 14, "entropy": 8}


class Rule(NamedTuple):
    """How odd, how much agreement, and which repairs."""

    odd: float
    agree: float
    repair: tuple[float, float] | None = None


RULES = [
    Rule(np.inf, 0.0),
    Rule(0.5, 0.0),
    Rule(np.inf, 0.8),
    *(Rule(odd, agree) for odd in (0.5, 1.0) for agree in (0.8, 0.85, 0.9)),
    *(Rule(0.5, 0.8, (failed, usual)) for failed in (2.0, 3.0, 5.0) for usual in (1.0, 2.0, 3.0)),
]


def scores(prediction: Tensor, reference: Tensor) -> list[float]:
    found = []
    for value in COHORT.labels.values():
        one, other = prediction == value, reference == value
        found.append(float(2 * (one & other).sum() / (one.sum() + other.sum()).clamp_min(1)))
    return found


def run(arguments: argparse.Namespace) -> None:
    device = torch.device(arguments.device)
    atlas = Atlas.load(arguments.atlas) if arguments.atlas else COHORT.anatomy()
    part, parts = map(int, arguments.part.split("/"))
    jobs = [(i, seed, c) for i in arguments.subjects for seed in arguments.seeds for c in COHORT.centres]
    rows: list[dict[str, Any]] = []
    for index, seed, centre in jobs[part::parts]:
        model = scantune.load(Path(arguments.models) / f"strong-{seed}.safetensors")
        cases = COHORT.cases(centre, "test", seed=PEOPLE, anatomy=atlas, count=index + 1, device=device)
        prepared = model.backend.prepare(list(cases)[index])
        padding = None if prepared.padding is None else prepared.padding.to(device)
        volume, reference = Volume(prepared.volume.to(device), padding), prepared.reference.to(device)
        for method, steps in VARIANTS.items():
            path = follow(model, volume, reference, method, steps)
            known = model.prior.calibration
            calibration = {"typical": known.typical, "shares": known.shares.tolist(), "spread": known.spread.tolist()}
            rows.append({"centre": centre, "i": index, "variant": method, "calibration": calibration, "path": path})
        Path(arguments.out).write_text(json.dumps(rows))
        print(seed, centre, index, flush=True)


def follow(model: scantune.Model, volume: Volume, reference: Tensor, method: str, steps: int) -> list[dict[str, Any]]:
    network = deepcopy(model.network).to(volume.images.device).requires_grad_(False)
    path: list[dict[str, Any]] = []
    first: list[Tensor] = []

    def look(_step: int, _steps: int) -> None:
        with torch.no_grad():
            prediction = network(volume.images).argmax(1)
        first.append(prediction)
        counts = [float((prediction == value).sum()) for value in range(4)]
        path.append({"dice": scores(prediction, reference), "frac": counts, "agree": scores(prediction, first[0])})

    schedule = Schedule(WholeVolume(batch=16), LBFGS(), 2 * steps)
    runner = METHODS[method](ModelParts(model.task, model.prior))
    course = optimise(network, runner, volume, schedule, 0, look)
    for row, seen in zip(course.trace, path, strict=False):
        seen |= {"obj": row["objective"], "energy": row.get("cnn"), "valid": row["valid"]}
    return path


def table(arguments: argparse.Namespace) -> None:
    rows = [row for name in arguments.files for row in json.loads(Path(name).read_text())]
    print("Mean change of Dice x 1000 against no adaptation, by centre; worst scan; scans that lose more than 0.03.")
    print(
        "Repair: a source prediction odder than the first number may change wholly if the scan becomes typical and the"
    )
    print("the prediction at most as odd as the second.\n")
    centres = [c for c in COHORT.centres if any(row["centre"] == c for row in rows)]
    print("| method | evaluations | oddness | agreement | repair |", " | ".join(centres), "| mean | worst | lost |")
    print("|---" * (len(centres) + 8) + "|")
    for method, most, rule in product(VARIANTS, (6, 12, 18), RULES):
        change: dict[str, list[float]] = {centre: [] for centre in centres}
        for row in (row for row in rows if row["variant"] == method):
            path = row["path"][: most + 1]
            chosen = play_back(path, row["calibration"], rule)
            change[row["centre"]].append(fmean(path[chosen]["dice"]) - fmean(path[0]["dice"]))
        every = [value for values in change.values() for value in values]
        cells = [f"{1000 * fmean(change[centre]):+.0f}" for centre in centres]
        end = f"{1000 * fmean(every):+.1f} | {min(every):+.3f} | {sum(v < -0.03 for v in every)}/{len(every)}"
        print(f"| {method} | {most} | {rule.odd} | {rule.agree} | {rule.repair} |", " | ".join(cells), f"| {end} |")


def play_back(path: list[dict[str, Any]], calibration: dict[str, Any], rule: Rule) -> int:
    """The step that the rules would choose; the first better step that they refuse ends the run, but for repairs."""
    typical, best, strayed = calibration["typical"], 0, False
    if path[0]["energy"] is not None and path[0]["energy"] <= typical:
        return 0
    before = oddness(path[0]["frac"], calibration)
    failed, usual = rule.repair or (np.inf, 0.0)
    for step, row in enumerate(path[1:], 1):
        if not row["valid"] or row["obj"] >= path[best]["obj"]:
            continue
        after, arrived = oddness(row["frac"], calibration), row["energy"] is not None and row["energy"] <= typical
        ordinary = after <= max(before, rule.odd) and fmean(row["agree"]) >= rule.agree and not strayed
        if ordinary or (before > failed and after <= usual and arrived):
            best = step
            if arrived:
                break
            continue
        strayed = True
        if before <= failed:
            break
    return best


def oddness(counts: list[float], calibration: dict[str, Any]) -> float:
    shares = np.array(counts[1:]) / max(sum(counts[1:]), 1)
    return float(np.abs((shares - calibration["shares"]) / calibration["spread"]).max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("models")
    one.add_argument("--out", required=True)
    one.add_argument("--atlas")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--subjects", type=int, nargs="+", default=[1, 2, 3, 4])
    one.add_argument("--part", default="0/1")
    one.add_argument("--device", default="cpu")
    one.set_defaults(action=run)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(action=table)
    chosen = parser.parse_args()
    chosen.action(chosen)
