"""What every method does to real scans, as it falls.

    scantune train scripts/recipes/lgg-du.toml --root DATA/lgg --out MODELS/lgg-du.safetensors
    scantune fit MODELS/lgg-du.safetensors --data scripts/recipes/lgg-du.toml --root DATA/lgg
    scantune train scripts/recipes/oasis-tissue.toml --root DATA/oasis --out MODELS/oasis-tissue.safetensors
    scantune fit MODELS/oasis-tissue.safetensors --data scripts/recipes/oasis-tissue.toml --root DATA/oasis
    python scripts/small_models.py MODELS --recipes spine

    python scripts/real_results.py run lgg --model MODELS/lgg-du.safetensors --sites HT CS --out results/real-lgg.csv
    python scripts/real_results.py run oasis --model MODELS/oasis-tissue.safetensors --out results/real-oasis.csv
    python scripts/real_results.py run spine --model MODELS/spine-strong-0.safetensors --out results/real-spine.csv
    python scripts/real_results.py table results/real-*.csv > results/real.md

DATA is a folder with `lgg`, `oasis` and `gm-challenge`, named by SCANTUNE_DATA or --data. An interrupted `run` goes on
when the command is given again. Guards are off, so that the methods themselves are seen, but for the last run: the
default as it is. `lgg` adapts to all patients of other sites, and to those of DU who chose the network; `oasis` to the
people whom its recipe puts aside for testing; `spine` is a network of simulated scans alone on real cords, cut out as
in `transfer_results.py`. At most `--slices` slices of a scan are used, evenly spaced, so that a run takes less than a
minute on one processor core; energies and Dice are of these.
"""

import argparse
import csv
import math
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from transfer_results import around_cord
from verbs import Verbs

import scantune
from scantune.config.recipe import read_recipe
from scantune.datasets import DATASETS
from scantune.evaluation.metrics import score
from scantune.scans.case import Case
from scantune.training.sources import DataSetSource, read_source

RUNS: dict[str, dict[str, Any]] = {
    "source": {"method": "source"},
    "batchnorm": {"method": "batchnorm"},
    "entropy": {"method": "entropy"},
    "foe-cnn": {"method": "foe-cnn"},
    "foe-cnn-pca": {"method": "foe-cnn-pca"},
    "default, guard": {"guard": True},
}
COLUMNS = (
    *("cohort", "site", "subject", "method", "seed", "structure", "dice", "hd95"),
    *("energy_before", "energy_after", "decision", "steps", "seconds"),
)
RECIPES = Path(__file__).parent / "recipes"
CORDS = {"WM": "*_seg-manual.nii.gz", "GM": "*_gmseg-manual.nii.gz"}


def listed(recipe: str, root: Path) -> DataSetSource:
    """The scans of a recipe."""
    source = read_source({**read_recipe(RECIPES / f"{recipe}.toml").data, "root": str(root)}, recipe)
    assert isinstance(source, DataSetSource)
    return source


def lgg(data: Path) -> Iterator[Case]:
    """Patients of the sites that are not trained at, and at DU those who validate."""
    for entry in listed("lgg-du", data / "lgg").dataset().entries():
        if entry.site != "DU" or entry.split == "validation":
            yield entry.read()


def oasis(data: Path) -> Iterator[Case]:
    """People put aside for testing."""
    for entry in listed("oasis-tissue", data / "oasis").chosen():
        if entry.split == "test":
            yield replace(entry.read(), site="OASIS")


def spine(data: Path) -> Iterator[Case]:
    """Sessions of the grey matter challenge, cut around the cord."""
    found = DATASETS["bids"].open(data / "gm-challenge", masks=CORDS, structures={"GM": 1, "WM": 2})
    for entry in found.entries():
        case = entry.read()
        assert case.reference is not None
        yield replace(around_cord(case, case.reference > 0), subject=case.name)


COHORTS = {"lgg": lgg, "oasis": oasis, "spine": spine}


def thinned(case: Case, slices: int) -> Case:
    """A scan of at most so many slices, evenly spaced along its last axis; all are left with 0."""
    assert case.reference is not None
    step = math.ceil(case.shape[2] / slices) if slices else 1
    first = (case.shape[2] - 1) % step // 2
    affine = case.affine @ np.diag([1.0, 1.0, step, 1.0])
    affine[:3, 3] += first * case.affine[:3, 2]
    image, reference = (volume[:, :, first::step] for volume in (case.image, case.reference))
    return replace(case, image=image, reference=reference, affine=affine, header=None)


def run(arguments: argparse.Namespace) -> None:
    model, out = scantune.load(arguments.model), Path(arguments.out)
    done = {(row["site"], row["subject"], row["method"]) for row in read([out])} if out.exists() else set()
    with out.open("a", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        if not done:
            rows.writeheader()
        for whole in COHORTS[arguments.cohort](arguments.data):
            case = thinned(whole, arguments.slices)
            for name in arguments.runs:
                if (arguments.sites and case.site not in arguments.sites) or (case.site, case.subject, name) in done:
                    continue
                result = scantune.adapt(model, case, device=arguments.device, **{"guard": False, **RUNS[name]})
                rows.writerows(scored(arguments.cohort, case, name, result))
                file.flush()
                print(case.name, name, result.decision, f"{result.seconds:.0f} s", flush=True)


def scored(cohort: str, case: Case, method: str, result: scantune.Result) -> list[dict[str, Any]]:
    """Rows of one run, a structure each."""
    assert case.reference is not None
    common = {
        "cohort": cohort,
        "site": case.site,
        "subject": case.subject,
        "method": method,
        "seed": 0,
        "energy_before": number(result.energy_before),
        "energy_after": number(result.energy_after),
        "decision": result.decision.action,
        "steps": result.facts["steps"],
        "seconds": f"{result.seconds:.1f}",
    }
    predicted, rows = result.prediction, []
    for structure, value in result.labels.items():
        found = score(predicted, case.reference, value, case.spacing)
        rows.append({**common, "structure": structure, "dice": number(found.dice), "hd95": number(found.hd95)})
    return rows


def number(value: float | None) -> str:
    return "" if value is None or not np.isfinite(value) else f"{value:.4f}"


def read(paths: list[Path]) -> list[dict[str, str]]:
    return [row for path in paths for row in csv.DictReader(path.read_text().splitlines())]


def table(arguments: argparse.Namespace) -> None:
    scores: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    kept: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for row in read(arguments.files):
        for site in (row["site"], "all"):
            key = row["cohort"], site, row["method"]
            scores[key][row["subject"]].append(float(row["dice"] or 0))
            if row["decision"] in ("kept", "adapted"):
                kept[key].add(row["subject"])
    mean = {key: {person: fmean(values) for person, values in people.items()} for key, people in scores.items()}
    print("| cohort | site | scans | method | Dice | change of single scans: mean (worst, best) | kept |")
    print("|---" * 7 + "|")
    for cohort, site in sorted({key[:2] for key in mean}, key=lambda key: (key[0], key[1] == "all", key[1])):
        if site == "all" and len({place for name, place, _ in mean if name == cohort}) == 2:
            continue
        source = mean[cohort, site, "source"]
        for method in (name for name in RUNS if (cohort, site, name) in mean):
            people = mean[cohort, site, method]
            change = [people[person] - source[person] for person in people]
            told = f"{fmean(change):+.3f} ({min(change):+.3f}, {max(change):+.3f})" if method != "source" else ""
            stood = f"{len(kept[cohort, site, method])}/{len(people)}" if "guard" in method else ""
            about = f"{cohort} | {site} | {len(people)} | {method} | {fmean(people.values()):.3f}"
            print(f"| {about} | {told} | {stood} |")


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("cohort", choices=list(COHORTS))
    one.add_argument("--data", type=Path, default=Path(os.environ.get("SCANTUNE_DATA", ".")))
    one.add_argument("--model", required=True)
    one.add_argument("--out", required=True)
    one.add_argument("--sites", nargs="+", default=[])
    one.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    one.add_argument("--slices", type=int, default=8)
    one.add_argument("--device", default="auto")
    verbs.add(table).add_argument("files", nargs="+", type=Path)
    verbs.call()
