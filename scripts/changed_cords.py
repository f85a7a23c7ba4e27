"""The bundled model `spine-varied` on real cords whose brightness was changed: what the default makes of each.

    python scripts/changed_cords.py run DATA/gm-challenge --out results/changed-cords.csv
    python scripts/changed_cords.py table results/changed-cords.csv > results/changed-cords.md

The scans are those of the grey matter challenge, cut around the cord. `CHANGES` says what was done to them. A `run`
goes on where an earlier one of the same file ended.
"""

import argparse
import csv
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from bundled_results import read, scored
from numpy.typing import NDArray
from transfer_results import spine
from verbs import Verbs

import scantune

Image = NDArray[np.float32]

COLUMNS = ("subject", "change", "structure", "source", "handed_out", "expected", "verdict", "decision", "seconds")
WORSE = 0.01
"""Loss of Dice from which a scan counts as worse."""


def noisy(image: Image) -> Image:
    """Add noise of 0.15 of the range."""
    return image + 0.15 * np.random.default_rng(0).standard_normal(image.shape)


def beside_coil(image: Image) -> Image:
    """Let the brightness fall from the back of the neck to the front, to 0.15 of it."""
    fall = np.linspace(1.0, 0.15, image.shape[1])
    return image * fall[None, :, None]


CHANGES: dict[str, Callable[[Image], Image]] = {
    "none": lambda image: image,
    "inverted": lambda image: 1 - image,
    "to the power of 3": lambda image: image**3,
    "to the power of 0.3": lambda image: image**0.3,
    "noise": noisy,
    "a coil at the back": beside_coil,
}
"""Changes of a scan `(x, y, z)` whose values were brought between 0 and 1, by their 1st and 99th percentile."""


def scaled(image: NDArray[np.floating]) -> Image:
    """Bring the values of a scan between 0 and 1."""
    low, high = np.percentile(image, (1, 99))
    return ((np.clip(image, low, high) - low) / (high - low)).astype(np.float32)


def run(given: argparse.Namespace) -> None:
    """Adapt to every scan in every form, and write a row for each structure."""
    model = scantune.load("spine-varied")
    known = read(given.out)
    done = {(row["subject"], row["change"]) for row in known}
    with given.out.open("a", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        if not known:
            rows.writeheader()
        for case, name in itertools.product(spine(given.data), CHANGES):
            if (case.subject, name) not in done:
                image = CHANGES[name](scaled(case.image)).astype(np.float32)
                result = scantune.adapt(model, replace(case, image=image, reference=None), device=given.device)
                rows.writerows({**row, "change": name} for row in scored(case.subject, result, case.reference))
                file.flush()
                print(case.subject, name, result.decision.action, flush=True)


def table(given: argparse.Namespace) -> None:
    """Print means over scans by change, of the mean of grey and white matter."""
    head = ("change", "scans", "Dice before", "after", "expected", "worst change", "best change", "worse")
    print(f"| {' | '.join((*head, 'decisions', 'verdicts'))} |")
    print("|---" * (len(head) + 2) + "|")
    rows = read(given.file)
    for name in CHANGES:
        scans: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in rows:
            if row["change"] == name:
                scans[row["subject"]].append(row)
        before, after = (
            [fmean(float(row[column]) for row in each) for each in scans.values()]
            for column in ("source", "handed_out")
        )
        moved = [end - start for start, end in zip(before, after, strict=True)]
        worse = str(sum(move < -WORSE for move in moved))
        expected = [float(row["expected"]) for each in scans.values() for row in each if row["expected"]]
        changes = (f"{fmean(expected):.3f}", f"{min(moved):+.3f}", f"{max(moved):+.3f}", worse)
        counts = (counted([each[0][column] for each in scans.values()]) for column in ("decision", "verdict"))
        cells = (name, str(len(scans)), f"{fmean(before):.3f}", f"{fmean(after):.3f}", *changes, *counts)
        print(f"| {' | '.join(cells)} |")


def counted(names: list[str]) -> str:
    """Say how often each name occurs."""
    return ", ".join(f"{name} {count}" for name, count in Counter(names).items())


if __name__ == "__main__":
    verbs = Verbs(__doc__)
    one = verbs.add(run)
    one.add_argument("data", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="cpu")
    verbs.add(table).add_argument("file", type=Path)
    verbs.call()
