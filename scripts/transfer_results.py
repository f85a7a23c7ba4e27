"""Networks that were trained on simulated scans alone, scored on real ones.

    python scripts/transfer_results.py spine DATA/gm-challenge --model SPINE_MODEL --out results/transfer-spine.csv
    python scripts/transfer_results.py brain DATA/oasis --model HCP_MODEL --out results/transfer-brain.csv
    python scripts/transfer_results.py brain DATA/oasis --model brain --name "brain, bundled" --out FILE
        [--methods source batchnorm foe-cnn-pca --no-guard]
    python scripts/transfer_results.py table results/transfer-*.csv > results/transfer.md

The networks are those of `simulated_shift.py`. `spine` reads the BIDS data set of the grey matter challenge (T2*w,
manual masks of cord and grey matter); as the cord lies anywhere in these scans and the networks see 50 mm, a scan is
first cut around the cord, as pipelines do once they have found it (here by the reference). `brain` reads ID_T1w and
ID_tissue. Some real people were looked at while cohorts were made; the line `not looked at` is of all others.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan

COLUMNS = ("cohort", "site", "subject", "method", "seed", "structure", "dice", "energy")
EDGE = 50.0  # mm that is cut out around the cord
LOOKED_AT = {"sub-9418", "sub-9584", "sub-10062", *(str(number) for number in range(1000, 1010))}
"""People whose scans were looked at, both visits of one of them."""


def spine(folder: Path) -> Iterator[Case]:
    """The scans of the grey matter challenge, cut around the cord."""
    for case in whole_cords(folder):
        assert case.reference is not None
        yield around_cord(case, case.reference > 0)


def whole_cords(folder: Path) -> Iterator[Case]:
    """The same scans as they are."""
    with (folder / "participants.tsv").open(newline="") as file:
        sites = {row["participant_id"]: row["Site"] for row in csv.DictReader(file, delimiter="\t")}
    for path in sorted(folder.glob("sub-*/anat/*_T2starw.nii.gz")):
        masks = folder / "derivatives" / "labels" / path.relative_to(folder).parent
        stem = path.name.removesuffix(".nii.gz")
        cord, grey = (read_labels(masks / f"{stem}_{mask}-manual.nii.gz").labels > 0 for mask in ("seg", "gmseg"))
        reference = np.where(grey, 1, np.where(cord, 2, 0)).astype(np.uint8)
        scan = read_scan(path)
        person = path.parents[1].name
        yield replace(scan, reference=reference, subject=person, site=sites[person])


def around_cord(case: Case, cord: np.ndarray) -> Case:
    """The part of a scan within `EDGE` / 2 of the middle of the cord in plane, on slices that have a reference."""
    assert case.reference is not None
    slices = np.nonzero(cord.any((0, 1)))[0]
    window = []
    for axis in (0, 1):
        where = np.nonzero(cord.any(tuple(other for other in range(3) if other != axis)))[0]
        half = round(EDGE / case.spacing[axis] / 2)
        middle = round((where.min() + where.max()) / 2)
        window.append(slice(max(middle - half, 0), middle + half))
    window.append(slice(int(slices.min()), int(slices.max()) + 1))
    affine = case.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ [part.start for part in window]
    cut = tuple(window)
    return replace(case, image=case.image[cut], reference=case.reference[cut], affine=affine, header=None)


def brain(folder: Path) -> Iterator[Case]:
    """The skull-stripped scans, every fourth slice of them left in: thin ones are much alike."""
    for path in sorted(folder.glob("*_T1w.nii.gz")):
        subject = path.name.removesuffix("_T1w.nii.gz")
        scan = read_scan(path).with_reference(read_labels(path.with_name(f"{subject}_tissue.nii.gz")))
        assert scan.reference is not None
        affine = scan.affine @ np.diag([1.0, 1.0, 4.0, 1.0])
        thin = {"image": scan.image[:, :, ::4], "reference": scan.reference[:, :, ::4], "affine": affine}
        yield replace(scan, **thin, subject=subject, site="OASIS", header=None)  # type: ignore[arg-type]


def run(arguments: argparse.Namespace) -> None:
    model = scantune.load(arguments.model)
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for case in arguments.cases(arguments.data):
            for method in arguments.methods:
                result = scantune.adapt(
                    model, case, method=method, guard=not arguments.no_guard, device=arguments.device
                )
                assert case.reference is not None
                row = {
                    "cohort": arguments.name,
                    "site": case.site,
                    "subject": case.subject,
                    "method": method,
                    "seed": 0,
                }
                for structure, value in model.labels.items():
                    score = dice(result.prediction, case.reference, value)
                    energy = "" if result.energy_after is None else f"{result.energy_after:.4f}"
                    rows.writerow({**row, "structure": structure, "dice": f"{score:.4f}", "energy": energy})
                print(case.name, method, result.decision.action, flush=True)


def table(arguments: argparse.Namespace) -> None:
    scores: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in arguments.files:
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                seen = row["subject"].partition("Ses")[0] in LOOKED_AT
                for site in (row["site"], "all", *(() if seen else ("not looked at",))):
                    scores[row["cohort"], row["method"], site][row["structure"]].append(float(row["dice"]))
    print("| cohort | method | site | scans | Dice |\n|---|---|---|---|---|")
    for (cohort, method, site), structures in scores.items():
        means = ", ".join(f"{name} {fmean(values):.3f}" for name, values in structures.items())
        print(f"| {cohort} | {method} | {site} | {len(next(iter(structures.values())))} | {means} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, cases in (("spine", spine), ("brain", brain)):
        one = commands.add_parser(name)
        one.add_argument("data", type=Path)
        one.add_argument("--model", required=True)
        one.add_argument("--out", required=True)
        one.add_argument("--methods", nargs="+", default=["source"])
        one.add_argument("--name", default=name, help="what rows call the network")
        one.add_argument("--no-guard", action="store_true")
        one.add_argument("--device", default="auto")
        one.set_defaults(call=run, cases=cases)
    two = commands.add_parser("table")
    two.add_argument("files", nargs="+")
    two.set_defaults(call=table)
    chosen = parser.parse_args()
    chosen.call(chosen)
