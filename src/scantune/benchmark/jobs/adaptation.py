"""The job at the end: adapt to one scan as a row of the experiment asks, and score what comes of it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from scantune.adaptation.adapt import adapt
from scantune.adaptation.result import Result
from scantune.adaptation.schedules import OWN
from scantune.adaptation.settings import AdaptSettings
from scantune.benchmark.jobs.base import Job, JobEnvironment, OnProgress
from scantune.benchmark.jobs.networks import HelperTraining, PriorFitting, Training
from scantune.benchmark.jobs.observe import DiceObserver
from scantune.benchmark.jobs.scoring import common_structures, restrict_to_slab, scores
from scantune.evaluation.rows import ROWS_FILE, WHOLE, ScoreRow, write_rows
from scantune.methods import find_method
from scantune.model.model import Model
from scantune.runtime.devices import find_device, peak_memory_mb, reproducible, reset_peak_memory
from scantune.runtime.version import installed_version
from scantune.scans.case import Case
from scantune.scans.files import write_text
from scantune.scans.manifest import json_text, write_manifest
from scantune.tasks import Registration
from scantune.training.held_out import HeldOutScan

TRACE, CASE = "trace.json", "case.npz"


@dataclass(frozen=True, eq=False)
class Adaptation(Job):
    """Adapts to one scan, and scores it on its own grid.

    Attributes:
        scan: The scan.
        network: Makes the network.
        prior: Fits its prior; None where it is not to have one.
        helper: Trains the helper network of the method, where it has one.
        how: How the network is adapted.
        labels: Label value of each structure in the scan's reference.
        score: The structure that is watched: one of the labels, `mean`, or `whole`, which is a row of its own then.
        watch: Steps at which the Dice is noted in the trace.
        keep: Whether the scan is kept with its results.
        cohort: Where the scan is from, for the rows.
        row: The row's name in tables; as `tier`, no part of the key.
        tier: How much of an experiment this is.
        fold: Which fold of a data set the person tests, no part of the key, as the network and the scan tell it.
    """

    kind: ClassVar[str] = "adapt"
    version: ClassVar[int] = 1

    scan: HeldOutScan
    network: Training
    prior: PriorFitting | None
    helper: HelperTraining | None
    how: AdaptSettings
    labels: Mapping[str, int]
    score: str
    watch: tuple[int, ...]
    keep: bool
    cohort: str
    row: str
    tier: str
    fold: str = ""

    @property
    def inputs(self) -> tuple[Job, ...]:
        """Return the jobs of network, prior and helper network."""
        return tuple(job for job in (self.network, self.prior, self.helper) if job is not None)

    def settings(self) -> dict[str, Any]:
        """Return the settings of adaptation and scoring."""
        watched = {"score": self.score, "watch": list(self.watch)} if self.watch else {}
        own = {**self._how(), **self._newer()}
        return {**own, "labels": dict(self.labels), "whole": self.whole, **watched}

    def _how(self) -> dict[str, Any]:
        """Return the settings of the adaptation as plain JSON values, under the keys of version 0.1."""
        names = ("method", "preset", "steps", "batch", "guard", "options")
        return {name: self.how.arguments[name] for name in names}

    def _newer(self) -> dict[str, Any]:
        """Return the settings that results of older versions lacked."""
        kind = find_method(str(self.how.method))
        version = {"method version": kind.version} if kind.version > 1 else {}
        judged = bool(self.how.guard and self.network.plan.task)
        own = OWN.get(str(self.how.method)) if self.how.preset != "paper" else None
        return {
            **version,
            **({"judged by": Registration.judged_by} if judged else {}),
            **({} if own is None else {"schedule": [own.steps, own.rate]}),
        }

    @property
    def whole(self) -> bool:
        """Return True if all structures are scored as one, too."""
        return self.score == WHOLE

    def scan_identity(self) -> str:
        """Return the identity of the scan; a kept scan is another result."""
        return f"{self.scan.identity} kept" if self.keep else self.scan.identity

    def run(self, environment: JobEnvironment, out: Path, on_progress: OnProgress) -> None:
        """Adapt, score, write."""
        device = find_device(environment.device)
        model = self._model(environment)
        case = restrict_to_slab(_case(self.scan, device), model.backend)
        structures = common_structures(model.labels, self.labels)
        watcher = DiceObserver(str(self.how.method), model, case, structures, self.score, self.watch)
        reset_peak_memory(device)
        with reproducible(device):
            result = adapt(
                model,
                case,
                on_step=on_progress,
                **{**self.how.arguments, "method": watcher.method(), "device": environment.device},
            )
        rows = self._rows(result, case, structures, device, peak_memory_mb(device))
        write_rows(out / ROWS_FILE, rows)
        write_manifest(out, self._manifest(result, case, model))
        write_text(out / TRACE, json_text(watcher.noted(result.trace)))
        if self.keep:
            _keep(out / CASE, result, case, self.labels)

    def _model(self, environment: JobEnvironment) -> Model:
        """Return the network with the parts that the method needs; the prior measures energies for every method."""
        model = environment.model(self.network)
        prior = None if self.prior is None else environment.model(self.prior).prior
        helpers = {} if self.helper is None else environment.model(self.helper).helpers
        return replace(model, prior=prior, helpers=helpers)

    def _rows(
        self, result: Result, case: Case, structures: Mapping[str, tuple[int, int]], device: torch.device, memory: float
    ) -> list[ScoreRow]:
        steps = int(result.facts["steps"])
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        return [
            ScoreRow(
                *(self.cohort, self.scan.site, case.subject, _session(case), self.row, self.seed, structure),
                *(one.dice, one.hd95, one.asd, one.volume_ml, one.reference_ml),
                *(_number(result.energy_before), _number(result.energy_after), result.decision.action),
                steps,
                *(result.seconds, result.seconds / steps if steps else math.nan, memory),
                *(name, installed_version(), self.settings_key, self.tier, self.key, self.fold, self.scan.data),
            )
            for structure, one in scores(result.prediction, case, structures, self.whole).items()
        ]

    def _manifest(self, result: Result, case: Case, model: Model) -> dict[str, Any]:
        return {
            "scan": case.name,
            "subject": case.subject,
            "session": _session(case),
            "site": self.scan.site,
            "cohort": self.cohort,
            "method": self.row,
            "seed": self.seed,
            "fold": self.fold,
            "decision": result.decision.action,
            "reason": result.decision.reason,
            "energy_before": result.energy_before,
            "energy_after": result.energy_after,
            "energies_before": result.source.energies,
            "energies_after": result.adapted.energies,
            "labels": model.labels,
            "run": self._how(),
            "facts": result.facts,
        }


_latest: dict[str, Case] = {}  # jobs about the same scan come one after the other


def _case(scan: HeldOutScan, device: torch.device) -> Case:
    if scan.identity not in _latest:
        _latest.clear()
        _latest[scan.identity] = scan.read(device)
    return _latest[scan.identity]


def _session(case: Case) -> str:
    """Return the session of a person's scan: the part of the scan's name beyond the person's."""
    if case.name == case.subject:
        return ""
    return case.name.removeprefix(f"{case.subject}_")


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _keep(path: Path, result: Result, case: Case, labels: Mapping[str, int]) -> None:
    """Store the scan and its segmentations on its own grid, compactly."""
    low, high = np.percentile(case.image, (0.1, 99.9))
    image = np.clip((case.image - low) / max(float(high - low), 1e-12), 0, 1)
    np.savez_compressed(
        path,
        image=np.round(255 * image).astype(np.uint8),
        reference=np.asarray(case.reference, np.uint8),
        before=np.asarray(result.source_prediction, np.uint8),
        after=np.asarray(result.prediction, np.uint8),
        affine=case.affine,
        labels=np.array(json.dumps(dict(labels))),
    )
