"""Seconds that one simulated scan of 256 x 256 x 24 voxels takes, by cohort.

    python scripts/simulation_speed.py [--device cuda] [--threads 2] [--atlases FOLDER]

The protocol is that of the cohort's first centre with a field of view of 256 voxels; FOLDER has brain.npz and wmh.npz,
for machines without nilearn. The first scan is not counted. On shared cores give --threads 1: threads that wait for one
another cost far more than they save.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from scantune.simulate import COHORTS, Atlas

NAMES = ("prostate", "cardiac", "spine", "brain", "wmh")
PEOPLE = 4


def seconds(name: str, device: str, atlases: Path | None) -> float:
    """Mean over the scans of a few people."""
    cohort = COHORTS[name]
    path = None if atlases is None else atlases / f"{name}.npz"
    anatomy = cohort.made_from(Atlas.load(path)) if path is not None and path.exists() else cohort.anatomy()
    centre = cohort.centres[cohort.source]
    edge = 256 * centre.protocol.in_plane
    square = replace(centre, protocol=replace(centre.protocol, fov=(edge, edge)))
    cohort = replace(cohort, given={cohort.source: square})
    people = anatomy.to(device)
    scans = cohort.cases(cohort.source, "test", anatomy=people, count=1 + PEOPLE, slices=24, device=device)
    for _ in anatomy.states:
        next(scans)
    started = time.perf_counter()
    count = sum(1 for _ in scans)  # scans come back as arrays, so that a GPU has finished with them
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--atlases", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    for each in NAMES:
        print(f"{each}: {seconds(each, chosen.device, chosen.atlases):.3f} s", flush=True)
