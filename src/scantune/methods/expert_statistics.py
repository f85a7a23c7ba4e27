"""Statistics of a prior's experts in a batch, by the fastest way that gives the same numbers.

The plain way is a forward pass that records features, and a sum over the features of each layer. Everything that makes
this faster is in this module: batch norms are folded into frozen convolutions, Gaussian and histogram statistics are
computed while a layer's outputs are activated, convolutions run in programs of our own, and on a GPU the network runs
in half precision where the objective and its gradient allow it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from scantune.densities import GaussianBase, GridDensity, Standardization
from scantune.densities.binning import affine_to_grid, has_kernel
from scantune.experts import (
    BinCountsOnGPU,
    CNNExperts,
    FusedLayers,
    MomentsOnCPU,
    MomentsOnGPU,
    Recorder,
    StatisticsProgram,
)
from scantune.kernels import usable
from scantune.methods.base import FastPath
from scantune.networks import (
    AdaptableNetwork,
    ForwardPrecision,
    GateAfterNormalizer,
    HalfPrecision,
    PrecisionGate,
    SinglePrecision,
    fold_batch_norm,
    possible_gates,
    use_fast_convolutions,
)
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.prior.layer import LayerExperts
from scantune.scans.volume import Batch, Volume

COMPARED_SLICES = 4
"""Number of slices on which half precision is compared with single precision."""

OBJECTIVE_TOLERANCE, GRADIENT_TOLERANCE = 1e-3, 0.02
"""Relative errors of the objective and of its gradient that half precision may have."""


class ExpertStatistics(FastPath):
    """Measures the experts of a prior in a working copy of the network.

    Args:
        prior: The prior whose experts are measured.
        steady: Whether the objective is the same function in every step.
        slices: See `FastPath`.
    """

    def __init__(self, prior: FieldOfExperts, *, steady: bool, slices: int) -> None:
        fixed = all(family.experts.fixed for family in prior.families.values())
        super().__init__(capturable=steady and fixed, thread_safe=True, slices=slices)
        self.prior = prior
        self.precision: ForwardPrecision = SinglePrecision()

    def attach(self, network: AdaptableNetwork, *, frozen: bool) -> FieldOfExperts:
        """Change a working copy of the network in place so that it is measured fast, and listen to its layers.

        Args:
            network: The working copy.
            frozen: Whether no parameter of the task network moves; else nothing is folded or fused.

        Returns:
            The prior of the features of the changed network, on its device.
        """
        self.network, self.frozen = network, frozen
        prior = self.prior.to(next(network.parameters()).device)
        if frozen:
            prior = prior.folded(fold_batch_norm(network.task))
        self.fused = self._fuse(prior) if frozen else FusedLayers({})
        self.recorded = self._without_fused(prior)
        self.record = Recorder(network, self.recorded.layers()).__enter__()
        return prior

    def detach(self) -> None:
        """Remove the hooks from the network."""
        self.record.__exit__()

    def __call__(self, batch: Batch) -> Statistics:
        """Return the additive statistics of all experts in a batch, differentiable."""
        self.fused.expect(batch.padding)
        with self.precision.running():
            recording = self.record(batch.images)
        self.outputs.note(batch, recording.output)
        recorded = self.recorded.measure(recording, batch.padding)
        fused = {f"cnn/{layer}": statistics for layer, statistics in self.fused.statistics()}
        return self.precision.lifted({**fused, **recorded})

    def leave_out(self, family: str) -> None:
        """Stop measuring a family of experts that is not fused."""
        self.recorded = self.recorded.without(family)

    def _fuse(self, prior: FieldOfExperts) -> FusedLayers:
        """Fuse the statistics of CNN experts with activations; on a GPU without kernels, nothing is fused."""
        first = next(self.network.parameters())
        if first.is_cuda and not usable(first):
            return FusedLayers({})
        use_fast_convolutions(self.network)
        layers = prior.families["cnn"].layers
        found = {name: statistics_program(experts) for name, experts in layers.items()}
        programs = {name: program for name, program in found.items() if program is not None}
        if not usable(first):
            return FusedLayers.on_cpu(self.network.task, programs)
        patches = prior.families.get("pca")
        return FusedLayers.on_gpu(self.network.task, programs, [] if patches is None else patches.experts.layers())

    def _without_fused(self, prior: FieldOfExperts) -> FieldOfExperts:
        """Return the part of a prior that is measured from recorded features."""
        family = prior.families["cnn"]
        assert isinstance(family.experts, CNNExperts)
        left = {layer: experts for layer, experts in family.layers.items() if layer not in self.fused.activations}
        experts = family.experts.narrowed(left) if self.fused.activations else family.experts
        return replace(prior, families={**prior.families, "cnn": replace(family, experts=experts, layers=left)})

    def choose_precision(
        self, volume: Volume, objective: Callable[[Batch], Tensor], moving: Sequence[nn.Parameter]
    ) -> None:
        """Go on in half precision if a GPU is used and objective and gradient of a few slices stay the same.

        Args:
            volume: The scan.
            objective: Returns the objective of a batch, computed from the statistics of this object.
            moving: The parameters whose gradient is compared.
        """
        if volume.images.is_cuda and self.frozen:
            self.try_half_precision(volume, objective, moving)

    def try_half_precision(
        self, volume: Volume, objective: Callable[[Batch], Tensor], moving: Sequence[nn.Parameter]
    ) -> None:
        """Use the fastest gate that gives the same objective and gradient, or stay in single precision."""
        batch = volume.spread(COMPARED_SLICES)
        exact = objective_and_gradient(objective, batch, moving)
        for gate in possible_gates(self.network.normalizer):
            self.use_half_precision(volume.images[:, 0].numel(), gate)
            if alike(objective_and_gradient(objective, batch, moving), exact):
                return
            self.leave_half_precision()

    def use_half_precision(self, pixels: int, gate: type[PrecisionGate] = GateAfterNormalizer) -> None:
        """Run the network in half precision for a volume of that many pixels."""
        self.precision = HalfPrecision(self.network, pixels, gate)

    def leave_half_precision(self) -> bool:
        """Return to single precision; return False if that was in use."""
        if not isinstance(self.precision, HalfPrecision):
            return False
        self.precision.remove()
        self.precision = SinglePrecision()
        return True


def objective_and_gradient(
    objective: Callable[[Batch], Tensor], batch: Batch, moving: Sequence[nn.Parameter]
) -> Tensor:
    """Return the objective of a batch followed by its gradient, `(1 + parameters,)`."""
    with torch.enable_grad():
        value = objective(batch)
        gradient = torch.autograd.grad(value, moving, allow_unused=True)
    return torch.cat([value.detach().view(1), *(part.flatten() for part in gradient if part is not None)])


def alike(half: Tensor, exact: Tensor) -> bool:
    """Return whether objective and gradient `(1 + parameters,)` agree with those in single precision."""
    error = (half - exact).abs()
    objective = error[0] <= OBJECTIVE_TOLERANCE * exact[0].abs()
    return bool(objective & (error[1:].norm() <= GRADIENT_TOLERANCE * exact[1:].norm()))


def statistics_program(layer: LayerExperts) -> StatisticsProgram | None:
    """Return the program that measures a layer's outputs while they are activated; None if there is none."""
    density = layer.density
    if isinstance(density, GaussianBase):
        return (MomentsOnGPU if usable(layer.center) else MomentsOnCPU)(layer.center, layer.scale)
    if isinstance(density, GridDensity) and has_kernel(layer.center, density.grid):
        standard = Standardization(layer.center, layer.scale)
        return BinCountsOnGPU(*affine_to_grid(density.grid, standard, layer.center.float()), density.grid.size)
    return None
