"""How much more two warm Ray workers get done than one.

    python scripts/bench_throughput.py --out FOLDER [--jobs 12] [--slices 12] [--steps 12]

Trains a small network for a moment, fits its prior, then adapts it to simulated scans of the spine, with one worker and
then with two, a torch thread each. Time is taken from when every worker has done one such job. Prints seconds a job,
jobs a minute and their ratio; jobs of 5 s or more say something (raise --slices or --steps). Both cores must be free.
"""

import argparse
import functools
import os
import time
from pathlib import Path
from statistics import fmean

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in the workers

from scantune.benchmark.engines import EngineSettings, JobOutcome, RayEngine
from scantune.benchmark.expand import Selection
from scantune.benchmark.experiment import Experiment
from scantune.benchmark.jobs import Job
from scantune.benchmark.run import BenchObserver, bench
from scantune.benchmark.store import Store

CENTRES = 3
SMALL = [
    *("train.iterations=20", "train.batch=4", "train.validate_every=20", "train.precision=float32"),
    *("train.compile=false", "network.width=8", "data.train=2", "data.validation=1"),
    *("adapt.preset=fast", "experiment.watch=[]", "experiment.keep=0", "experiment.methods=['foe-cnn']"),
]


class Stopwatch(BenchObserver):
    """Notes when adaptations begin and end, and which worker does them."""

    def __init__(self) -> None:
        self.workers: dict[str, int] = {}
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}

    def start(self, job: Job) -> None:
        self.begun[job.key] = time.perf_counter()

    def tick(self, store: Store) -> None:
        self.workers |= {key: told["pid"] for key, told in store.progress().items()}

    def end(self, job: Job, ended: JobOutcome) -> None:  # noqa: ARG002
        if job.kind == "adapt":
            self.ended[job.key] = time.perf_counter()

    def since(self, workers: int) -> tuple[float, list[str]]:
        """When every worker had done one adaptation, and those that ended later."""
        done = sorted(self.ended, key=self.ended.__getitem__)
        for place in range(len(done)):
            if len({self.workers[key] for key in done[: place + 1]}) == workers:
                return self.ended[done[place]], done[place + 1 :]
        raise SystemExit("Some worker did nothing; take more --jobs, and a new --out.")


def measure(workers: int, arguments: argparse.Namespace) -> float:
    """Jobs a minute."""
    size = [f"data.slices={arguments.slices}", f"adapt.fast.steps={arguments.steps}"]
    experiment = Experiment.read("spine", [*SMALL, *size])
    engine = functools.partial(RayEngine, settings=EngineSettings(workers, threads=1, device="cpu"))
    people = -(-(arguments.jobs + workers) // CENTRES)
    watch = Stopwatch()
    summary = bench(experiment, Path(arguments.out) / f"workers-{workers}", engine, Selection(count=people), watch)
    if summary.failed:
        raise SystemExit("\n".join(f"{job.title}: {reason}" for job, reason in summary.failed))
    warm, keys = watch.since(workers)
    rate = 60 * len(keys) / (max(watch.ended[key] for key in keys) - warm)
    took = fmean(watch.ended[key] - watch.begun[key] for key in keys)
    print(f"{workers} worker(s): {len(keys)} jobs, {rate:.2f} a minute, {took:.1f} s each", flush=True)
    return rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="a new folder")
    parser.add_argument("--jobs", type=int, default=12, help="after the first of each worker")
    parser.add_argument("--slices", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    chosen = parser.parse_args()
    one, two = (measure(workers, chosen) for workers in (1, 2))
    print(f"ratio {two / one:.2f}")
