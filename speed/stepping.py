"""Steps of adaptation: how long they take against the plain rendering, to an objective, and how they grow."""

from collections.abc import Iterator
from copy import deepcopy

import torch
from setup import Ground, Row
from tests.plain import Plain

import scantune
from scantune import AdaptableNetwork, FieldOfExperts
from scantune.adaptation.loop import Schedule, Trajectory, objective_at, optimise
from scantune.adaptation.sampling import WholeVolume
from scantune.adaptation.schedules import PRESETS
from scantune.adaptation.solvers import Solver
from scantune.experts import PatchSettings
from scantune.methods import ModelParts
from scantune.methods.foe import FoECNNPCA
from scantune.networks import set_memory_layout
from scantune.scans.volume import Volume
from scantune.tasks import Segmentation


def steps(on: Ground) -> Iterator[Row]:
    """A step against the plain rendering, by density."""
    images, _ = on.scan("spgr-1.5T", on.slices, on.size)
    generator = torch.Generator().manual_seed(0)
    plain = Plain.of(on.network, on.prior)
    slow, fast, bounded = on.race(
        lambda: plain.epoch(images, generator),
        on.step(on.network, on.prior, images),
        on.step(on.network, on.prior, images, kept=0),
    )
    what = f"{on.slices} x {on.size} x {on.size}"
    yield f"step, plain rendering, {what}", f"{1e3 * slow:.1f} ms"
    yield f"step, {what}", f"{1e3 * fast:.1f} ms, {slow / fast:.1f} x faster"
    yield f"step at the memory of one batch, {what}", f"{1e3 * bounded:.1f} ms, {slow / bounded:.1f} x faster"
    subjects = [on.scan("source-3T-mprage", 8, on.size, start)[0] for start in (0, 1)]
    for density in ("gaussian", "kde", "histogram"):
        start = on.now()
        prior = FieldOfExperts.fit(on.network, subjects, density=density).to(on.device)
        each = (on.now() - start) / len(subjects) / 8
        yield f"prior fit, {density}, a slice of {on.size} x {on.size}", f"{1e3 * each:.1f} ms"
        if density != "gaussian":
            other = on.best(on.step(on.network, prior, images))
            yield f"step, {density}, {what}", f"{1e3 * other:.1f} ms, {other / fast:.1f} of the Gaussian step"


def objective(on: Ground) -> Iterator[Row]:
    """Seconds to the objective that the paper's steps reach, stopping off."""
    size = 128 if on.quick else on.size
    images, _ = on.scan(on.centre, on.slices, size, on.person)
    volume = Volume(images)

    def paper(steps: int) -> scantune.Result:
        where = str(on.device)
        return scantune.adapt(on.model, images, preset="paper", steps=steps, guard=False, device=where)

    if on.device.type == "cuda":
        paper(3)  # kernels are compiled, once on a machine, for batches of either size
        for preset in ("fast", "converged"):
            _quasi_newton(on, volume, PRESETS[preset].solver, 3, [])
    start = on.now()
    adapted = paper(on.paper_steps).network
    spent = on.now() - start
    origin, target = (
        objective_at(deepcopy(network).requires_grad_(False), _method(on), volume, WholeVolume(), 0)
        for network in (on.network, adapted)
    )
    plain = Plain.of(on.network, on.prior)
    generator = torch.Generator().manual_seed(0)
    slow = on.best(lambda: plain.epoch(images, generator)) * on.paper_steps
    what = f"{on.paper_steps} paper steps, {on.slices} x {size} x {size}"
    yield f"objective after {what}", f"{target:.4f}, from {origin:.4f}"
    yield f"{what}, plain rendering", f"{slow:.0f} s"
    yield f"{what}", f"{spent:.0f} s"
    for preset in ("fast", "converged"):
        by, marks = f"the steps of `{preset}`", [on.now()]
        trajectory = _quasi_newton(on, volume, PRESETS[preset].solver, 20 if on.quick else 100, marks)
        reached = [n for n, row in enumerate(trajectory.trace) if row["objective"] <= target]
        if not reached:
            yield f"the same objective by {by}", f"not within {len(trajectory.trace)} gradients: {trajectory.end:.4f}"
            continue
        took = marks[min(reached[0] + 1, len(marks) - 1)] - marks[0]
        faster = f"{slow / took:.0f} x faster than the plain rendering, {spent / took:.0f} x than the paper's steps"
        yield f"the same objective by {by}", f"{took:.1f} s, {reached[0] + 1} gradients: {faster}"


def _method(on: Ground) -> FoECNNPCA:
    return FoECNNPCA(ModelParts(Segmentation(), on.prior))


def _quasi_newton(on: Ground, volume: Volume, solver: Solver, steps: int, marks: list[float]) -> Trajectory:
    """So many gradients, and when each of them was there."""
    working = deepcopy(on.network).requires_grad_(False)
    set_memory_layout(working, "channels last")
    schedule = Schedule(WholeVolume(), solver, steps)
    return optimise(working, _method(on), volume, schedule, 0, lambda *_: marks.append(on.now()))


def growth(on: Ground) -> Iterator[Row]:
    """A step by slices, image size and width of the network."""
    for slices in (8, 16) if on.quick else (8, 16, 48, 160):
        images, _ = on.scan("spgr-1.5T", slices, 128)
        took = on.best(on.step(on.network, on.prior, images))
        yield f"step, {slices} x 128 x 128", f"{1e3 * took:.1f} ms"
    for size in (128, 192) if on.quick else (128, 256, 512):
        images, _ = on.scan("spgr-1.5T", 8, size)
        took = on.best(on.step(on.network, on.prior, images))
        yield f"step, 8 x {size} x {size}", f"{1e3 * took:.1f} ms"
    images, _ = on.scan("spgr-1.5T", 8, 128)
    for width in (8, 16) if on.quick else (8, 16, 32, 64):
        torch.manual_seed(0)
        network = AdaptableNetwork.default(classes=4, width=width).to(on.device).eval()
        patches = PatchSettings(threshold=0.0)
        prior = FieldOfExperts.fit(network, [images], patches=patches).to(on.device)
        took = on.best(on.step(network, prior, images))
        yield f"step, 8 x 128 x 128, width {width}, untrained", f"{1e3 * took:.1f} ms"
