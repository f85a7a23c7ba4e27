"""The bundled brain model on real T1-weighted scans, before and after adaptation.

    python scripts/oasis_results.py run DATA/oasis --out results/oasis.csv [--model brain] [--device cpu] [--part 0/1]
    python scripts/oasis_results.py table results/oasis.csv > results/oasis.md

DATA/oasis holds `ID_T1w.nii.gz` and `ID_tissue.nii.gz` (0 background, 1 CSF, 2 GM, 3 WM). The reference's CSF is the
ventricles alone, so that CSF is scored but says little.
"""

import argparse
import csv
from pathlib import Path
from statistics import fmean

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.io import read_labels, read_scan


def run(arguments: argparse.Namespace) -> None:
    part, parts = map(int, arguments.part.split("/"))
    model = scantune.load(arguments.model)
    columns = [
        "subject",
        "structure",
        "source",
        "adapted",
        "energy_before",
        "energy_after",
        "decision",
        "steps",
        "seconds",
    ]
    with Path(arguments.out).open("w", newline="") as file:
        rows = csv.DictWriter(file, columns)
        rows.writeheader()
        for path in sorted(arguments.data.glob("*_T1w.nii.gz"))[part::parts]:
            subject = path.name.removesuffix("_T1w.nii.gz")
            reference = read_labels(path.with_name(f"{subject}_tissue.nii.gz")).labels
            result = scantune.adapt(model, read_scan(path), device=arguments.device)
            before, after = result.source_prediction, result.prediction
            for structure, value in model.labels.items():
                rows.writerow(
                    {
                        "subject": subject,
                        "structure": structure,
                        "source": f"{dice(before, reference, value):.4f}",
                        "adapted": f"{dice(after, reference, value):.4f}",
                        "energy_before": f"{result.energy_before:.5f}",
                        "energy_after": f"{result.energy_after:.5f}",
                        "decision": result.decision.action,
                        "steps": result.facts["steps"],
                        "seconds": f"{result.seconds:.1f}",
                    }
                )
            print(subject, result.decision, flush=True)


def table(arguments: argparse.Namespace) -> None:
    with Path(arguments.file).open(newline="") as file:
        rows = list(csv.DictReader(file))
    scans = len({row["subject"] for row in rows})
    print(f"| {scans} real scans | source | adapted | lowest source | worst change | best change |")
    print("|---" * 6 + "|")
    for structure in ("GM", "WM", "CSF"):
        chosen = [row for row in rows if row["structure"] == structure]
        source, adapted = ([float(row[column]) for row in chosen] for column in ("source", "adapted"))
        change = [after - before for before, after in zip(source, adapted, strict=True)]
        means = f"{fmean(source):.3f} | {fmean(adapted):.3f} | {min(source):.3f}"
        print(f"| {structure} | {means} | {min(change):+.3f} | {max(change):+.3f} |")
    kept = sum(row["decision"] == "kept" for row in rows if row["structure"] == "GM")
    print(f"\nThe guard kept {kept} of {scans} adaptations and rolled back {scans - kept}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("data", type=Path)
    one.add_argument("--out", required=True)
    one.add_argument("--model", default="brain")
    one.add_argument("--device", default="cpu")
    one.add_argument("--part", default="0/1")
    one.set_defaults(action=run)
    two = commands.add_parser("table")
    two.add_argument("file")
    two.set_defaults(action=table)
    given = parser.parse_args()
    given.action(given)
