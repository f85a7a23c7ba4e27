"""The bundled brain model on real T1-weighted scans, before and after adaptation.

    python scripts/oasis_results.py DATA/oasis --out results/oasis.csv [--model brain] [--device cpu] [--part 0/1]

DATA/oasis holds `ID_T1w.nii.gz` and `ID_tissue.nii.gz` (0 background, 1 CSF, 2 GM, 3 WM). The reference's CSF is the
ventricles alone, so that CSF is scored but says little.
"""

import argparse
import csv
from pathlib import Path

import scantune
from scantune.metrics import dice
from scantune.scans import read_labels, read_scan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default="brain")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1")
    arguments = parser.parse_args()
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


if __name__ == "__main__":
    main()
