"""How fast adaptation is, in one table: steps, time to the objective, memory, training, whole scans, and how they grow.

    python bench/speed.py [--quick] [--device cpu] [--slices 16] [--paper-steps 1000] [--out results/speed.md]

Everything is compared with the plain rendering of the same objective (tests/plain.py) in the same run. The network is
the bundled `brain`, the scan a simulated one of its cohort, stretched to the size that is asked for. Seeds are fixed.
Times are wall times, the best of a few; --clock processor gives processor time, which other work on the machine
disturbs less. --quick is for a look: smaller scans, fewer repetitions, 20 steps of the paper.
"""

import argparse
import datetime
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from scan import model_file, simulated

import scantune
from plain import Plain
from scantune import AdaptableNetwork, FieldOfExperts, kernels, lesson
from scantune.batch import AdaptSettings, adapt_scans
from scantune.experts import PatchSettings
from scantune.helpers import train_helper
from scantune.learning import Progress
from scantune.methods import Equipment
from scantune.methods.foe import FoECNNPCA
from scantune.networks import lay_out
from scantune.optimise import Gradients, Schedule, objective_at, optimise
from scantune.outcomes import Observer, Outcome
from scantune.sampling import WholeVolume
from scantune.settings import TrainSettings
from scantune.simulate import COHORTS
from scantune.slices import Example
from scantune.solvers import LBFGS
from scantune.stability import agreements
from scantune.stepping import Step
from scantune.tasks import Segmentation
from scantune.train import train
from scantune.volumes import Volume

Row = tuple[str, str]
Tell = Callable[[Progress], None]


@contextmanager
def plain_steps() -> Iterator[None]:
    """As if there were no recording of steps, and no kernels of our own."""
    kept = lesson.step_for, kernels.works
    lesson.step_for, kernels.works = (lambda loss, optimizer, *_: Step(loss, optimizer)), (lambda _device: False)
    try:
        yield
    finally:
        lesson.step_for, kernels.works = kept


STEPS = 12
"""Gradients by which Dice are compared: those of preset `fast`."""

NUDGE = 1e-7
"""Share of parameters that float32 rounds by, about."""

WARM = 2
"""Calls that are not timed: the first compiles kernels, the second records them, where there is a GPU."""


class Ends(Observer):
    """Notes when scans end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def end(self, outcome: Outcome) -> None:
        """Note it."""
        assert outcome.status == "done", outcome.entry
        self.times.append(time.perf_counter())


class Bench:
    """One device, one clock, one model; every measurement is a method that yields rows of the table."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.quick, self.paper_steps = arguments.quick, arguments.paper_steps
        self.device = torch.device(arguments.device)
        self.tick = time.process_time if arguments.clock == "processor" else time.perf_counter
        self.repeats = 2 if arguments.quick else 5
        self.slices, self.size = arguments.slices, arguments.size
        self.centre, self.person, self.history = arguments.centre, arguments.person, arguments.history
        self.model = scantune.load("brain")
        assert self.model.prior is not None
        self.network = self.model.network.to(self.device).eval()
        self.prior = self.model.prior.to(self.device)
        self.cohort = COHORTS["contrasts"]

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.tick()

    def best(self, work: Callable[[], object]) -> float:
        """Seconds of one call, the best of some after those that warm up."""
        times = []
        for _ in range(self.repeats + WARM):
            start = self.now()
            work()
            times.append(self.now() - start)
        return min(times[WARM:])

    def scan(self, centre: str, slices: int, size: int, start: int = 0) -> tuple[Tensor, Tensor]:
        """A simulated scan `(slices, 1, size, size)` and its labels `(slices, size, size)`."""
        case = next(self.cohort.cases(centre, "test", start=start, count=start + 1, slices=min(slices, 16)))
        prepared = self.model.preprocessing.apply(case)
        assert prepared.reference is not None
        images = F.interpolate(prepared.volume, size=(size, size), mode="bilinear")
        labels = F.interpolate(prepared.reference[:, None].float(), size=(size, size)).long()[:, 0]
        again = torch.arange(slices) % len(images)
        return images[again].to(self.device), labels[again].to(self.device)

    def step(
        self, network: AdaptableNetwork, prior: FieldOfExperts, images: Tensor, kept: int | None = None
    ) -> Callable[[], object]:
        """What one step of `fast` computes."""
        method = FoECNNPCA(Equipment(Segmentation(), prior))
        working = deepcopy(network).requires_grad_(False)
        lay_out(working, "channels last")
        moving = list(method.parameters(working).values())
        method.prepare(working)
        for parameter in moving:
            parameter.requires_grad_(True)
        volume, generator = Volume(images), torch.Generator()
        method.start(volume, generator)
        return Gradients(method, moving, volume, WholeVolume(kept=kept), generator)

    def steps(self) -> Iterator[Row]:
        """A step against the plain rendering, by density."""
        images, _ = self.scan("spgr-1.5T", self.slices, self.size)
        generator = torch.Generator().manual_seed(0)
        plain = Plain(self.network, self.prior)
        slow = self.best(lambda: plain.epoch(images, generator))
        fast = self.best(self.step(self.network, self.prior, images))
        bounded = self.best(self.step(self.network, self.prior, images, kept=0))
        what = f"{self.slices} x {self.size} x {self.size}"
        yield f"step, plain rendering, {what}", f"{1e3 * slow:.1f} ms"
        yield f"step, {what}", f"{1e3 * fast:.1f} ms, {slow / fast:.1f} x faster"
        yield f"step at the memory of one batch, {what}", f"{1e3 * bounded:.1f} ms, {slow / bounded:.1f} x faster"
        subjects = [self.scan("source-3T-mprage", 8, self.size, start)[0] for start in (0, 1)]
        for density in ("gaussian", "kde", "histogram"):
            start = self.now()
            prior = FieldOfExperts.fit(self.network, subjects, density=density).to(self.device)
            each = (self.now() - start) / len(subjects) / 8
            yield f"prior fit, {density}, a slice of {self.size} x {self.size}", f"{1e3 * each:.1f} ms"
            if density != "gaussian":
                other = self.best(self.step(self.network, prior, images))
                yield f"step, {density}, {what}", f"{1e3 * other:.1f} ms, {other / fast:.1f} of the Gaussian step"

    def objective(self) -> Iterator[Row]:
        """Seconds to the objective that the paper's steps reach, stopping off."""
        size = 128 if self.quick else self.size
        images, _ = self.scan(self.centre, self.slices, size, self.person)
        volume = Volume(images)

        def method() -> FoECNNPCA:
            return FoECNNPCA(Equipment(Segmentation(), self.prior))

        def paper(steps: int) -> scantune.Result:
            where = str(self.device)
            return scantune.adapt(self.model, images, preset="paper", steps=steps, guard=False, device=where)

        if self.device.type == "cuda":
            paper(3)  # kernels for batches of this size are compiled, once on a machine
        start = self.now()
        adapted = paper(self.paper_steps).network
        spent = self.now() - start
        target = objective_at(deepcopy(adapted).requires_grad_(False), method(), volume, WholeVolume(), 0)
        plain = Plain(self.network, self.prior)
        generator = torch.Generator().manual_seed(0)
        slow = self.best(lambda: plain.epoch(images, generator)) * self.paper_steps
        marks = [self.now()]
        working = deepcopy(self.network).requires_grad_(False)
        lay_out(working, "channels last")
        schedule = Schedule(WholeVolume(), LBFGS(self.history), steps=20 if self.quick else 100)
        course = optimise(working, method(), volume, schedule, 0, lambda *_: marks.append(self.now()))
        reached = [n for n, row in enumerate(course.trace) if row["objective"] <= target]
        what = f"{self.paper_steps} paper steps, {self.slices} x {size} x {size}"
        yield f"objective after {what}", f"{target:.4f}, from {course.start:.4f}"
        yield f"{what}, plain rendering", f"{slow:.0f} s"
        yield f"{what}", f"{spent:.0f} s"
        if not reached:
            yield "the same objective by `fast`", f"not within {schedule.steps} gradients: {course.end:.4f}"
            return
        took = marks[min(reached[0] + 1, len(marks) - 1)] - marks[0]
        faster = f"{slow / took:.0f} x faster than the plain rendering, {spent / took:.0f} x than the paper's steps"
        yield "the same objective by `fast`", f"{took:.1f} s, {reached[0] + 1} gradients: {faster}"

    def dice(self) -> Iterator[Row]:
        """What the same steps lead to by the plain rendering and by the fast path, at every centre of the cohort.

        And by the plain rendering itself from a start that rounding could have moved, which tells how far apart two
        correct runs are.
        """
        apart, own = [], []
        for centre in self.cohort.centres:
            images, labels = self.scan(centre, self.slices, 128 if self.quick else self.size)
            ways = self._plainly(images), self._fast(images), self._plainly(images, NUDGE)
            plain, fast, nudged = (self._dice(network, images, labels) for network in ways)
            apart.append(abs(fast - plain))
            own.append(abs(nudged - plain))
            figures = f"{plain:.4f} and {fast:.4f}; {nudged:.4f}"
            yield f"Dice at {centre}, plain rendering and fast path; plain rendering, nudged", figures
        yield f"largest difference of Dice after {STEPS} gradients, fast path", f"{max(apart):.4f}"
        yield f"the same, plain rendering whose start is nudged by {NUDGE:g} of it", f"{max(own):.4f}"

    def _fast(self, images: Tensor) -> AdaptableNetwork:
        working = deepcopy(self.network).requires_grad_(False)
        lay_out(working, "channels last")
        method = FoECNNPCA(Equipment(Segmentation(), self.prior))
        course = optimise(working, method, Volume(images), Schedule(WholeVolume(), LBFGS(), STEPS), 0)
        adapted = deepcopy(self.network)
        adapted.load_state_dict(course.state, strict=False)
        return adapted

    def _plainly(self, images: Tensor, nudge: float = 0.0) -> AdaptableNetwork:
        """The best of as many gradients by the same solver, from parameters that are moved by a share of them."""
        plain = Plain(self.network, self.prior)
        moving = list(plain.network.normalizer.parameters())
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in moving:
                parameter *= 1 + nudge * torch.randn(parameter.shape, generator=generator).to(parameter)
        best = float("inf")
        state = deepcopy(plain.network.state_dict())
        looks = 0

        def evaluate() -> Tensor:
            nonlocal best, state, looks
            objective = plain.gradient(images)[0]
            if objective < best:
                best, state = objective, deepcopy(plain.network.state_dict())
            looks += 1
            if looks > STEPS:
                raise StopIteration
            return torch.tensor(objective)

        with suppress(StopIteration):
            LBFGS().run(moving, evaluate, 0.0, STEPS)
        plain.network.load_state_dict(state)
        return plain.network

    @torch.no_grad()
    def _dice(self, network: AdaptableNetwork, images: Tensor, labels: Tensor) -> float:
        """Mean over structures."""
        predicted = torch.cat([Segmentation().predict(network(part)) for part in images.split(4)])
        return fmean(agreements(predicted, labels, int(labels.max())))

    def memory(self) -> Iterator[Row]:
        """Peak memory of a step; on a CPU of the process, in one of its own."""
        for slices in (16,) if self.quick else (16, 48, 160):
            what = f"peak memory of a step, {slices} x {self.size} x {self.size}"
            yield what, self._peak_on_gpu(slices) if self.device.type == "cuda" else self._peak_of_process(slices)

    def _peak_on_gpu(self, slices: int) -> str:
        images, _ = self.scan("spgr-1.5T", slices, self.size)
        work = self.step(self.network, self.prior, images)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(WARM + 1):
            work()
        return f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"

    def _peak_of_process(self, slices: int) -> str:
        words = [sys.executable, __file__, "--only", "peak", "--slices", str(slices), "--size", str(self.size)]
        done = subprocess.run([*words, "--device", str(self.device)], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def peak(self) -> Iterator[Row]:
        """Of this process."""
        images, _ = self.scan("spgr-1.5T", self.slices, self.size)
        self.step(self.network, self.prior, images)()
        yield "", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"

    def scans(self) -> Iterator[Row]:
        """A whole adaptation by the default preset, prediction included."""
        images, _ = self.scan("spgr-1.5T", self.slices, self.size)
        if self.device.type == "cuda":
            scantune.adapt(self.model, images, device=str(self.device))
        start = self.now()
        result = scantune.adapt(self.model, images, device=str(self.device))
        took = self.now() - start
        what = f"{self.slices} x {self.size} x {self.size}" + (", warm" if self.device.type == "cuda" else "")
        yield (
            f"a scan, default preset, {what}",
            f"{took:.2f} s, {result.facts['steps']} steps: {3600 / took:.0f} an hour",
        )
        yield from self.side_by_side()

    def side_by_side(self) -> Iterator[Row]:
        """Scans an hour from file to files, by number of processes; the first ones of each are not counted."""
        each = 3 if self.device.type == "cuda" else 2
        with TemporaryDirectory() as name:
            model = model_file(Path(name), self.size, n4=False)
            numbers = (1, 2) if self.quick else (1, 2, 4, 8) if self.device.type == "cuda" else (1, 2, 4)
            paths = simulated(Path(name), self.slices, self.size, each * max(numbers), str(self.device))
            for workers in numbers:
                ends = Ends()
                settings = AdaptSettings(device=str(self.device))
                out = Path(name) / f"out-{workers}"
                start = time.perf_counter()
                adapt_scans(paths[: each * workers], model, out, settings, pages=False, workers=workers, observer=ends)
                rate = 3600 * (len(ends.times) - workers) / (ends.times[-1] - ends.times[workers - 1])
                first = ends.times[0] - start
                what = f"scans from file to files, {workers} at once, {self.slices} x {self.size} x {self.size}"
                yield what, f"{rate:.0f} an hour; the first after {first:.1f} s"

    def training(self) -> Iterator[Row]:
        """Iterations a second, batch 16, all augmentations; and those of the helper networks."""
        images, labels = (part.cpu() for part in self.scan("source-3T-mprage", 16, self.size))
        examples, device = [Example(images, labels)], str(self.device)
        what = f"16 x {self.size} x {self.size}"
        for precision in ("float32", "bfloat16"):
            settings = TrainSettings(**self.stretch(), device=device, precision=precision)

            def work(tell: Tell, settings: TrainSettings = settings) -> object:
                return train(examples, examples, settings, on_progress=tell)

            if self.device.type == "cuda":
                with plain_steps():
                    yield f"training, batch {what}, {precision}, plain steps", self.pace(work)
            yield f"training, batch {what}, {precision}", self.pace(work)
        case = self.model.preprocessing.apply(next(self.cohort.cases("source-3T-mprage", "test", count=1, slices=1)))
        cases = [replace(case, volume=images, padding=None, reference=labels)]
        for method, more in (("ae", {}), ("dae", {"corruptions": 1})):
            chosen = {**self.stretch(), "precision": "bfloat16", **more}

            def work(tell: Tell, method: str = method, chosen: dict[str, object] = chosen) -> object:
                return train_helper(self.model, method, cases, cases, chosen, device=device, on_progress=tell)

            yield f"training of the networks of `{method}`, {what}, bfloat16", self.pace(work)

    def stretch(self) -> dict[str, int]:
        """How long to train, and how often to look at the clock: where a run is saved, were it saved."""
        iterations, every = (300, 1000) if self.device.type == "cuda" else (4, 1)
        return {"iterations": iterations, "validate_every": 1000, "checkpoint_every": every}

    def pace(self, work: Callable[[Tell], object]) -> str:
        """Iterations a second once a run has begun and before its last look, and how long it took to begin."""
        marks = [(0, self.now())]
        work(lambda progress: marks.append((progress.iteration, self.now())))
        _, (first, begun), *_, (last, end), _ = marks
        rate = (last - first) / (end - begun)
        return f"{rate:.3g} iterations/s; the first {first} within {begun - marks[0][1]:.1f} s"

    def growth(self) -> Iterator[Row]:
        """A step by slices, image size and width of the network."""
        for slices in (8, 16) if self.quick else (8, 16, 48, 160):
            images, _ = self.scan("spgr-1.5T", slices, 128)
            took = self.best(self.step(self.network, self.prior, images))
            yield f"step, {slices} x 128 x 128", f"{1e3 * took:.1f} ms"
        for size in (128, 192) if self.quick else (128, 256, 512):
            images, _ = self.scan("spgr-1.5T", 8, size)
            took = self.best(self.step(self.network, self.prior, images))
            yield f"step, 8 x {size} x {size}", f"{1e3 * took:.1f} ms"
        images, _ = self.scan("spgr-1.5T", 8, 128)
        for width in (8, 16) if self.quick else (8, 16, 32, 64):
            torch.manual_seed(0)
            network = AdaptableNetwork.default(classes=4, width=width).to(self.device).eval()
            patches = PatchSettings(threshold=0.0)
            prior = FieldOfExperts.fit(network, [images], patches=patches).to(self.device)
            took = self.best(self.step(network, prior, images))
            yield f"step, 8 x 128 x 128, width {width}, untrained", f"{1e3 * took:.1f} ms"


PARTS = ("steps", "objective", "dice", "memory", "scans", "training", "growth")


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = models[0].split(":")[1].strip() if models else platform.processor()
    return f"{name}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--paper-steps", type=int)
    parser.add_argument("--centre", default="spgr-1.5T", help="whose scan `objective` is of")
    parser.add_argument("--person", type=int, default=0, help="of the centre's people")
    parser.add_argument("--history", type=int, default=LBFGS().history, help="of the quasi-Newton steps")
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "peak"], default=PARTS)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    chosen.paper_steps = chosen.paper_steps or (20 if chosen.quick else 1000)
    bench = Bench(chosen)
    head = [f"{datetime.date.today()}, {device_name(bench.device)}, torch {torch.__version__}, {chosen.clock} time", ""]
    lines = [f"By `python bench/speed.py {' '.join(sys.argv[1:])}`:", *head, "| what | |", "|---|---|"]
    for part in chosen.only:
        start = bench.now()
        for what, figure in getattr(bench, part)():
            lines.append(f"| {what} | {figure} |")
            print(f"{what}: {figure}" if what else figure, flush=True)
            if chosen.out:  # a run that is stopped leaves what it has measured
                chosen.out.write_text("# Speed\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        if part != "peak":
            print(f"({part} took {bench.now() - start:.0f} s)", flush=True)
