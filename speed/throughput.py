"""Whole scans, scans side by side, and training: how many in how much time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scan import model_file, simulated
from setup import Ground, Row

import scantune
from scantune import kernels
from scantune.adaptation.batch import adapt_scans
from scantune.adaptation.scan_run import Outcome, ScanObserver
from scantune.adaptation.settings import AdaptSettings
from scantune.config.settings import TrainSettings
from scantune.training import trainer
from scantune.training.examples import Example
from scantune.training.helpers import train_helper
from scantune.training.segmentation import train_network
from scantune.training.step import Step
from scantune.training.trainer import TrainingProgress

Tell = Callable[[TrainingProgress], None]


@contextmanager
def plain_steps() -> Iterator[None]:
    """As if there were no recording of steps, and no kernels of our own."""
    kept = trainer.step_for, kernels.works
    trainer.step_for, kernels.works = (lambda loss, optimizer, *_: Step(loss, optimizer)), (lambda _device: False)
    try:
        yield
    finally:
        trainer.step_for, kernels.works = kept


class Ends(ScanObserver):
    """Notes when scans end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def end(self, outcome: Outcome) -> None:
        """Note it."""
        assert outcome.status == "done", outcome.entry
        self.times.append(time.perf_counter())


def scans(on: Ground) -> Iterator[Row]:
    """A whole adaptation by the default preset, prediction included."""
    images, _ = on.scan("spgr-1.5T", on.slices, on.size)
    if on.device.type == "cuda":
        scantune.adapt(on.model, images, device=str(on.device))
    start = on.now()
    result = scantune.adapt(on.model, images, device=str(on.device))
    took = on.now() - start
    what = f"{on.slices} x {on.size} x {on.size}" + (", warm" if on.device.type == "cuda" else "")
    yield (
        f"a scan, default preset, {what}",
        f"{took:.2f} s, {result.facts['steps']} steps: {3600 / took:.0f} an hour",
    )
    yield from side_by_side(on)


def side_by_side(on: Ground) -> Iterator[Row]:
    """Scans an hour from file to files, by number of processes; the first ones of each are not counted."""
    each = 3 if on.device.type == "cuda" else 2
    with TemporaryDirectory() as name:
        model = model_file(Path(name), on.size, n4=False)
        numbers = (1, 2) if on.quick else (1, 2, 4, 8) if on.device.type == "cuda" else (1, 2, 4)
        paths = simulated(Path(name), on.slices, on.size, each * max(numbers), str(on.device))
        for workers in numbers:
            ends = Ends()
            settings = AdaptSettings(device=str(on.device))
            out = Path(name) / f"out-{workers}"
            start = time.perf_counter()
            adapt_scans(paths[: each * workers], model, out, settings, pages=False, workers=workers, observer=ends)
            rate = 3600 * (len(ends.times) - workers) / (ends.times[-1] - ends.times[workers - 1])
            first = ends.times[0] - start
            what = f"scans from file to files, {workers} at once, {on.slices} x {on.size} x {on.size}"
            yield what, f"{rate:.0f} an hour; the first after {first:.1f} s"


def training(on: Ground) -> Iterator[Row]:
    """Iterations a second, batch 16, all augmentations; and those of the helper networks."""
    images, labels = (part.cpu() for part in on.scan("source-3T-mprage", 16, on.size))
    examples, device = [Example(images, labels)], str(on.device)
    what = f"16 x {on.size} x {on.size}"
    for precision in ("float32", "bfloat16"):
        settings = TrainSettings(**stretch(on), device=device, precision=precision)

        def work(tell: Tell, settings: TrainSettings = settings) -> object:
            return train_network(examples, examples, settings, on_progress=tell)

        if on.device.type == "cuda":
            with plain_steps():
                yield f"training, batch {what}, {precision}, plain steps", pace(on, work)
        yield f"training, batch {what}, {precision}", pace(on, work)
    case = on.model.backend.prepare(next(on.cohort.cases("source-3T-mprage", "test", count=1, slices=1)))
    cases = [replace(case, volume=images, padding=None, reference=labels)]
    for method, more in (("ae", {}), ("dae", {"corruptions": 1})):
        chosen = {**stretch(on), "precision": "bfloat16", **more}

        def work(tell: Tell, method: str = method, chosen: dict[str, object] = chosen) -> object:
            return train_helper(on.model, method, cases, cases, chosen, device=device, on_progress=tell)

        yield f"training of the networks of `{method}`, {what}, bfloat16", pace(on, work)


def stretch(on: Ground) -> dict[str, int]:
    """How long to train, and how often to look at the clock: where a run is saved, were it saved."""
    iterations, every = (300, 1000) if on.device.type == "cuda" else (4, 1)
    return {"iterations": iterations, "validate_every": 1000, "checkpoint_every": every}


def pace(on: Ground, work: Callable[[Tell], object]) -> str:
    """Iterations a second once a run has begun and before its last look, and how long it took to begin."""
    marks = [(0, on.now())]
    work(lambda progress: marks.append((progress.iteration, on.now())))
    _, (first, begun), *_, (last, end), _ = marks
    rate = (last - first) / (end - begun)
    return f"{rate:.3g} iterations/s; the first {first} within {begun - marks[0][1]:.1f} s"
