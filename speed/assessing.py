"""Share of the assessment in the processor time of a run, for 3D networks that see windows of a volume.

    python speed/assessing.py [--window 32] [--windows 3] [--out results/speed-assessing.md]

A scan goes through `scantune.adapt` with its defaults, for a U-Net and for three convolutions, both untrained. With a
prior of volumes of its own size it is left alone; with one of volumes as small as a window its sizes have failed, so
that it is adapted to the end. The assessment is all that the guard does: predictions of perturbed windows by the source
network and by stages, and what is read off them. Priors without readings of home scans, as version 0.1 wrote them, get
the guard of that version, which is measured too.
"""

import argparse
import datetime
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import scantune
from scantune import AdaptableNetwork, FieldOfExperts
from scantune.adaptation import adapt as adapting
from scantune.adaptation.scan_guard import ScanGuard
from scantune.networks import Normalizer, UNet
from scantune.prior.prediction_reader import PredictionReader
from scantune.tasks import Segmentation

SEED, WIDTH, HOME_PEOPLE = 3, 8, 3
ALLOWED = 0.25
"""Largest share of the processor time of a run."""


def unet() -> nn.Module:
    """Build an untrained U-Net."""
    return UNet(1, 2, WIDTH, dimensions=3)


def three() -> nn.Module:
    """Build three untrained convolutions."""
    layers = nn.Conv3d(1, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv3d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.Conv3d(WIDTH, 2, 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {f"U-Net of width {WIDTH}": unet, "three convolutions": three}


def volume(size: tuple[int, ...], seed: int) -> Tensor:
    """Make a bright ball in noise `(1, 1, depth, height, width)`."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, length) for length in size), indexing="ij")
    ball = sum(axis**2 for axis in axes) < 0.4
    return (0.2 + 0.5 * ball + 0.05 * torch.randn(1, 1, *size, generator=generator)).clamp(0, 1)


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Add the processor time of what the guard does to an entry `guard`, while it is entered."""

    def counting(work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            start = time.process_time()
            result = work(*args, **more)
            spent["guard"] += time.process_time() - start
            return result

        return counted

    with (
        patch.object(PredictionReader, "read", counting(PredictionReader.read)),
        patch.object(ScanGuard, "verdict", counting(ScanGuard.verdict)),
        patch.object(adapting, "guard_scan", counting(adapting.guard_scan)),
    ):
        yield


def measure(network: AdaptableNetwork, scan: Tensor, prior: FieldOfExperts) -> tuple[str, int, float, float]:
    """Return the decision, the number of steps, and the processor seconds of the run and of the assessment."""
    spent = {"guard": 0.0}
    start = time.process_time()
    with timed(spent):
        result = scantune.adapt(network, scan, prior=prior, device="cpu")
    return result.decision.action, max(len(result.trace) - 1, 0), time.process_time() - start, spent["guard"]


def rows(window: int, windows: int) -> Iterator[str]:
    """Yield the rows of the table."""
    extent, size = (window,) * 3, (window * windows,) * 3
    for name, build in NETWORKS.items():
        torch.manual_seed(SEED)
        network = AdaptableNetwork(Normalizer.identity(1, dimensions=3), build()).eval()
        scan = volume(size, 0)
        for home, kind in ((extent, "a window"), (size, "the scan")):
            people = [volume(home, seed) for seed in range(1, 2 * HOME_PEOPLE + 1)]
            fitted = FieldOfExperts.fit(network, people[:HOME_PEOPLE], window=extent, task=Segmentation(), read=0)
            known = fitted.calibrated(network, people[HOME_PEOPLE:])
            old = replace(fitted, calibration=None)
            for prior, guard in ((known, "assessment"), (old, "version 0.1")):
                if prior is known or home is size:
                    action, steps, seconds, judging = measure(network, 1 - scan if prior is old else scan, prior)
                    cells = [name, guard, kind, action, str(steps), f"{seconds:.1f}", f"{judging:.1f}"]
                    yield f"| {' | '.join(cells)} | {judging / seconds:.0%} |"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=32, help="voxels of a window along each axis")
    parser.add_argument("--windows", type=int, default=3, help="windows along each axis that do not overlap")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    number = math.prod((2 * given.windows - 1,) * 3)
    lines = [
        "# Cost of the assessment",
        "",
        f"By `python speed/assessing.py --window {given.window} --windows {given.windows}`:",
        f"{datetime.date.today()}, {torch.get_num_threads()} threads, torch {torch.__version__}. Volumes of",
        f"{' x '.join(map(str, (given.window * given.windows,) * 3))} voxels, which {number} windows of "
        f"{' x '.join(map(str, (given.window,) * 3))} predict. Processor seconds; at most {ALLOWED:.0%} are allowed.",
        "",
        "| network | guard | home volumes as large as | decision | steps | run | its assessment | share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows(given.window, given.windows):
        print(row, flush=True)
        lines.append(row)
    if given.out:
        given.out.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
