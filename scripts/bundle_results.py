"""What becomes of MONAI bundles: predictions compared with MONAI's own workflow, and adaptations to shifted scans.

    python scripts/bundle_results.py [--out results/bundle.csv]

Writes rows, and a page of the same name beside them. Networks are trained for a moment on made-up scans. MONAI's
workflow needs pytorch-ignite, which scantune does not.
"""

import argparse
import copy
import csv
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the toy bundle of the tests

from tests.toy_bundle import CONFIG, METADATA, infer_by_monai, toy_volume, write_bundle, write_data, write_volume

ITERATIONS, PEOPLE, STEPS = 60, 8, 20
"""Of a training; in the data that a prior is fitted to; and of an unguarded adaptation."""

SHIFTS = {"none": 1.0, "gamma 2.4": 2.4}
"""Powers that are taken of the intensities."""

SCAN = 7
"""Seed of the scan that is predicted, which no network has seen."""

PAD = {"_target_": "SpatialPadd", "keys": "image", "spatial_size": [24, 24, 24]}
REGIONS = [
    {"_target_": "Activationsd", "keys": "pred", "sigmoid": True},
    CONFIG["postprocessing"]["transforms"][1],
    {"_target_": "AsDiscreted", "keys": "pred", "threshold": 0.5},
    CONFIG["postprocessing"]["transforms"][3],
]


def transforms(steps: list[Any]) -> dict[str, Any]:
    """Return the config of transforms, one after the other."""
    return {"_target_": "Compose", "transforms": steps}


KINDS: dict[str, dict[str, Any]] = {
    "windows, classes": {},
    "windows with Gaussian weights, YAML": {"inferer": {**CONFIG["inferer"], "mode": "gaussian", "overlap": 0.25}},
    "whole volume": {
        "inferer": {"_target_": "SimpleInferer"},
        "preprocessing": transforms([*CONFIG["preprocessing"]["transforms"], PAD]),
    },
    "windows, regions that overlap": {
        "network_def": {**CONFIG["network_def"], "out_channels": 2},
        "postprocessing": transforms(REGIONS),
    },
}
"""What differs from the config of the toy bundle, by kind."""


def make_bundle(root: Path, kind: str) -> Path:
    """Write a trained bundle."""
    metadata = copy.deepcopy(METADATA)
    if "regions" in kind:
        metadata["network_data_format"]["outputs"]["pred"]["channel_def"] = {"0": "organ", "1": "core"}
    config = {**copy.deepcopy(CONFIG), **KINDS[kind]}
    return write_bundle(root, config, metadata, iterations=ITERATIONS, as_yaml="YAML" in kind)


def masks(found: Any, overlapping: bool) -> list[Any]:
    """Return the masks of both structures; the first region holds the second."""
    if overlapping:
        return [found[0] > 0, found[1] > 0] if found.ndim == 4 else [found > 0, found == 2]
    return [found == 1, found == 2]


def dice(found: Any, reference: Any, overlapping: bool) -> float:
    """Return the mean Dice of both structures."""
    pairs = zip(masks(found, overlapping), masks(reference, overlapping), strict=True)
    return float(np.mean([2 * (one & two).sum() / (one.sum() + two.sum()) for one, two in pairs]))


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each scan and bundle."""
    import scantune
    from scantune.cli.main import main

    image, reference = toy_volume(SCAN)
    names = {shift: shift.replace(" ", "_").replace(".", "") for shift in SHIFTS}
    for shift, power in SHIFTS.items():
        write_volume(folder / "in" / f"{names[shift]}.nii.gz", image ** np.float32(power))
    write_data(folder / "data", PEOPLE)
    for number, kind in enumerate(KINDS):
        overlapping = "regions" in kind
        root, out = make_bundle(folder / str(number), kind), folder / f"out{number}"
        prior = folder / f"prior{number}.safetensors"
        infer_by_monai(root, folder / "in", out)
        words = ["fit", str(root), "--data", str(folder / "data"), "--out", str(prior)]
        assert main([*words, "--trust", "--device", "cpu"]) == 0
        model, known = scantune.load(root, trust=True), scantune.FieldOfExperts.load(prior)
        for shift, name in names.items():
            scan = folder / "in" / f"{name}.nii.gz"
            theirs = np.asarray(nibabel.load(out / f"{name}_trans.nii.gz").dataobj)
            theirs = np.moveaxis(theirs, -1, 0) if overlapping else theirs
            bare = scantune.adapt(model, scan, method="source", device="cpu").prediction
            kept = scantune.adapt(model, scan, prior=known, device="cpu")
            free = scantune.adapt(model, scan, prior=known, preset="converged", steps=STEPS, guard=False, device="cpu")
            assert bare.shape == theirs.shape
            yield {
                "bundle": kind,
                "shift": shift,
                "voxels": theirs.size,
                "other voxels": int((theirs != bare).sum()),
                "source": round(dice(bare, reference, overlapping), 4),
                "kept": round(dice(kept.prediction, reference, overlapping), 4),
                "decision": kept.decision.action,
                "unguarded": round(dice(free.prediction, reference, overlapping), 4),
                "energy before": round(free.energy_before or 0, 5),
                "energy after": round(free.energy_after or 0, 5),
            }


def page(found: list[dict[str, Any]]) -> str:
    """Return the rows as a page."""
    names = list(found[0])
    table = [" | ".join(str(row[name]) for name in names) for row in found]
    lines = [
        "# MONAI bundles",
        "",
        f"Made by `python scripts/bundle_results.py`: each network trained for {ITERATIONS} steps on made-up scans;",
        "one new scan. *Other voxels* differ between the prediction by `source` and that of MONAI's own workflow",
        "(`monai.bundle.ConfigWorkflow`, whose evaluator is built on ignite); regions count once each. The Dice is the",
        "mean of both structures: of the source prediction, of what is kept by default, and at the end of an unguarded",
        f"run (preset `converged`, {STEPS} steps). The prior is fitted to {PEOPLE} people.",
        "",
        f"| {' | '.join(names)} |",
        "|" + "---|" * len(names),
        *(f"| {line} |" for line in table),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Make the rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bundle.csv"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for row in rows(Path(folder)):
            print(row, flush=True)
            found.append(row)
    with given.out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    given.out.with_suffix(".md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
