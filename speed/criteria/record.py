"""The default adaptation of a scan, with every stage on its way noted.

Toys are given as tensors. Sizes count all the same, as they do for scans from files: voxels of a toy are all alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from subjects import Scan
from torch import Tensor, nn

import scantune
from scantune.adaptation.guard.base import Decision
from scantune.adaptation.guard.rescue import Rescue, StageRule
from scantune.adaptation.loop import Schedule, Trajectory
from scantune.adaptation.result import Result
from scantune.model.model import Model
from scantune.networks import AdaptableNetwork, Inversion
from scantune.prior.home_readings import HomeReadings
from scantune.scans.volume import Volume


@dataclass(frozen=True)
class Path:
    """Stages of an adaptation.

    Args:
        states: Parameters that move, by name, at each stage; the first is the source network.
        steps: Numbers of the steps.
        verdict: Of the source prediction.
        action: What the default decides.
        chosen: The step whose prediction is handed out; 0 for the source prediction.
        inversion: Parameters of the inversion that stands in front of the network from the first step on; None if
            steps start from the scan as it is.
    """

    states: Sequence[Mapping[str, Tensor]]
    steps: Sequence[int]
    verdict: str
    action: str
    chosen: int
    inversion: Mapping[str, Tensor] | None = None


def recorded(model: Model, scan: Scan) -> tuple[Path, Result]:
    """Adapt a model to a scan by the default; a fine scan goes along the path too, and is left alone after it."""
    paths: list[Path] = []

    class Recorded(Rescue):
        """The rescue of the default, which notes its stages."""

        def plan(self, schedule: Schedule, volume: Volume, steps: int | None) -> tuple[Schedule, Volume]:
            """Plan as for a scan that is not fine."""
            failed = replace(self, before=replace(self.before, verdict="failed", leave=False))
            return Rescue.plan(failed, schedule, volume, steps)

        def decide(self, network: nn.Module, trajectory: Trajectory, origin: float) -> Decision:
            """Decide as the rescue does, and note the path."""
            rule = trajectory.rule
            assert isinstance(rule, StageRule)
            parts = dict(network.named_parameters())
            source = {name: parts[name].detach().clone() for name in trajectory.moving}
            decision = super().decide(network, trajectory, origin)
            chosen = (trajectory.best or 0) if decision.keeps_adapted else 0
            states = [source, *(stage.state for stage in rule.stages)]
            steps = [0, *(stage.step for stage in rule.stages)]
            assert isinstance(network, AdaptableNetwork)
            inversion = network.curve.state_dict() if isinstance(network.curve, Inversion) else None
            paths.append(Path(states, steps, self.before.verdict, decision.action, chosen, inversion))
            return decision

    with patch("scantune.adaptation.adapt.Rescue", Recorded), patch.object(HomeReadings, "without_sizes", lambda x: x):
        result = scantune.adapt(model, scan.given, device="cpu")
    return paths[0], result


def older_guard(model: Model, scan: Scan) -> Result:
    """Adapt a model to a scan by the guard of priors without home readings, which was the default of version 0.1."""
    assert model.prior is not None and model.prior.calibration is not None
    calibration = replace(model.prior.calibration, home=None)
    prior = replace(model.prior, calibration=calibration)
    given: Any = scan.given
    return scantune.adapt(model, given, prior=prior, device="cpu")
