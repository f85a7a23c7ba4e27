"""What the guard of stability or likeness could know, and what it could not, at every step of unguarded adaptations.

That guard judges priors without home readings, such as those of version 0.1, registrations, and the presets `paper` and
`converged`. Priors with home readings are assessed (`docs/guard.md`); `speed/criteria/run.py` measures that.

    python scripts/guard_paths.py MODEL --cohort prostate --split validation --out paths.jsonl [--count 2]
    python scripts/guard_paths.py MODEL --cohort lgg --files 'DATA/lgg/HT_*_FLAIR.nii.gz' --reference lesion ...

Of every scan and run a line: energies, stability under perturbations, volumes, agreement with the source prediction,
confidence, of registrations the likeness of atlas and scan, and Dice against the reference, step by step.
`guard_rules.py`, of registrations `likeness_rules.py`, plays rules back on these lines. The guard's evidence is that of
the slices that it looks at, Dice that of all. With `--slices` at most so many of a scan are used, evenly spaced: of
eight, a path takes a minute on one processor core. `--seed` gives other people, `--part 2/12` the second of twelve
parts of them, for processes that share the work.
"""

import argparse
import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scantune
from scantune.adaptation.guard.similarity import SimilarityReading
from scantune.adaptation.guard.stability import PerturbedSlices, agreements
from scantune.adaptation.loop import Schedule, optimise
from scantune.adaptation.prediction import predict
from scantune.adaptation.sampling import RandomSlices, WholeVolume
from scantune.adaptation.solvers import LBFGS, Adam
from scantune.backends.slices import PreparedSlices
from scantune.methods import METHODS, FoECNN, ModelParts
from scantune.networks import set_memory_layout
from scantune.prior.perturbations import PERTURBATIONS
from scantune.scans.io import read_labels, read_scan
from scantune.scans.volume import Volume
from scantune.simulate import COHORTS

FAST = Schedule(WholeVolume(), LBFGS(), 12)
RUNS: dict[str, tuple[str, Schedule, dict[str, Any], int]] = {
    "foe-cnn-pca": ("foe-cnn-pca", FAST, {}, 1),
    "foe-cnn": ("foe-cnn", FAST, {}, 1),
    "entropy": ("entropy", FAST, {}, 2),
    "entropy 1e-3": ("entropy", Schedule(RandomSlices(), Adam(), 30), {"learning_rate": 1e-3}, 10),
    "batchnorm": ("batchnorm", FAST, {}, 1),
    "instance": ("instance", FAST, {}, 1),
    "instance, unsmooth": ("instance", Schedule(WholeVolume(), LBFGS(), 40), {"smoothness": 0.0}, 4),
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

    def __init__(self, scan: Volume, reference: Tensor, task: Any, channels: int | None, prior: Any) -> None:
        self.scan, self.reference, self.task, self.prior = scan, reference, task, prior
        self.scout = PerturbedSlices.of(scan.images, task, tuple(PERTURBATIONS), channels)
        self.source: list[Tensor] = []
        self.whole: Tensor | None = None

    @torch.no_grad()
    def __call__(self, network: torch.nn.Module) -> dict[str, Any]:
        every = self.scout.probabilities(network)
        structures = every[0].shape[1] - 1
        parts = (self.task.probabilities(network(part.images)).argmax(1) for part in self.scan.batches(8))
        whole = torch.cat(list(parts))
        labels, others = every[0].argmax(1), [probabilities.argmax(1) for probabilities in every[1:]]
        mean = torch.stack(every).mean(0)
        if not self.source:
            self.source = [labels, mean]
        weighed: dict[str, Any] = {}
        if structures == 1 and self.prior is not None:
            weighed = {"cnn": predict(network, self.scan, self.task, self.prior).energy}
        if self.task.judged_by == "likeness":
            weighed["resemblance"] = vars(
                SimilarityReading.of(network, self.scan, self.task, structures, self.scout.channels)
            )
        entropy = -(every[0] * every[0].clamp_min(1e-9).log()).sum(1)
        return {
            "dice": agreements(whole, self.reference, structures),
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
            **weighed,
        }


def thinned(prepared: PreparedSlices, most: int) -> tuple[Volume, Tensor]:
    """At most so many slices, evenly spaced, and their reference; 0 for all."""
    assert prepared.reference is not None
    number = len(prepared.volume)
    chosen = torch.linspace(0, number - 1, min(most or number, number)).round().long()
    padding = None if prepared.padding is None else prepared.padding[chosen]
    images = prepared.volume[chosen].to(memory_format=torch.channels_last)
    return Volume(images, padding, prepared.distance), prepared.reference[chosen]


def follow(model: scantune.Model, scan: Volume, reference: Tensor, run: str) -> list[dict[str, Any]]:
    name, schedule, options, every = RUNS[run]
    runner = METHODS[name](ModelParts(model.task, model.prior, model.helpers), options)
    network = runner.equip(deepcopy(model.network), scan).requires_grad_(False)
    # Of one structure alone the guard weighs the energy where a method does not; the trace of others has it.
    weighing = None if isinstance(runner, FoECNN) else model.prior
    looker = Looker(scan, reference, model.task, network.channels, weighing)
    path: dict[int, dict[str, Any]] = {0: looker(model.network)}

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
    if not arguments.files:
        yield from simulated(arguments)


def simulated(arguments: argparse.Namespace) -> Iterator[scantune.Case]:
    """The part that was asked for of the people of a split, one of each centre after another."""
    cohort = COHORTS[arguments.cohort]
    anatomy, slices = cohort.anatomy(), None if arguments.cohort == "spine" else arguments.slices or None
    part, parts = map(int, arguments.part.split("/"))
    numbers = range(arguments.start, arguments.count)
    for index, centre in list(product(numbers, arguments.centres or cohort.centres))[part - 1 :: parts]:
        yield from cohort.cases(
            centre,
            arguments.split,
            seed=arguments.seed,
            anatomy=anatomy,
            start=index,
            count=index + 1,
            slices=slices,
            cache=arguments.cache or None,
        )


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    out = Path(arguments.out)
    done = {(r["subject"], r["run"]) for r in map(json.loads, out.read_text().splitlines())} if out.exists() else set()
    model = scantune.load(arguments.model)
    device = torch.device(arguments.device)
    model.network.to(device).eval()
    set_memory_layout(model.network, "channels last")
    model = replace(model, prior=model.prior.to(device))
    for case in people(arguments):
        scan = reference = None
        for run in arguments.runs:
            if (case.name, run) in done:
                continue
            if scan is None:
                scan, reference = thinned(model.backend.prepare(case), arguments.slices)
                scan, reference = scan.to(device), reference.to(device)
            before = predict(model.network, scan, model.task, model.prior)
            row = {"cohort": arguments.cohort, "site": case.site, "subject": case.name, "run": run}
            row |= {
                "split": arguments.split,
                "seed": arguments.seed,
                "model": Path(arguments.model).stem,
                "energies": before.energies,
            }
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
    parser.add_argument("--slices", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--runs", nargs="+", default=["foe-cnn-pca", "entropy", "entropy 1e-3", "batchnorm"])
    parser.add_argument("--cache", default="")
    parser.add_argument("--out", required=True)
    main(parser.parse_args())
