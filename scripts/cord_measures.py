"""Compare simulated with real scans of the spinal cord: contrasts, noise, texture, borders, sizes.

    python scripts/cord_measures.py real DATA/gm-challenge --out real.csv [--people sub-9418 sub-9584 sub-10062Ses1]
    python scripts/cord_measures.py simulated --cohort spine --out simulated.csv [--count 3]
    python scripts/cord_measures.py table results/cords.csv > results/cords.md

Scans are cut around the cord and scaled by their 1st and 99th percentile, as networks see them. By default three of the
people with real scans are read, so that the others stay unseen. All numbers are means over slices with a cord.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from transfer_results import around_cord, spine

from scantune.scans.case import Case
from scantune.simulate import COHORTS

DEVELOPMENT = ("sub-9418", "sub-9584", "sub-10062Ses1")
GREY, WHITE = 1, 2
RING = (1.0, 2.5)
"""Distance in mm from the cord of what is taken for fluid."""
COLUMNS = (
    *("kind", "site", "subject", "pixel", "grey", "white", "ring", "outside", "grey_over_white", "noise", "texture"),
    *("border", "slope", "tail", "grey_area", "cord_area"),
)


def measure(case: Case) -> dict[str, float]:
    """Measure a scan that is cut around the cord."""
    assert case.reference is not None
    low, high = np.percentile(case.image, (1, 99))
    image = np.clip((case.image - low) / (high - low), 0, 1)
    pixel = float(case.spacing[0])
    found = [measure_slice(image[..., z], case.reference[..., z], pixel) for z in range(image.shape[2])]
    known = [each for each in found if each]
    tail = float((np.percentile(case.image, 99.9) - low) / (high - low))
    return {"pixel": pixel, "tail": tail, **{name: fmean(each[name] for each in known) for name in known[0]}}


def measure_slice(image: NDArray[np.float64], labels: NDArray[np.uint8], pixel: float) -> dict[str, float]:
    """Measure a slice `(x, y)`, whose values lie between 0 and 1; nothing if it has no grey matter."""
    grey, white, cord = labels == GREY, labels == WHITE, labels > 0
    if grey.sum() < 10 or white.sum() < 20:
        return {}
    away = ndimage.distance_transform_edt(~cord) * pixel
    inside = ndimage.distance_transform_edt(cord) * pixel
    ring = (away > RING[0]) & (away <= RING[1])
    core = white & (inside > 0.75) & (ndimage.distance_transform_edt(~grey) * pixel > 0.5)
    core = core if core.sum() >= 20 else white
    smooth = ndimage.gaussian_filter(image, 1.0 / pixel)
    fine = image - ndimage.gaussian_filter(image, 0.5 / pixel)
    edge = np.hypot(*np.gradient(ndimage.gaussian_filter(image, 0.25 / pixel), pixel))
    rim = np.abs(away - inside) <= 1.5 * pixel
    step = abs(image[ring].mean() - image[white].mean())
    return {
        "grey": float(image[grey].mean()),
        "white": float(image[white].mean()),
        "ring": float(image[ring].mean()),
        "outside": float(image[away > 6].mean()),
        "grey_over_white": float((image[grey].mean() - image[white].mean()) / max(image[core].std(), 1e-3)),
        "noise": float(fine[core].std()),
        "texture": float(smooth[core].std()),
        "border": float(edge[rim].mean() / max(step, 0.02)),
        "slope": _slope(smooth, cord),
        "grey_area": float(grey.sum() * pixel**2),
        "cord_area": float(cord.sum() * pixel**2),
    }


def _slope(image: NDArray[np.float64], cord: NDArray[np.bool_]) -> float:
    """Return the relative change of brightness from the front to the back of the cord, by a straight line."""
    places = np.argwhere(cord)
    line = np.polyfit(places[:, 1], image[cord], 1)
    return float(line[0] * np.ptp(places[:, 1]) / image[cord].mean())


def real(arguments: argparse.Namespace) -> None:
    chosen = (case for case in spine(Path(arguments.data)) if case.subject in arguments.people)
    _write(arguments.out, (("real", case) for case in chosen))


def simulated(arguments: argparse.Namespace) -> None:
    cohort = COHORTS[arguments.cohort]

    def cases() -> Iterator[tuple[str, Case]]:
        for centre in cohort.centres:
            split = "train" if centre == cohort.source else "validation"
            for case in cohort.cases(centre, split, count=arguments.count, slices=6, seed=9):
                assert case.reference is not None
                yield cohort.name, around_cord(case, case.reference > 0)

    _write(arguments.out, cases())


def _write(out: str, cases: Iterator[tuple[str, Case]]) -> None:
    with Path(out).open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        rows.writeheader()
        for kind, case in cases:
            numbers = {name: round(value, 4) for name, value in measure(case).items()}
            rows.writerow({"kind": kind, "site": case.site, "subject": case.subject, **numbers})
            file.flush()


Rows = dict[tuple[str, str], list[dict[str, str]]]

SUMMARY: dict[str, Callable[[dict[str, str]], float]] = {
    "fluid over white matter": lambda row: float(row["ring"]) / float(row["white"]),
    "6 mm and more away": lambda row: float(row["outside"]),
    "noise": lambda row: float(row["noise"]),
    "grey less white matter, in deviations of white matter": lambda row: float(row["grey_over_white"]),
    "sharpness of the border, 1/mm": lambda row: float(row["border"]),
    "change of brightness from front to back": lambda row: float(row["slope"]),
}
"""What the second table shows: the range of the sites' means."""


def table(arguments: argparse.Namespace) -> None:
    rows: Rows = defaultdict(list)
    for path in arguments.files:
        with Path(path).open(newline="") as file:
            for row in csv.DictReader(file):
                rows[row["kind"], row["site"]].append(row)
    names = COLUMNS[3:]
    print(f"| scans | site | number | {' | '.join(name.replace('_', ' ') for name in names)} |")
    print("|---|---|---|" + "---|" * len(names))
    for (kind, site), each in rows.items():
        cells = [f"{fmean(float(row[name]) for row in each):.3g}" for name in names]
        print(f"| {kind} | {site} | {len(each)} | {' | '.join(cells)} |")
    kinds = list(dict.fromkeys(kind for kind, _ in rows))
    print(f"\nRange of the sites' means:\n\n| | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for name, value in SUMMARY.items():
        ranges = [_range(rows, kind, value) for kind in kinds]
        print(f"| {name} | {' | '.join(ranges)} |")


def _range(rows: Rows, kind: str, value: Callable[[dict[str, str]], float]) -> str:
    means = [fmean(map(value, each)) for (known, _), each in rows.items() if known == kind]
    return f"{min(means):.3f} to {max(means):.3f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("real")
    one.add_argument("data")
    one.add_argument("--people", nargs="+", default=DEVELOPMENT)
    one.add_argument("--out", required=True)
    one.set_defaults(call=real)
    two = commands.add_parser("simulated")
    two.add_argument("--cohort", default="spine", choices=[name for name in COHORTS if name.startswith("spine")])
    two.add_argument("--count", type=int, default=2)
    two.add_argument("--out", required=True)
    two.set_defaults(call=simulated)
    three = commands.add_parser("table")
    three.add_argument("files", nargs="+")
    three.set_defaults(call=table)
    chosen_command = parser.parse_args()
    chosen_command.call(chosen_command)
