"""Rehearsal: predictions and adaptations of degraded scans of a held-out person, graded by the truth."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

from scantune.adaptation.calibration.degradations import SEVERITIES, Degradation, part_of
from scantune.adaptation.guard.rescue import Rescue, Stage
from scantune.adaptation.loop import optimise
from scantune.adaptation.schedules import PRESETS
from scantune.adaptation.source import source_network
from scantune.backends import Preprocessing
from scantune.methods import Method, ModelParts, find_method
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork
from scantune.prior.assessment import assess
from scantune.prior.home_readings import HomeReadings
from scantune.prior.label_readings import GradedReadings
from scantune.prior.prediction_reader import GradedReader, PredictionReader
from scantune.runtime.devices import find_device
from scantune.scans.bias_field import remove_bias
from scantune.scans.case import Case
from scantune.scans.grid import Orientation
from scantune.scans.volume import Volume

FAILED = 0.3
"""True Dice below which a degradation gets no more severe."""


@dataclass(frozen=True)
class Stand:
    """What scans are prepared, read and adapted with.

    Args:
        model: The model.
        network: Its network, with a normaliser, in evaluation mode.
        method: The default method.
        preprocessing: The model's, for scans whose bias field is removed already.
        steps: Steps of an adaptation.
    """

    model: Model
    network: AdaptableNetwork
    method: Method
    preprocessing: Preprocessing
    steps: int

    @classmethod
    def of(cls, model: Model, case: Case, device: str, steps: int) -> "Stand":
        """Return the stand for a model, whose network is tried on a case."""
        where = find_device(device)
        assert isinstance(model.backend, Preprocessing)
        preprocessing = replace(model.backend, n4=False)
        volume = Volume(preprocessing.prepare(case).volume).to(where)
        network, task = source_network(model.network, volume, where, 0), model.task
        prior = None if model.prior is None else model.prior.to(where)
        method = find_method(task.method)(ModelParts(task, prior, model.helpers), {})
        return cls(model, network, method, preprocessing, steps)

    def prepare(self, case: Case) -> tuple[Volume, GradedReader]:
        """Return a case as the network sees it, and a reader of its predictions."""
        prepared = self.preprocessing.prepare(case)
        volume = self.preprocessing.windows(prepared).to(next(self.network.parameters()).device)
        structures, voxel = max(self.model.labels.values()), self.preprocessing.voxel_ml(prepared)
        numbers, truth, task = range(len(volume.images)), prepared.reference, self.model.task
        reader = GradedReader(volume.images, numbers, task, structures, voxel, length=volume.length, reference=truth)
        return volume, reader

    def read(self, case: Case) -> GradedReadings:
        """Return the readings of the source prediction for a case."""
        return self.prepare(case)[1].read(self.network)

    def adapt(self, case: Case, home: HomeReadings, before: GradedReadings) -> tuple[PredictionReader, list[Stage]]:
        """Return the stages of the default adaptation to a case, none if it is fine, and what they were read by."""
        volume, reader = self.prepare(case)
        rescue = Rescue(reader, home, (), before, assess(before, home))
        working = self.method.equip(deepcopy(self.network), volume).requires_grad_(False)
        working.curve = rescue.start(self.network, volume) or working.curve
        schedule, seen = rescue.plan(PRESETS["fast"], volume, self.steps)
        rule = rescue.stop_rule(working, self.method, schedule.steps, at_source=True)
        optimise(working, self.method, seen, schedule, 0, rule=rule)
        return reader, rule.stages


@dataclass(frozen=True)
class Person:
    """A held-out person.

    Args:
        number: Which one.
        case: The scan, with few slices.
        stand: What it is degraded, read and adapted with.
    """

    number: int
    case: Case
    stand: Stand

    def degraded(self, family: str) -> Iterator[tuple[Case, GradedReadings]]:
        """Yield degraded scans of a family with the readings of their predictions, until these have failed."""
        settings = self.stand.preprocessing
        content = self.case.image != 0 if settings.content == "nonzero" else None
        for severity in SEVERITIES:
            case = Degradation(family, severity, self.number).apply(self.case, settings.plane, content)
            readings = self.stand.read(case)
            yield case, readings
            if readings.mean_dice < FAILED:
                return


def thinned(case: Case, preprocessing: Preprocessing, slices: int) -> Case:
    """Return a scan with few slices, at equal distances."""
    axis = Orientation.closest(case.affine, preprocessing.plane).axes[0]
    step = -(-case.shape[axis] // slices)
    first = (case.shape[axis] - 1) % step // 2
    return part_of(case, axis, slice(first, None, step))


def without_bias(case: Case, preprocessing: Preprocessing) -> Case:
    """Return a scan without the bias field that preparation would remove, so that it is removed once."""
    if not preprocessing.n4:
        return case
    content = case.image != 0 if preprocessing.content == "nonzero" else None
    return replace(case, image=remove_bias(case, content))
