"""What the guard could know, and what it could not, at every step of unguarded adaptations.

    python scripts/guard_paths.py MODEL --cohort prostate --split validation --out paths.jsonl [--count 2]
    python scripts/guard_paths.py MODEL --cohort lgg --files 'DATA/lgg/HT_*_FLAIR.nii.gz' --reference lesion ...

Of every scan and run a line: energies, stability under perturbations, volumes, agreement with the source prediction,
confidence, and Dice against the reference, step by step. `guard_rules.py` plays rules back on these lines. At most
`--slices` slices of a scan are used, evenly spaced, so that a path takes a minute on one processor core.
"""

import argparse
import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scantune
from scantune.methods import METHODS, Equipment
from scantune.optimise import Schedule, optimise
from scantune.preprocess import Prepared
from scantune.sampling import RandomSlices, WholeVolume
from scantune.scans import read_labels, read_scan
from scantune.simulate import COHORTS
from scantune.solvers import LBFGS, Adam
from scantune.stability import PERTURBATIONS, Scout, agreements
from scantune.supervision import survey
from scantune.volumes import Volume

FAST = Schedule(WholeVolume(), LBFGS(), 12)
RUNS: dict[str, tuple[str, Schedule, dict[str, Any], int]] = {
    "foe-cnn-pca": ("foe-cnn-pca", FAST, {}, 1),
    "foe-cnn": ("foe-cnn", FAST, {}, 1),
    "entropy": ("entropy", FAST, {}, 2),
    "entropy 1e-3": ("entropy", Schedule(RandomSlices(), Adam(), 30), {"learning_rate": 1e-3}, 10),
    "batchnorm": ("batchnorm", FAST, {}, 1),
}
"""Runs by name: method, schedule, options, and every how many steps the guard's evidence is noted."""


def expected(probabilities: Tensor, labels: Tensor, structures: int) -> list[float]:
    """The Dice of labels that is to be expected if these probabilities are right."""
    found = []
    for value in range(1, structures + 1):
        chosen, mass = labels == value, probabilities[:, value]
        total = float(chosen.sum() + mass.sum())
        found.append(2 * float(mass[chosen].sum()) / total if total > 1 else 1.0)
    return found


class Looker:
    """Notes a row per look; the first is of the source network."""

    def __init__(self, scan: Volume, reference: Tensor, task: Any) -> None:
        self.scan, self.reference, self.task = scan, reference, task
        self.source: list[Tensor] = []

    def __call__(self, network: torch.nn.Module) -> dict[str, Any]:
        with torch.autocast("cpu", torch.bfloat16):
            every = Scout(self.scan.images, self.task, tuple(PERTURBATIONS)).probabilities(network)
        structures = every[0].shape[1] - 1
        labels, others = every[0].argmax(1), [probabilities.argmax(1) for probabilities in every[1:]]
        mean = torch.stack(every).mean(0)
        if not self.source:
            self.source = [labels, mean]
        entropy = -(every[0] * every[0].clamp_min(1e-9).log()).sum(1)
        return {
            "dice": agreements(labels, self.reference, structures),
            "counts": [int((labels == v).sum()) for v in range(1, structures + 1)],
            "stability": {n: agreements(o, labels, structures) for n, o in zip(PERTURBATIONS, others, strict=True)},
            "agreement": agreements(labels, self.source[0], structures),
            "consensus": agreements(mean.argmax(1), labels, structures),
            "source consensus": agreements(self.source[1].argmax(1), labels, structures),
            "expected": expected(every[0], labels, structures),
            "expected, mean": expected(mean, labels, structures),
            "expected, source mean": expected(self.source[1], labels, structures),
            "source expected, mean": expected(mean, self.source[0], structures),
            "entropy": float(entropy.mean()),
        }


def thinned(prepared: Prepared, most: int) -> tuple[Volume, Tensor]:
    """At most so many slices, evenly spaced, and their reference."""
    assert prepared.reference is not None
    number = len(prepared.volume)
    chosen = torch.linspace(0, number - 1, min(most, number)).round().long()
    padding = None if prepared.padding is None else prepared.padding[chosen]
    images = prepared.volume[chosen].to(memory_format=torch.channels_last)
    return Volume(images, padding, prepared.distance), prepared.reference[chosen]


def follow(model: scantune.Model, scan: Volume, reference: Tensor, run: str) -> list[dict[str, Any]]:
    name, schedule, options, every = RUNS[run]
    network = deepcopy(model.network).requires_grad_(False)
    network.task.to(memory_format=torch.channels_last)  # what moves stays as it is, for the solver
    looker = Looker(scan, reference, model.task)
    path: dict[int, dict[str, Any]] = {0: looker(network)}
    runner = METHODS[name](Equipment(model.task, model.prior, model.helpers), options)

    def look(step: int, _steps: int) -> None:
        # The loop tells of the evaluation that is the step-th, from 1, so that it is row step - 1 of the trace.
        row = step - 1
        if row and row % every == 0:
            path[row] = looker(network)

    course = optimise(network, runner, scan, schedule, 0, look)
    path[len(course.trace) - 1] = looker(network)
    for number, seen in path.items():
        seen |= course.trace[number]
    return [path[number] for number in sorted(path)]


def people(arguments: argparse.Namespace) -> Iterator[scantune.Case]:
    """Simulated people of a split, one of each centre after another, or files."""
    for path in map(Path, arguments.files):
        stem, kind = path.name.removesuffix(".nii.gz").rsplit("_", 1)
        labels = read_labels(path.with_name(f"{stem}_{arguments.reference}.nii.gz"))
        yield replace(read_scan(path), name=f"{stem}_{kind}", reference=labels.labels, site=stem.split("_")[0])
    cohort = None if arguments.files else COHORTS[arguments.cohort]
    for index in range(arguments.start, arguments.count) if cohort else ():
        for centre in arguments.centres or cohort.centres:
            if index < cohort.centres[centre].splits[arguments.split]:
                yield from cohort.cases(
                    centre,
                    arguments.split,
                    start=index,
                    count=index + 1,
                    slices=None if arguments.cohort == "spine" else arguments.slices,
                    cache=arguments.cache or None,
                )


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    out = Path(arguments.out)
    done = {(r["subject"], r["run"]) for r in map(json.loads, out.read_text().splitlines())} if out.exists() else set()
    model = scantune.load(arguments.model)
    for case in people(arguments):
        scan = reference = None
        for run in arguments.runs:
            if (case.name, run) in done:
                continue
            if scan is None:
                scan, reference = thinned(model.preprocessing.apply(case), arguments.slices)
            before = survey(model.network, scan, model.task, model.prior)
            row = {"cohort": arguments.cohort, "site": case.site, "subject": case.name, "run": run}
            row |= {"split": arguments.split, "model": Path(arguments.model).stem, "energies": before.energies}
            row |= {"source_site": arguments.source or COHORTS[arguments.cohort].source}
            row["path"] = follow(model, scan, reference, run)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            first, last = (sum(row["path"][n]["dice"]) / len(row["path"][n]["dice"]) for n in (0, -1))
            print(case.name, run, f"energy {before.energy:.4f}, Dice {first:.3f} to {last:.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cohort", required=True)
    parser.add_argument("--files", nargs="+", default=[], help="scans; SUBJECT_KIND.nii.gz, SITE_... where there are")
    parser.add_argument("--source", default="", help="the site that the network was trained at; default: the cohort's")
    parser.add_argument("--reference", default="", help="KIND of the references beside them")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--centres", nargs="+")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--runs", nargs="+", default=["foe-cnn-pca", "entropy", "entropy 1e-3", "batchnorm"])
    parser.add_argument("--cache", default="")
    parser.add_argument("--out", required=True)
    main(parser.parse_args())
