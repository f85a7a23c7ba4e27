"""Bundled models on real scans: verdicts, estimates, and Dice before and after.

    python scripts/bundled_results.py run brains DATA/oasis --out results/oasis.csv [--device cpu] [--part 0/1]
    python scripts/bundled_results.py run cords DATA/gm-challenge --out results/spine-varied.csv
    python scripts/bundled_results.py run whole-cords DATA/gm-challenge --out results/spine-varied-whole.csv
    python scripts/bundled_results.py table results/oasis.csv > results/oasis.md

DATA/oasis holds `ID_T1w.nii.gz` and `ID_tissue.nii.gz` (0 background, 1 CSF, 2 GM, 3 WM). The reference's CSF is the
ventricles alone, so that CSF is scored but says little. DATA/gm-challenge is the BIDS data set of the grey matter
challenge; `cords` are cut around the cord. A `run` goes on where an earlier one of the same file ended; `--part 1/2`
is the second of two parts of the scans.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any

from transfer_results import spine, whole_cords
from verbs import Verbs

import scantune
from scantune.evaluation.metrics import dice
from scantune.scans.case import Case
from scantune.scans.io import read_labels, read_scan

COLUMNS = (
    *("subject", "structure", "source", "handed_out", "expected", "verdict", "decision"),
    *("energy_before", "energy_after", "steps", "seconds"),
)
COMPARED = ("GM", "WM")
"""Structures that reference and model mean alike."""

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """Read the rows of a file; none if it is not there."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def brains(folder: Path) -> Iterator[Case]:
    """Yield the scans of OASIS."""
    for path in sorted(folder.glob("*_T1w.nii.gz")):
        subject = path.name.removesuffix("_T1w.nii.gz")
        reference = read_labels(path.with_name(f"{subject}_tissue.nii.gz"))
        yield replace(read_scan(path).with_reference(reference), subject=subject)


SCANS: dict[str, tuple[str, Callable[[Path], Iterator[Case]]]] = {
    "brains": ("brain", brains),
    "cords": ("spine-varied", spine),
    "whole-cords": ("spine-varied", whole_cords),
}
"""Real scans, and the bundled model that is for them."""


def run(given: argparse.Namespace) -> None:
    """Adapt to the scans, and write a row for each structure."""
    part, parts = map(int, given.part.split("/"))
    name, cases = SCANS[given.scans]
    model, known = scantune.load(name), read(given.out)
    done = {row["subject"] for row in known}
    with given.out.open("a", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not known:
            rows.writeheader()
        for case in islice(cases(given.data), part, None, parts):
            if case.subject in done:
                continue
            result = scantune.adapt(model, replace(case, reference=None), device=given.device)
            rows.writerows(scored(case.subject, result, case.reference))
            file.flush()
            print(case.subject, result.facts.get("expected"), result.decision.action, flush=True)


def scored(subject: str, result: scantune.Result, reference: Any) -> list[dict[str, Any]]:
    """Return the rows of a scan."""
    facts = result.facts
    expected = facts.get("expected_by_structure", {})
    common = {
        "subject": subject,
        "verdict": facts.get("verdict", ""),
        "decision": result.decision.action,
        "energy_before": f"{result.energy_before:.5f}",
        "energy_after": f"{result.energy_after:.5f}",
        "steps": facts["steps"],
        "seconds": f"{result.seconds:.1f}",
    }
    return [
        {
            **common,
            "structure": structure,
            "source": f"{dice(result.source_prediction, reference, value):.4f}",
            "handed_out": f"{dice(result.prediction, reference, value):.4f}",
            "expected": f"{expected[structure]:.4f}" if structure in expected else "",
        }
        for structure, value in result.labels.items()
    ]


def table(given: argparse.Namespace) -> None:
    """Print the tables."""
    rows = read(given.file)
    scans = {row["subject"]: row for row in rows}
    print(f"| {len(scans)} real scans | source | handed out | lowest source | worst change | best change | expected |")
    print("|---" * 7 + "|")
    for structure in [name for name in ("GM", "WM", "CSF") if any(row["structure"] == name for row in rows)]:
        chosen = [row for row in rows if row["structure"] == structure]
        source, after = ([float(row[column]) for row in chosen] for column in ("source", "handed_out"))
        change = [end - start for start, end in zip(source, after, strict=True)]
        told = [float(row["expected"]) for row in chosen if row["expected"]]
        means = f"{fmean(source):.3f} | {fmean(after):.3f} | {min(source):.3f}"
        print(f"| {structure} | {means} | {min(change):+.3f} | {max(change):+.3f} | {fmean(told):.3f} |")
    for column in ("verdict", "decision"):
        names = dict.fromkeys(row[column] for row in scans.values())
        counts = (f"{name} {sum(row[column] == name for row in scans.values())}" for name in names)
        print(f"\n{column.capitalize()}: {', '.join(counts)}.")
    pairs = [(float(row["expected"]), float(row["handed_out"])) for row in rows if compared(row)]
    errors = [told - true for told, true in pairs]
    print(f"\nExpected Dice of {' and '.join(COMPARED)}: median error {median(map(abs, errors)):.3f}, ", end="")
    print(f"bias {fmean(errors):+.3f}.")


def compared(row: Row) -> bool:
    """Return True if a row has an estimate that can be compared with its Dice."""
    return row["structure"] in COMPARED and bool(row["expected"])


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("scans", choices=list(SCANS))
    one.add_argument("data", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="cpu")
    one.add_argument("--part", default="0/1")
    verbs.add(table).add_argument("file", type=Path)
    verbs.call()
