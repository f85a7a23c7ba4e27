"""What speed does to results: Dice by the plain rendering and by the fast path, at every centre of the cohort."""

from collections.abc import Iterator
from copy import deepcopy
from statistics import fmean
from typing import ClassVar

import torch
from setup import Ground, Row
from tests.plain import Plain
from torch import Tensor

import scantune
from scantune.adaptation.guard.stability import agreements
from scantune.methods import Method, ModelParts, Terms
from scantune.methods.foe import FoECNNPCA
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume

NUDGE = 1e-7
"""Share of parameters that float32 rounds by, about."""


class Plainly(Method):
    """FoE-CNN-PCA by the plain rendering, in the loop and under the guard of every method."""

    name: ClassVar[str] = "plain"

    def __init__(self, parts: ModelParts, options: dict[str, object] | None = None) -> None:
        super().__init__(parts, options)
        assert parts.prior is not None
        self.prior = parts.prior

    def prepare(self, network: AdaptableNetwork) -> None:
        super().prepare(network)
        self.plain = Plain(network, self.prior)

    def measure(self, batch: Batch) -> Statistics:
        """The objective of all slices; its terms are not added up."""
        objective = self.plain.objective(batch.images, batch.padding)
        return {"objective": objective, "cnn": self.plain.term}

    def terms(self, statistics: Statistics) -> Terms:
        return Terms(statistics["objective"], {"cnn": statistics["cnn"]})


class Nudged(Plainly):
    """The same, from parameters that rounding could have moved: how far two correct runs are apart."""

    def start(self, volume: Volume, generator: torch.Generator) -> None:  # noqa: ARG002
        drawn = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters(self.network).values():
                parameter *= 1 + NUDGE * torch.randn(parameter.shape, generator=drawn).to(parameter)


def dice(on: Ground) -> Iterator[Row]:
    """Under the guard, as it is by default; and after all gradients of `fast`, whatever they do."""
    # A library's convolutions may have fewer digits than single precision, and be no second opinion.
    torch.backends.cudnn.allow_tf32 = False
    methods = {"plain rendering": Plainly, "fast path": FoECNNPCA, "plain rendering, nudged": Nudged}
    scans = {centre: on.scan(centre, on.slices, 128 if on.quick else on.size) for centre in on.cohort.centres}
    for guard, how in ((True, "by default"), (False, "after all gradients, no guard")):
        apart: dict[str, list[float]] = {name: [] for name in methods}
        for centre, (images, labels) in scans.items():
            found = {name: _dice(on, method, images, labels, guard) for name, method in methods.items()}
            for name, (value, _) in found.items():
                apart[name].append(abs(value - found["plain rendering"][0]))
            told = "; ".join(f"{name} {value:.4f} ({action})" for name, (value, action) in found.items())
            yield f"Dice at {centre}, {how}", told
        for name in list(methods)[1:]:
            what = f"largest difference of Dice from the plain rendering, {how}: {name}"
            yield what, f"{max(apart[name]):.4f}, mean {fmean(apart[name]):.4f}"


def _dice(on: Ground, method: type[Method], images: Tensor, labels: Tensor, guard: bool) -> tuple[float, str]:
    """The mean over structures, and what the guard said."""
    whole = len(images) if issubclass(method, Plainly) else None
    result = scantune.adapt(deepcopy(on.model), images, method=method, guard=guard, batch=whole, device=str(on.device))
    return fmean(agreements(result.prediction, labels.cpu(), int(labels.max()))), result.decision.action
