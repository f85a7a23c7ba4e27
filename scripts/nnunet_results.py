"""What becomes of nnU-Net folders: predictions compared with `nnUNetv2_predict`, and adaptations to shifted scans.

    python scripts/nnunet_results.py [--out results/nnunet.csv]

Writes rows, and a page of the same name beside them. Plans come from nnU-Net's own planner; its networks get a quarter
of the channels and are trained for a moment on made-up scans with structures that look alike.
"""

import argparse
import csv
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the toy network of the tests

from tests.toy_bundle import AFFINE, toy_volume
from tests.toy_nnunet import predict_by_nnunet, write_raw, write_results, write_scan

ITERATIONS, STEPS = 120, 20
"""Of a training, and of an unguarded adaptation."""

SHIFTS = {"none": 1.0, "gamma 0.45": 0.45}
"""Powers that are taken of the intensities."""

MODELS = {"2d": ("0", "1"), "3d_fullres": ("0",)}
"""Folds by configuration."""

SCAN = 7
"""Seed of the scan that is predicted, which no network has seen."""


def look_alikes(seed: int, shape: tuple[int, ...] = (26, 24, 14)) -> tuple[Any, Any]:
    """A ball with a core as in the tests, and two balls of background in the intensities between."""
    image, labels = toy_volume(seed, shape)
    rng = np.random.default_rng(1000 + seed)
    steps = np.linalg.norm(AFFINE[:3, :3], axis=0)
    places = np.stack(np.meshgrid(*[step * np.arange(n) for n, step in zip(shape, steps, strict=True)], indexing="ij"))
    for value in (0.3, 0.65):
        corner = rng.integers(0, 2, 3) * (np.array(shape) - 1) * steps
        away = np.linalg.norm(places - corner[:, None, None, None], axis=0)
        there = (away < rng.uniform(9, 11)) & (labels == 0)
        image = np.where(there, value + rng.normal(0, 0.04, shape), image)
    return image.clip(0, 1).astype(np.float32), labels


def make_plans(folder: Path) -> dict[str, Any]:
    """Return the plans of nnU-Net's own planner for a raw data set, with a quarter of the channels."""
    from nnunetv2.experiment_planning.plan_and_preprocess_api import (
        extract_fingerprint_dataset,
        plan_experiment_dataset,
    )

    write_raw(folder / "raw" / "Dataset501_Balls", 5, volume=look_alikes)
    extract_fingerprint_dataset(501, num_processes=1, verbose=False, show_progress_bar=False)
    plan_experiment_dataset(501)
    text = (folder / "preprocessed" / "Dataset501_Balls" / "nnUNetPlans.json").read_text(encoding="utf-8")
    plans: dict[str, Any] = json.loads(text)
    for configuration in plans["configurations"].values():
        sizes = configuration["architecture"]["arch_kwargs"]
        sizes["features_per_stage"] = [features // 4 for features in sizes["features_per_stage"]]
    return plans


def dice(found: Any, reference: Any) -> float:
    """Return the mean Dice of both structures."""
    pairs = [(found == label, reference == label) for label in (1, 2)]
    return float(np.mean([2 * (one & two).sum() / (one.sum() + two.sum()) for one, two in pairs]))


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each scan and model."""
    import scantune
    from scantune.cli.main import main

    plan = make_plans(folder)
    image, reference = look_alikes(SCAN)
    names = {name: name.replace(" ", "_").replace(".", "") for name in SHIFTS}
    for shift, power in SHIFTS.items():
        write_scan(folder / "in", names[shift], image ** np.float32(power))
    for configuration, folds in MODELS.items():
        root = write_results(
            folder / "results", configuration, folds, iterations=ITERATIONS, plan=plan, volume=look_alikes
        )
        out, prior = folder / configuration, folder / "prior.safetensors"
        predict_by_nnunet(root, folder / "in", out, folds)
        words = ["fit", str(root), "--data", str(folder / "raw" / "Dataset501_Balls"), "--out", str(prior)]
        assert main([*words, "--trust", "--device", "cpu"]) == 0
        model, known = scantune.load(root, trust=True), scantune.FieldOfExperts.load(prior)
        for shift, name in names.items():
            scan = folder / "in" / f"{name}_0000.nii.gz"
            theirs = np.asarray(nibabel.load(out / f"{name}.nii.gz").dataobj)
            kept = scantune.adapt(model, scan, prior=known, device="cpu")
            free = scantune.adapt(model, scan, prior=known, preset="converged", steps=STEPS, guard=False, device="cpu")
            source = kept.source_prediction
            yield {
                "configuration": configuration,
                "folds": len(folds),
                "shift": shift,
                "voxels": theirs.size,
                "other voxels": int((theirs != source).sum()),
                "source": round(dice(source, reference), 4),
                "kept": round(dice(kept.prediction, reference), 4),
                "decision": kept.decision.action,
                "unguarded": round(dice(free.prediction, reference), 4),
                "energy before": round(free.energy_before or 0, 5),
                "energy after": round(free.energy_after or 0, 5),
            }


def page(found: list[dict[str, Any]]) -> str:
    """Return the rows as a page."""
    names = list(found[0])
    table = [" | ".join(str(row[name]) for name in names) for row in found]
    lines = [
        "# nnU-Net folders",
        "",
        "Made by `python scripts/nnunet_results.py`: plans by nnU-Net's own planner, a quarter of the channels, each",
        f"network trained for {ITERATIONS} steps on made-up scans; one new scan. *Other voxels* differ",
        "between the source prediction and `nnUNetv2_predict_from_modelfolder`. The Dice is the mean of both",
        "structures: of the source prediction, of what is kept by default, and at the end of an unguarded run (preset",
        f"`converged`, {STEPS} steps). The prior is calibrated on a single held-out scan.",
        "",
        f"| {' | '.join(names)} |",
        "|" + "---|" * len(names),
        *(f"| {line} |" for line in table),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Make the rows and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/nnunet.csv"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("raw", "preprocessed", "results"):
            (Path(folder) / kind).mkdir()
            os.environ[f"nnUNet_{kind}"] = str(Path(folder) / kind)
        os.environ |= {"nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "1"}
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
