"""An adaptation under the guard: the loop with its brakes, and the decision on what came of it."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.base import Decision, Guard, Judge, Rules, StabilityReading, Verdict
from scantune.adaptation.guard.similarity import LikenessGuard, LikenessRules, SimilarityReading
from scantune.adaptation.guard.stability import Scout
from scantune.adaptation.loop import Brakes, Course, OnStep, Schedule, objective_at, optimise
from scantune.adaptation.result import Prediction
from scantune.adaptation.settings import Stop
from scantune.experts import Recorder
from scantune.methods import Method, OutputCache
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.prior.fit import with_enough_patches
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Batch, Volume, batch_size
from scantune.tasks import Task


@torch.no_grad()
def predict(network: nn.Module, volume: Volume, task: Task, prior: FieldOfExperts | None) -> Prediction:
    """Predicts a whole volume and takes its energies, in one pass."""
    probabilities: list[Tensor] = []
    maps: dict[str, list[Tensor]] = {}
    total: dict[str, Tensor] = {}

    def look(part: Batch) -> tuple[Tensor, dict[str, Tensor], Statistics]:
        recording = record(part.images)
        found = {name: value.float().cpu() for name, value in task.maps(recording.output).items()}
        statistics = {} if prior is None else prior.measure(recording, part.padding)
        return task.probabilities(recording.output).float().cpu(), found, statistics

    threads = threads_for(network, volume.images)
    with Recorder(network, [] if prior is None else prior.layers()) as record:
        batches = volume.batches(batch_size(volume.images))
        for predicted, found, statistics in map(look, batches) if threads is None else threads.each(look, batches):
            probabilities.append(predicted)
            for name, value in found.items():
                maps.setdefault(name, []).append(value)
            for key, value in statistics.items():
                total[key] = total.get(key, 0) + value.double()
    energies = {} if prior is None else prior.energies(with_enough_patches(total))
    return Prediction(
        torch.cat(probabilities),
        task,
        {name: {group: float(value) for group, value in groups.items()} for name, groups in energies.items()},
        {name: torch.cat(parts) for name, parts in maps.items()},
    )


@dataclass(frozen=True)
class Watch:
    """What is known of a scan before it is adapted to, and who judges the steps.

    Args:
        look: Tells of a network's prediction what can be told without labels; its output for `slices` may be known.
        guard: Judges what is seen.
        level: The energy at which a run has arrived.
        needless: Why there is nothing to adapt; empty where there is.
        weigh: Measures a network's energy, for methods that do not know it; None where it would say nothing.
        slices: Those of the scan whose outputs `look` can make use of.
    """

    look: Callable[[nn.Module, Tensor | None], Any]
    guard: Judge[Any]
    level: float = -math.inf
    needless: str = ""
    weigh: Callable[[nn.Module], float | None] | None = None
    slices: Sequence[int] = ()

    def verdict(self, network: nn.Module, energy: float | None, output: Tensor | None = None) -> Verdict:
        """The guard's on a network, with its energy where the method knows it."""
        if energy is None and self.weigh is not None:
            energy = self.weigh(network)
        return self.guard.verdict(self.look(network, output), energy)

    def brakes(self, network: nn.Module, steps: int, elsewhere: bool, latest: OutputCache) -> Brakes:
        """For a run of this network; a start elsewhere than at the source is judged as a step is."""
        every = max(steps // LOOKS, 1)
        latest.slices = self.slices
        return Brakes(lambda energy: self.verdict(network, energy, latest.output()), self.level, every, elsewhere)


LOOKS = 12
"""The most looks of a run."""


@dataclass(frozen=True)
class Run:
    """What came of the loop.

    Args:
        network: The adapted network.
        course: What the loop saw.
        origin: The objective at the source network.
        judged: Whether the guard has seen its steps.
    """

    network: AdaptableNetwork
    course: Course
    origin: float
    judged: bool


def watch(
    source: AdaptableNetwork,
    volume: Volume,
    before: Prediction,
    prior: FieldOfExperts | None,
    stop: Stop = "stable",
) -> Watch:
    """Prepares the guard of a scan, as the source network sees it.

    Args:
        source: The source network.
        volume: The scan.
        before: What the source network makes of it.
        prior: Says what is typical, where it is calibrated.
        stop: When a run ends before its last step.
    """
    patient = {"patience": sys.maxsize} if stop == "never" else {}
    if before.task.judged_by == "likeness":
        return _by_likeness(source, volume, before, LikenessRules(**patient))
    return _by_stability(source, volume, before, prior, Rules(**patient), stop)


def _by_likeness(source: AdaptableNetwork, volume: Volume, before: Prediction, rules: LikenessRules) -> Watch:
    """A deformation can be improved for typical scans, too: none is needless."""
    labels = before.prediction

    def look(network: nn.Module, _output: Tensor | None = None) -> SimilarityReading:
        return SimilarityReading.of(network, volume, before.task, labels, before.structures, source.channels)

    return Watch(look, LikenessGuard(look(source), rules))


def _by_stability(
    source: AdaptableNetwork,
    volume: Volume,
    before: Prediction,
    prior: FieldOfExperts | None,
    rules: Rules,
    stop: Stop,
) -> Watch:
    scout = Scout.of(volume.images, before.task, channels=source.channels, threads=threads_for(source, volume.images))
    labels = scout.labels(source, before.probabilities[list(scout.chosen)])
    known = None if prior is None else prior.calibration
    guard = Guard(StabilityReading.at(labels, before.structures), rules, known, before.energy)
    level, needless = -math.inf, ""
    if known is not None and before.energy is not None:
        level = known.typical if stop == "typical" else level
        if before.energy <= known.levels.low:
            theirs = f"energy {before.energy:.4g}, theirs from {known.levels.low:.4g}"
            needless = f"the scan is as typical as source subjects: {theirs}."
    weigh = None
    if before.structures == 1 and before.energy is not None:
        weigh = partial(_energy, volume=volume, task=before.task, prior=prior)

    def look(network: nn.Module, output: Tensor | None = None) -> StabilityReading:
        own = None if output is None else before.task.probabilities(output).float()
        return StabilityReading.at(scout.labels(network, own), before.structures, labels[0])

    return Watch(look, guard, level, needless, weigh, scout.chosen)


def _energy(network: nn.Module, volume: Volume, task: Task, prior: FieldOfExperts | None) -> float | None:
    return predict(network, volume, task, prior).energy


def run(
    method: Method,
    source: AdaptableNetwork,
    volume: Volume,
    schedule: Schedule,
    watched: Watch | None,
    seed: int,
    on_step: OnStep | None,
    warm: Mapping[str, Tensor] | None = None,
) -> Run:
    """Equips a copy of the source network and adapts it; a scan that is typical as it is gets no step.

    Args:
        method: How to adapt.
        source: The source network, which stays as it is.
        volume: The scan.
        schedule: How long, and by which steps.
        watched: Who judges the steps on the way; None to judge the end alone.
        seed: Fixes every random choice.
        on_step: Called after each step.
        warm: Where to start, by name; by default where the method starts.
    """
    network = method.equip(deepcopy(source), volume)
    network.load_state_dict(warm or {}, strict=False)
    working = deepcopy(network).requires_grad_(False)
    brakes = None
    if watched is not None:
        schedule = replace(schedule, steps=0) if watched.needless else schedule
        elsewhere = bool(warm) or not method.starts_at_source
        brakes = watched.brakes(working, schedule.steps, elsewhere, method.latest)
    course = optimise(working, method, volume, schedule, seed, on_step, brakes)
    network.load_state_dict(course.state, strict=False)
    origin = course.start
    if course.trace and (warm or not method.starts_at_source):
        bare = deepcopy(source).requires_grad_(False)
        origin = objective_at(bare, method, volume, schedule.sampling, seed)
    return Run(network, course, origin, watched is not None)


def decide(done: Run, watched: Watch) -> Decision:
    """The guard's decision on a run; where it did not look on, it looks at the end."""
    course = done.course
    if not course.moving:
        return Decision("skipped", "the method moves nothing.")
    if watched.needless and done.judged:
        return Decision("skipped", watched.needless)
    if not course.trace:
        return Decision("skipped", "no step was asked for.")
    if course.end < done.origin and not done.judged:
        watched.verdict(done.network, course.trace[course.best or 0].get("cnn"))
    decision = watched.guard.decision()
    if decision.action == "kept" and not course.end < done.origin:
        return replace(decision, action="rolled back", reason="the objective ended no lower than the source's.")
    return decision
