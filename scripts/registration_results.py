"""The registration task on the simulated cohort and on real scans: rows, and the tables of docs/registration.md.

    python scripts/registration_results.py train MODELS [--cache FOLDER]
    python scripts/registration_results.py run MODELS --out results/registration.csv [--cache FOLDER] [--people 7]
    python scripts/registration_results.py real MODELS DATA/oasis --out results/registration-oasis.csv
    python scripts/registration_results.py table results/registration.csv results/registration-oasis.csv

MODELS gets `none.safetensors` and `strong.safetensors` (recipe `register` without and with augmentation; strong with
prior, calibration and autoencoders), and `supervised-CENTRE.safetensors` (strong, fine-tuned on the centre's training
people). An interrupted command goes on when it is given again. The scans are those of test people, every fourth slice
of the slab of 40; options are the defaults, but for `OPTIONS`. DATA/oasis holds `ID_T1w.nii.gz` and
`ID_tissue.nii.gz` (2 GM, 3 WM), which are scored within the slab.
"""

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from verbs import Verbs

import scantune
from scantune.config.recipe import read_recipe
from scantune.evaluation.metrics import dice
from scantune.report.statistics import compare
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan
from scantune.simulate import COHORTS
from scantune.training.fit import fit_model
from scantune.training.helpers import fit_helper
from scantune.training.plan import TrainingPlan
from scantune.training.train import train_model

COHORT = COHORTS["registration"]
STRIDE, FIRST = 4, 2
"""Every fourth slice, from the third: about the middle, to half a slice."""
FINE_TUNED = 150
"""Iterations of the supervised benchmark, at 5e-4; the paper has 5000 at 1e-4."""
AUTOENCODERS = {"iterations": 100, "validate_every": 50, "learning_rate": 1e-3, "batch": 4}

# Name in the table, model, method, guard, steps.
METHODS: list[tuple[str, str, str, bool, int | None]] = [
    ("baseline", "none", "source", True, None),
    ("strong", "strong", "source", True, None),
    ("ae", "strong", "ae", False, 10),
    ("foe-cnn-pca", "strong", "foe-cnn-pca", False, None),
    ("foe-cnn-pca, guard", "strong", "foe-cnn-pca", True, None),
    ("instance", "strong", "instance", False, 12),
    ("instance, guard", "strong", "instance", True, 12),
    ("supervised", "supervised", "source", True, None),
]
REAL = [entry for entry in METHODS if entry[1] == "strong" and entry[0] != "ae"]
OPTIONS: dict[str, dict[str, Any]] = {"ae": {"start": "identity", "learning_rate": 1e-3}}
COLUMNS = [
    *("cohort", "site", "subject", "method", "seed", "structure", "dice"),
    *("folding", "roughness", "energy_before", "energy_after", "decision", "steps", "seconds"),
]


def train(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.models
    folder.mkdir(parents=True, exist_ok=True)
    recipe, data = read_recipe("register"), _cache(arguments)
    strong = folder / "strong.safetensors"
    for augment, path in (("strong", strong), ("none", folder / "none.safetensors")):
        if not path.exists():
            plan = TrainingPlan.read(replace(recipe, train=replace(recipe.train, augment=augment)), data)
            train_model(plan, precision="float16", checkpoint=path.with_suffix(".run")).save(path, torch.float16)
    model, plan = scantune.load(strong), TrainingPlan.read(recipe, data)
    if model.prior is None:
        model = fit_model(model, plan)
        model.save(strong, torch.float16)
    tuning = replace(recipe.train, iterations=FINE_TUNED, learning_rate=5e-4, validate_every=FINE_TUNED // 2)
    for centre in COHORT.centres:
        path = folder / f"supervised-{centre}.safetensors"
        if centre != COHORT.source and not path.exists():
            there = TrainingPlan.read(
                replace(recipe, train=tuning), {**data, "centre": centre, "train": 6, "validation": 3}
            )
            train_model(there, start=scantune.load(strong), precision="float16").save(path, torch.float16)
    if "ae" not in model.helpers:
        fit_helper(model, plan, "ae", AUTOENCODERS, checkpoint=folder / "ae.run").save(strong, torch.float16)


def _cache(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"cache": arguments.cache} if arguments.cache else {}


def people(centre: str, arguments: argparse.Namespace) -> Iterator[Case]:
    for case in COHORT.cases(centre, arguments.split, count=arguments.people, cache=arguments.cache or None):
        yield thinned(case)


def thinned(case: Case, first: int = 0, count: int | None = None) -> Case:
    """Every fourth slice, of so many from the first of a slab; the last axis runs up."""
    assert case.reference is not None and case.affine[2, 2] > 0
    part = slice(first + FIRST, None if count is None else first + count, STRIDE)
    affine = case.affine @ np.diag([1.0, 1.0, STRIDE, 1.0])
    affine[:3, 3] = case.affine[:3, 3] + part.start * case.affine[:3, 2]
    image, reference = (np.ascontiguousarray(array[:, :, part]) for array in (case.image, case.reference))
    return replace(case, image=image, reference=reference, affine=affine, header=None)


def run(arguments: argparse.Namespace) -> None:
    done = {(row["subject"], row["method"]) for row in _rows(arguments.out)}
    chosen = [entry for entry in METHODS if not arguments.methods or entry[0] in arguments.methods]
    centres = arguments.centres or list(COHORT.centres)
    with Path(arguments.out).open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        if not done:
            rows.writeheader()
        # Person by person, so that what a stopped run has done is of all centres.
        for every in zip(*(people(centre, arguments) for centre in centres), strict=True):
            for centre, case in zip(centres, every, strict=True):
                if (case.subject, "none") not in done:
                    _write(rows, centre, case, "none", _unregistered(arguments.models, case), {})
                for name, training, method, guard, steps in chosen:
                    if (case.subject, name) in done or (training == "supervised" and centre == COHORT.source):
                        continue
                    stem = f"supervised-{centre}" if training == "supervised" else training
                    model = scantune.load(Path(arguments.models) / f"{stem}.safetensors")
                    options = {**OPTIONS.get(name, {}), **arguments.options}
                    result = scantune.adapt(model, case, method=method, guard=guard, steps=steps, options=options)
                    _write(rows, centre, case, name, result.prediction, facts(result))
                    file.flush()
                print(centre, case.subject, flush=True)


def facts(result: scantune.Result) -> dict[str, Any]:
    entry = result.manifest_entry()
    return {
        "folding": f"{entry['quality']['folding']:.6f}",
        "roughness": f"{entry['quality']['roughness']:.4f}",
        "energy_before": "" if result.energy_before is None else f"{result.energy_before:.5f}",
        "energy_after": "" if result.energy_after is None else f"{result.energy_after:.5f}",
        "decision": result.decision.action,
        "steps": result.facts["steps"],
        "seconds": f"{result.seconds:.1f}",
    }


def _unregistered(models: Path, case: Case) -> np.ndarray[Any, Any]:
    """The atlas as it is, on the scan's own grid."""
    model = scantune.load(Path(models) / "strong.safetensors")
    prepared = model.backend.prepare(case)
    atlas = model.network.get_submodule("task.atlas")
    return prepared.to_native(atlas(prepared.volume[:, 1, 0, 0], prepared.volume.shape[2:])[1])


def _write(rows: Any, site: str, case: Case, method: str, found: Any, told: dict[str, Any], cohort: str = "") -> None:
    assert case.reference is not None
    shared = {"cohort": cohort or COHORT.name, "site": site, "subject": case.subject, "method": method, "seed": 0}
    for structure, value in COHORT.labels.items():
        rows.writerow({**shared, "structure": structure, "dice": f"{dice(found, case.reference, value):.5f}", **told})


def real(arguments: argparse.Namespace) -> None:
    done = {(row["subject"], row["method"]) for row in _rows(arguments.out)}
    model = scantune.load(Path(arguments.models) / "strong.safetensors")
    with Path(arguments.out).open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        if not done:
            rows.writeheader()
        for path in sorted(arguments.data.glob("*_T1w.nii.gz"))[: arguments.people]:
            subject = path.name.removesuffix("_T1w.nii.gz")
            scan, tissue = read_scan(path), read_labels(path.with_name(f"{subject}_tissue.nii.gz")).labels
            slab = model.backend.prepare(scan).slab
            assert slab is not None
            case = replace(scan, subject=subject, reference=np.where(tissue >= 2, tissue - 1, 0))
            case = thinned(case, slab.first, slab.count)
            if (subject, "none") not in done:
                _write(rows, "oasis", case, "none", _unregistered(arguments.models, case), {}, "real")
            for name, _, method, guard, steps in REAL:
                if (subject, name) not in done:
                    result = scantune.adapt(model, case, method=method, guard=guard, steps=steps)
                    _write(rows, "oasis", case, name, result.prediction, facts(result), "real")
            file.flush()
            print(subject, flush=True)


def _rows(path: str | Path) -> list[dict[str, str]]:
    if not Path(path).exists():
        return []
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def table(arguments: argparse.Namespace) -> None:
    rows = [row for path in arguments.files for row in _rows(path)]
    sites = list(dict.fromkeys((row["cohort"], row["site"]) for row in rows))
    scores = {key: by_person(rows, *key) for key in sites}
    found = {row["method"] for row in rows}
    methods = [name for name in ("none", *(entry[0] for entry in METHODS)) if name in found]
    heads = [f"{site}{' (real)' if cohort == 'real' else ''}" for cohort, site in sites]
    print(f"| | {' | '.join(heads)} |\n|---{'|---' * len(sites)}|")
    for method in methods:
        print(f"| {method} | {' | '.join(_cell(scores[key], method) for key in sites)} |")
    print("\nChange from strong, scan by scan: mean (worst, best); two-sided paired permutation test.\n")
    print(f"| | {' | '.join(heads)} |\n|---{'|---' * len(sites)}|")
    for method in methods:
        if method not in ("none", "baseline", "strong"):
            print(f"| {method} | {' | '.join(_change(scores[key], method) for key in sites)} |")
    print(
        "\n| | scans | adapted | unsolved | left alone | folding, largest share | roughness | seconds |\n"
        + "|---" * 8
        + "|"
    )
    for method in methods:
        print(_conduct([row for row in rows if row["method"] == method and row["structure"] == "GM"], method))


def by_person(rows: list[dict[str, str]], cohort: str, site: str) -> dict[str, dict[str, float]]:
    """Mean Dice over structures, by method and person."""
    here: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if (row["cohort"], row["site"]) == (cohort, site):
            here.setdefault(row["method"], {}).setdefault(row["subject"], []).append(float(row["dice"]))
    return {method: {person: fmean(all_) for person, all_ in those.items()} for method, those in here.items()}


def _cell(scores: dict[str, dict[str, float]], method: str) -> str:
    return f"{fmean(scores[method].values()):.3f}" if method in scores else "-"


def _change(scores: dict[str, dict[str, float]], method: str) -> str:
    if method not in scores or "strong" not in scores:
        return "-"
    changes = [score - scores["strong"][person] for person, score in scores[method].items()]
    (found,) = compare([changes])
    stars = "**" if found.p < 0.05 / 2 else "*" if found.p < 0.05 else ""
    return f"{found.mean:+.3f}{stars} ({min(changes):+.3f}, {max(changes):+.3f}), p {found.p:.3f}"


def _conduct(rows: list[dict[str, str]], method: str) -> str:
    def mean(name: str) -> str:
        values = [float(row[name]) for row in rows if row[name]]
        return f"{fmean(values):.3g}" if values else "-"

    told = [row["decision"] for row in rows if row["decision"]]
    counts = " | ".join(str(told.count(action)) for action in ("kept", "rolled back", "skipped"))
    largest = max((float(row["folding"]) for row in rows if row["folding"]), default=math.nan)
    folds = "-" if math.isnan(largest) else f"{largest:.2g}"
    cells = [method, str(len(rows)), counts if told else "- | - | -", folds, mean("roughness"), mean("seconds")]
    return f"| {' | '.join(cells)} |"


def _options(text: str) -> dict[str, Any]:
    return {name: float(value) for name, value in (word.split("=") for word in text.split(","))}


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    for verb in (train, run, real):
        command = verbs.add(verb)
        command.add_argument("models", type=Path)
        if verb is real:
            command.add_argument("data", type=Path)
        else:
            command.add_argument("--cache", default="", help="folder in which simulated scans are kept")
        if verb is not train:
            command.add_argument("--out", required=True)
            command.add_argument("--people", type=int, default=7 if verb is run else None)
        if verb is run:
            command.add_argument("--split", default="test", choices=["test", "validation"])
            command.add_argument("--centres", nargs="+", default=[], choices=list(COHORT.centres))
            command.add_argument("--methods", nargs="+", default=[])
            command.add_argument(
                "--options", type=_options, default={}, help="NAME=VALUE,... for choosing, not reporting"
            )
    verbs.add(table).add_argument("files", nargs="+")
    torch.set_num_threads(1)
    verbs.call()
