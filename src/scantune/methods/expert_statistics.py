"""How statistics of a batch come about: a forward pass, and what is measured on the way or after it."""

from dataclasses import replace

from torch import Tensor

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
from scantune.methods.output_cache import OutputCache
from scantune.networks import (
    AdaptableNetwork,
    ForwardPrecision,
    GateAfterNormalizer,
    HalfPrecision,
    PrecisionGate,
    SinglePrecision,
    use_fast_convolutions,
)
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.prior.layer import LayerExperts
from scantune.scans.volume import Batch


class ExpertStatistics:
    """Measures batches with a network that is a frozen working copy.

    In a frozen task network, experts are measured within the forward pass, on a CPU Gaussian ones, and convolutions are
    done by programs of our own where these are faster; on a GPU both by kernels. What comes out is the same.

    Args:
        network: The working copy, which is changed.
        prior: The prior, whose statistics are wanted.
        frozen: Whether nothing of the task network moves.
        latest: Gets the network's outputs.
    """

    def __init__(self, network: AdaptableNetwork, prior: FieldOfExperts, frozen: bool, latest: OutputCache) -> None:
        self.network, self.prior, self.latest = network, prior, latest
        self.precision: ForwardPrecision = SinglePrecision()
        self.units = self._units() if frozen else FusedLayers({})
        self.rest = self._rest()
        self.record = Recorder(network, self.rest.layers()).__enter__()

    def _units(self) -> FusedLayers:
        """What is measured on the way, by kernels or on a CPU by rows; nothing on a GPU that kernels cannot use."""
        first = next(self.network.parameters())
        if first.is_cuda and not usable(first):
            return FusedLayers({})
        use_fast_convolutions(self.network)
        each = {layer: meter_of(field) for layer, field in self.prior.families["cnn"].fields.items()}
        meters = {layer: meter for layer, meter in each.items() if meter is not None}
        if not usable(first):
            return FusedLayers.by_rows(self.network.task, meters)
        patches = self.prior.families.get("pca")
        return FusedLayers.of(self.network.task, meters, [] if patches is None else patches.experts.layers())

    def _rest(self) -> FieldOfExperts:
        """What is measured after the pass."""
        family = self.prior.families["cnn"]
        assert isinstance(family.experts, CNNExperts)
        left = {layer: field for layer, field in family.fields.items() if layer not in self.units.activations}
        experts = family.experts.narrowed(left) if self.units.activations else family.experts
        return replace(
            self.prior, families={**self.prior.families, "cnn": replace(family, experts=experts, fields=left)}
        )

    def __call__(self, batch: Batch) -> Statistics:
        """The statistics of all experts; differentiable."""
        self.units.expect(batch.padding)
        with self.precision.running():
            recording = self.record(batch.images)
        self.latest.note(batch, recording.output)
        found = self.rest.measure(recording, batch.padding)
        on_the_way = {f"cnn/{layer}": part for layer, part in self.units.statistics()}
        return self.precision.lifted({**on_the_way, **found})

    def without_patches(self) -> None:
        """Leaves the PCA experts out."""
        self.rest = self.rest.without("pca")

    def halve(self, pixels: int, gate: type[PrecisionGate] = GateAfterNormalizer) -> None:
        """Goes on in half precision, with a volume of so many pixels, behind the normaliser or within it."""
        self.precision = HalfPrecision(self.network, pixels, gate)

    def refine(self) -> bool:
        """Goes back to single precision; False where that is what it is in."""
        if not isinstance(self.precision, HalfPrecision):
            return False
        self.precision.remove()
        self.precision = SinglePrecision()
        return True

    def close(self) -> None:
        """Removes the hooks."""
        self.record.__exit__()


def meter_of(field: LayerExperts) -> StatisticsProgram | None:
    """What measures a layer's outputs while they are activated; None where nothing does."""
    density = field.density
    if isinstance(density, GaussianBase):
        return (MomentsOnGPU if usable(field.center) else MomentsOnCPU)(field.center, field.scale)
    if isinstance(density, GridDensity) and has_kernel(field.center, density.grid):
        standard = Standardization(field.center, field.scale)
        return BinCountsOnGPU(*affine_to_grid(density.grid, standard, field.center.float()), density.grid.size)
    return None


def alike(half: Tensor, exact: Tensor) -> bool:
    """Whether an objective and its gradient `(1 + parameters,)` are what they are in single precision."""
    apart = (half - exact).abs()
    return bool((apart[0] <= OBJECTIVE * exact[0].abs()) & (apart[1:].norm() <= GRADIENT * exact[1:].norm()))


OBJECTIVE, GRADIENT = 1e-3, 0.02
"""How far the objective and its gradient may be off in half precision, as shares of them."""
