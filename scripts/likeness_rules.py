"""Rules of the guard of registrations, played back on the paths that `likeness_paths.py` noted.

    python scripts/likeness_paths.py brain-register --slices 6 --out paths.jsonl
    python scripts/likeness_rules.py paths.jsonl > results/guard_likeness.md

By model and run: the change of Dice under the guard and without it, the worst scan, how many scans that improve by more
than 0.001 unguarded stay improved, and how ill-behaved the kept deformations are.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from scantune.adaptation.guard.base import Guard
from scantune.adaptation.guard.similarity import SimilarityGuard, SimilarityReading, SimilarityRules

Row = dict[str, Any]
CHARGES, FOLDING, ROUGHER = (0.0, 0.05, 0.1, 0.2, 0.4), (1e-4, 1e-3, 1.0), (1.5, 3.0, 1e9)
HEADS = (
    "model",
    "run",
    "charge",
    "folding",
    "rougher",
    "scans",
    "mean",
    "unguarded",
    "worst",
    "stay",
    "most folds",
    "roughest",
)


def look(row: Row) -> SimilarityReading:
    seen = row["resemblance"]
    return SimilarityReading(**{**seen, "counts": tuple(seen["counts"])})


def play(path: list[Row], rules: SimilarityRules) -> Row:
    """The row that the guard chooses of a path: of the source, where that is rolled back."""
    guard: Guard[SimilarityReading] = SimilarityGuard(look(path[0]), rules)
    chosen, lowest = path[0], path[0]["smoothed"]
    for row in path[1:]:
        if not row["valid"] or row["smoothed"] >= lowest:
            continue
        lowest = row["smoothed"]
        verdict = guard.verdict(look(row))
        chosen = row if verdict == "accepted" else chosen
        if verdict == "strayed":
            break
    return chosen


def summary(paths: list[list[Row]], rules: SimilarityRules) -> list[str]:
    def gain(path: list[Row], row: Row) -> float:
        return fmean(row["dice"]) - fmean(path[0]["dice"])

    chosen = [play(path, rules) for path in paths]
    change = [gain(path, row) for path, row in zip(paths, chosen, strict=True)]
    free = [gain(path, min((r for r in path if r["valid"]), key=lambda r: r["smoothed"])) for path in paths]
    improved = [mine for mine, without in zip(change, free, strict=True) if without > 0.001]
    ends = [(look(path[0]), look(row)) for path, row in zip(paths, chosen, strict=True)]
    return [
        *(str(len(paths)), f"{fmean(change):+.4f}", f"{fmean(free):+.4f}", f"{min(change):+.4f}"),
        f"{sum(value > 0 for value in improved)}/{len(improved)}",
        f"{max(after.folding - before.folding for before, after in ends):+.1e}",
        f"{max(after.roughness / before.roughness for before, after in ends):.2f}",
    ]


def tried() -> Iterator[SimilarityRules]:
    """Every charge with the bounds as they are, then every bound with the charge as it is."""
    for charge in CHARGES:
        yield SimilarityRules(charge)
    for folding, rougher in product(FOLDING, ROUGHER):
        yield SimilarityRules(folding=folding, rougher=rougher)


def table(lines: Iterable[Row]) -> str:
    groups: dict[tuple[str, str], list[list[Row]]] = {}
    for line in lines:
        groups.setdefault((line["model"], line["run"]), []).append(line["path"])
    rows = [HEADS, ("---",) * len(HEADS)]
    for (model, run), paths in groups.items():
        for rules in tried():
            numbers = (f"{value:g}" for value in (rules.charge, rules.folding, rules.rougher))
            rows.append((model, run, *numbers, *summary(paths, rules)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    print(table(json.loads(text) for file in given.files for text in file.read_text().splitlines()))
