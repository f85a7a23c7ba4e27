"""A tiny multi-centre data set in files, and an experiment on it that takes seconds."""

import csv
from pathlib import Path

import nibabel
import numpy as np

EXPERIMENT = """
[data]
dataset = "csv"
root = "{root}"
site = "home"
structures = {{ rim = 1, core = 2 }}

[preprocessing]
size = [32, 32]

[network]
width = 4

[train]
iterations = {iterations}
batch = 4
learning_rate = 1e-2
validate_every = {every}
checkpoint_every = {every}

[supervised]
iterations = 4
learning_rate = 1e-4
validate_every = 2

[prior]
size = 4
stride = 2
components = 2

[helpers.ae]
iterations = 4
batch = 2
features = "none"
validate_every = 2

[adapt]
preset = "paper"

[adapt.paper]
steps = {steps}
batch = 2

[experiment]
methods = ["strong baseline", "entropy", "foe-cnn", "supervised"]
score = "whole"
tier = "toy"

[experiment.rows."foe-cnn, fast"]
method = "foe-cnn"
preset = "fast"
"""


def write_scans(folder: Path) -> Path:
    """Discs with a core in noise, of a home centre and two others with other contrasts; returns the table of them."""
    x, y, _ = np.meshgrid(*[np.arange(n) - (n - 1) / 2 for n in (30, 32, 3)], indexing="ij")
    lines = []
    for site, power, splits in (
        ("home", 1.0, ("train", "train", "validation", "test")),
        ("north", 1.2, ("train", "validation", "test", "test")),
        ("south", 0.85, ("train", "validation", "test")),
    ):
        for number, split in enumerate(splits):
            rng = np.random.default_rng([len(lines)])
            radius = np.hypot(x - rng.uniform(-3, 3), y - rng.uniform(-3, 3))
            labels = np.select([radius < 4, radius < 9], [2, 1], 0).astype(np.uint8)
            clean = np.clip(0.1 + 0.4 * labels + rng.normal(0, 0.03, labels.shape), 0, 1)
            name = f"{site}{number}"
            for what, volume in (("image", (clean**power).astype(np.float32)), ("labels", labels)):
                image = nibabel.Nifti1Image(volume, np.diag([1.0, 1.0, 4.0, 1.0]))
                nibabel.save(image, folder / f"{name}_{what}.nii.gz")
            lines.append([f"{name}_image.nii.gz", f"{name}_labels.nii.gz", name, site, split])
    path = folder / "scans.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["image", "labels", "subject", "site", "split"], *lines])
    return path


def write_experiment(folder: Path, iterations: int = 6, every: int = 2, steps: int = 2) -> Path:
    """The experiment's file, with the scans that it names."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy.toml"
    path.write_text(
        EXPERIMENT.format(root=write_scans(folder), iterations=iterations, every=every, steps=steps), encoding="utf-8"
    )
    return path
