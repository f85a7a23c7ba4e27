"""Peak memory of a 3D network that sees windows of a large volume and of a small one.

    python speed/windows.py [--only source adapt unguarded] [--steps 2] [--out results/speed-windows.md]

A volume of 300 x 512 x 512 voxels and one of 128 x 128 x 128 go through `scantune.adapt` in windows of 96 x 96 x 96
that overlap by half: by `method="source"`, by the default, which assesses its steps and gives up here, and without the
guard, so that the adapted network predicts the whole volume too. Each runs in a process of its own. The volume and the
scores of all classes have to be in memory. What is compared is the peak without these, of the whole process and beyond
what the process held before the call. The network is untrained and small, so that a map of the whole volume that nobody
needs would show. Figures of memory do not depend on other work on the machine, and every step needs the same.
"""

import argparse
import datetime
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scantune
from scantune import AdaptableNetwork, FieldOfExperts
from scantune.networks import Normalizer, UNet
from scantune.runtime.devices import peak_memory_mb, reset_peak_memory
from scantune.tasks import Segmentation

SIZES = ((128, 128, 128), (300, 512, 512))
WINDOW = (96, 96, 96)
SEED, WIDTH, HOME_PEOPLE = 5, 2, 3
ALLOWED = 1.2
"""Largest ratio of the memory beside the volume and the scores."""

RUNS: dict[str, dict[str, Any]] = {"source": {"method": "source"}, "adapt": {}, "unguarded": {"guard": False}}
"""Arguments of `scantune.adapt`, by name."""

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Peak:
    """Peak memory of one run, in MB.

    Args:
        run: Name of the run.
        size: Depth, height and width of the volume.
        given: Memory of the volume.
        scores: Memory of the scores that the result holds.
        before: Memory of the process before the call, with the volume.
        most: Peak of the process during the call.
        seconds: Processor time of the call.
        steps: Number of steps that were taken.
    """

    run: str
    size: tuple[int, ...]
    given: float
    scores: float
    before: float
    most: float
    seconds: float
    steps: int

    @property
    def beside(self) -> float:
        """Return the peak beside the volume and the scores."""
        return self.most - self.given - self.scores

    @property
    def beyond(self) -> float:
        """Return the same beyond what the process held before the call."""
        return self.most - self.before - self.scores

    def row(self) -> str:
        """Return a row of the table."""
        cells = [self.run, " x ".join(map(str, self.size)), str(self.steps)]
        cells += [f"{value:.0f}" for value in (self.most, self.given, self.scores, self.beside, self.beyond)]
        return f"| {' | '.join(cells)} | {self.seconds / 60:.1f} |"


def network() -> AdaptableNetwork:
    """Build the product's own 3D network with few channels, always the same; it finds too much in large volumes."""
    torch.manual_seed(SEED)
    normalizer = Normalizer.identity(1, hidden=WIDTH, dimensions=3)
    return AdaptableNetwork(normalizer, UNet(1, 2, WIDTH, dimensions=3)).eval()


def volume(size: tuple[int, ...], seed: int, inverted: bool = False) -> tuple[Tensor, Tensor]:
    """Make a bright ball in noise `(1, 1, depth, height, width)`, or its negative, and its labels."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(1, 1, *size, generator=generator).mul_(0.05).add_(0.2)
    axes = torch.meshgrid(*(torch.linspace(-1, 1, length) for length in size), indexing="ij")
    ball = axes[0] ** 2 + axes[1] ** 2 + axes[2] ** 2 < 0.4
    images[0, 0][ball] += 0.5
    images.clamp_(0, 1)
    return (images.neg_().add_(1) if inverted else images), ball.long()[None]


def fit(path: Path) -> None:
    """Fit a prior to windows and calibrate it, so that the default assesses the scan."""
    made = network()
    people = [volume(WINDOW, seed)[0] for seed in range(1, 2 * HOME_PEOPLE + 1)]
    prior = FieldOfExperts.fit(made, people[:HOME_PEOPLE], window=WINDOW, task=Segmentation())
    prior.calibrated(made, people[HOME_PEOPLE:]).save(path)


def measure(run: str, size: tuple[int, ...], steps: int | None, path: Path) -> Peak:
    """Adapt to a volume, and tell the peak memory."""
    made, prior, scan = network(), FieldOfExperts.load(path), volume(size, 0, inverted=True)[0]
    gc.collect()
    reset_peak_memory(CPU)
    before, start = peak_memory_mb(CPU), time.process_time()
    result = scantune.adapt(made, scan, prior=prior, device="cpu", steps=steps, **RUNS[run])
    seconds, most = time.process_time() - start, peak_memory_mb(CPU)
    scores = {id(each): each.probabilities for each in (result.source, result.adapted)}.values()
    held = sum(part.numel() * part.element_size() for part in scores)
    taken = max(len(result.trace) - 1, 0)
    print(result.decision.action, result.decision.reason, flush=True)
    # The status of a process counts a MB as 1000 kB of 1024 bytes.
    return Peak(run, size, scan.nbytes / 1.024e6, held / 1.024e6, before, most, seconds, taken)


def peaks(runs: list[str], steps: int | None) -> Iterator[Peak]:
    """Yield the peaks, the small volume first, each of a process of its own."""
    with (
        tempfile.TemporaryDirectory() as name,
        ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        path = Path(name) / "prior.safetensors"
        pool.submit(fit, path).result()
        for run in runs:
            for size in SIZES:
                yield pool.submit(measure, run, size, steps, path).result()


def report(found: list[Peak]) -> list[str]:
    """Return the table, and the ratios of the runs that are complete."""
    lines = [
        "| run | volume | steps | peak, MB | volume, MB | scores, MB | beside both | beyond start | processor, min |",
        "|---|---|---|---|---|---|---|---|---|",
        *(peak.row() for peak in found),
        "",
    ]
    for small, large in zip(found[::2], found[1::2], strict=False):
        ratios = f"{large.beside / small.beside:.2f} of the process, {large.beyond / small.beyond:.2f} beyond its start"
        lines.append(f"* {small.run}: large by small {ratios} (allowed {ALLOWED}).")
    return lines


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--steps", type=int, help="of the adaptation; by default the product's own number")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    head = [
        f"By `python speed/windows.py {' '.join(sys.argv[1:])}`:",
        f"{datetime.date.today()}, {torch.get_num_threads()} threads of {os.cpu_count()} processor cores, "
        f"torch {torch.__version__}",
        "",
    ]
    found: list[Peak] = []
    for peak in peaks(given.only, given.steps):
        found.append(peak)
        print(peak.row(), flush=True)
        if given.out:  # a run that is stopped leaves what it has measured
            lines = ["# Memory of windows", "", *head, *report(found), ""]
            given.out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
