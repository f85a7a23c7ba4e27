"""An adaptation under the guard: the loop with its brakes, and the decision on what came of it."""

from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scantune.experts import Recorder
from scantune.guard import Decision, Guard, judge
from scantune.methods import Method
from scantune.networks import AdaptableNetwork
from scantune.optimise import Brakes, Course, OnStep, Schedule, objective_at, optimise
from scantune.prior import FieldOfExperts, sufficient
from scantune.results import Survey
from scantune.tasks import Task
from scantune.volumes import Volume


@torch.no_grad()
def survey(network: nn.Module, volume: Volume, task: Task, prior: FieldOfExperts | None, batch: int = 4) -> Survey:
    """Predicts a whole volume and takes its energies, in one pass."""
    probabilities: list[Tensor] = []
    maps: dict[str, list[Tensor]] = {}
    total: dict[str, Tensor] = {}
    with Recorder(network, [] if prior is None else prior.layers()) as record:
        for part in volume.batches(batch):
            recording = record(part.images)
            probabilities.append(task.probabilities(recording.output).float().cpu())
            for name, value in task.maps(recording.output).items():
                maps.setdefault(name, []).append(value.float().cpu())
            if prior is not None:
                for key, value in prior.measure(recording, part.padding).items():
                    total[key] = total.get(key, 0) + value.double()
    energies = {} if prior is None else prior.energies(sufficient(total))
    return Survey(
        torch.cat(probabilities),
        task,
        {name: {group: float(value) for group, value in groups.items()} for name, groups in energies.items()},
        {name: torch.cat(parts) for name, parts in maps.items()},
    )


@dataclass(frozen=True)
class Watch:
    """What a calibrated prior knows of source subjects, while one scan is adapted to.

    Args:
        typical: The energy up to which a scan is as typical as they are.
        guard: Judges predictions.
        needless: Whether the scan is typical as it is.
    """

    typical: float
    guard: Guard
    needless: bool


@dataclass(frozen=True)
class Run:
    """What came of the loop.

    Args:
        network: The adapted network.
        course: What the loop saw.
        origin: The objective at the source network.
        strange: Whether the run came from elsewhere, and the guard has not seen any of its steps.
    """

    network: AdaptableNetwork
    course: Course
    origin: float
    strange: bool


def watch(before: Survey, prior: FieldOfExperts | None) -> Watch | None:
    """What the prior knows, about a scan as the source network sees it; None where it is not calibrated."""
    if prior is None or prior.calibration is None:
        return None
    typical = prior.calibration.typical
    needless = before.energy is not None and before.energy <= typical
    return Watch(typical, Guard(before.prediction, before.structures, prior.calibration), needless)


def run(
    method: Method,
    source: AdaptableNetwork,
    volume: Volume,
    before: Survey,
    schedule: Schedule,
    watched: Watch | None,
    seed: int,
    on_step: OnStep | None,
) -> Run:
    """Equips a copy of the source network and adapts it; a scan that is typical as it is gets no step."""
    network = method.equip(deepcopy(source), volume)
    working = deepcopy(network).requires_grad_(False)
    brakes = Brakes()
    if watched is not None:
        schedule = replace(schedule, steps=0) if watched.needless else schedule
        if method.starts_at_source:
            judged = watched.guard
            brakes = Brakes(
                watched.typical,
                lambda energy: judged.verdict(survey(working, volume, before.task, None).prediction, energy),
            )
    course = optimise(working, method, volume, schedule, seed, on_step, brakes)
    network.load_state_dict(course.state, strict=False)
    origin = course.start
    if course.trace and not method.starts_at_source:
        bare = deepcopy(source).requires_grad_(False)
        origin = objective_at(bare, method, volume, schedule.sampling, seed)
    return Run(network, course, origin, not method.starts_at_source)


def decide(done: Run, before: Survey, after: Survey, watched: Watch | None) -> Decision:
    """The guard's decision on a run, from the scan before and after it."""
    course = done.course
    if not course.moving:
        return Decision("skipped", "the method moves nothing.")
    if watched is not None and watched.needless:
        energies = f"energy {before.energy:.4g}, theirs up to {watched.typical:.4g}"
        return Decision("skipped", f"the scan is as typical as source subjects: {energies}.")
    if not course.trace:
        return Decision("skipped", "no step was asked for.")
    decision = judge(done.origin, course.end, before.prediction, after.prediction)
    if decision.action != "kept" or watched is None or not done.strange:
        return decision
    # A run from elsewhere comes by strange predictions, so that only its end is judged.
    if watched.guard.verdict(after.prediction, after.energy) == "accepted":
        return decision
    return Decision("rolled back", "the adapted prediction is not like those of source subjects.")
