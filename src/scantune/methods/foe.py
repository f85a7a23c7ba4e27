"""Field of Experts: match the 1D densities of the experts' outputs.

    L_FoE-CNN     = E_s [ 1/L sum_l 1/C_l sum_c D(p_s,cl, p_t,cl) ]                         (Eq. 13)
    L_FoE-CNN-PCA = L_FoE-CNN + lambda E_s [ 1/C_L sum_c 1/G sum_g D(p_s,cg, p_t,cg) ]      (Eq. 15)

s is a training subject, t the scan, cl a channel of a layer, cg a principal component of a channel of the last layer,
and D the KL divergence. `ExpertStatistics` measures p_t, and holds everything that serves speed alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from scantune.densities import DIVERGENCES, Density
from scantune.errors import InputError
from scantune.methods.base import Method, MethodOptions, ModelParts, Terms, measure_batches
from scantune.methods.expert_statistics import ExpertStatistics
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import FieldOfExperts, Statistics
from scantune.prior.layer import MINIMUM_ACTIVE
from scantune.scans.volume import Batch, Volume, batch_size


@dataclass(frozen=True)
class FoEOptions(MethodOptions):
    """Options of matching densities; the form of the densities is the prior's."""

    divergence: Literal["kl", "reverse-kl", "symmetric-kl", "wasserstein", "likelihood"] = "kl"
    """How far apart densities are; kl is of training against test, likelihood maximises the log-likelihood instead."""
    reference: Literal["subjects", "expected", "random"] = "subjects"
    """The mean over the training subjects' divergences, or the divergence from their expected distribution (for
    Gaussian densities the Gaussian of the same mean and variance), or from one subject drawn again for every step."""
    weighting: Literal["layer", "channel"] = "layer"
    """Layers count alike, or channels do."""
    layers: str = "all"
    """The expert layers that are matched: all, first, or names with spaces between them."""
    schedule: Literal["all", "bottom-up"] = "all"
    """Whether all layers count from the start, or join one after the other from the input side."""
    joining: int = 30
    """After how many steps all layers have joined, bottom-up."""
    slices: int = 0
    """The most slices of a scan that exact steps see (of other presets than `paper`), evenly spaced; 0 for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joining < 1:
            raise InputError(f"The option joining must be 1 or more, got {self.joining}.")
        if self.slices < 0:
            raise InputError(f"The option slices must be 0, for all of them, or more, got {self.slices}.")

    @property
    def minimises_energy(self) -> bool:
        """Return whether the CNN term is the energy of the prior."""
        chosen = (self.divergence, self.reference, self.weighting, self.layers)
        return chosen == ("kl", "subjects", "layer", "all")


@dataclass(frozen=True)
class PCAOptions(FoEOptions):
    """Options of matching PCA experts too."""

    weight: float = 0.1
    """Lambda, of the PCA experts' term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight < math.inf:
            raise InputError(f"The option weight must be 0 or more, got {self.weight}.")


class FoECNN(Method):
    """L_FoE-CNN (Eq. 13): E_s D(p_s, p_t), mean over a layer's channels, then over layers.

    With Gaussian densities and one layer (`layers`), this is what Ishii and Sugiyama 2021 minimise: the KL divergence
    between Gaussian approximations of the features at one layer of the task network. With histograms and the symmetric
    KL divergence it is the marginal matching of Eastwood et al. 2022, with all layers in place of the last one.
    """

    name: ClassVar[str] = "foe-cnn"
    objective: ClassVar[str] = "divergence"
    Options = FoEOptions
    options: FoEOptions
    families: ClassVar[tuple[str, ...]] = ("cnn",)

    def __init__(self, parts: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(parts, options)
        if parts.prior is None:
            raise InputError(
                f"Method {self.name} needs a prior, but got none; fit one with FieldOfExperts.fit(network, volumes) "
                "and pass it as prior=, or use a model file that has one."
            )
        self.prior = parts.prior.only(self.families)
        self.layers = self.prior.choose_layers(self.options.layers)
        self._joined_layers = len(self.layers)
        self._subject = 0.0
        self._require_reference()
        self.statistics = ExpertStatistics(self.prior, steady=self.steady, slices=self.options.slices)
        self.fast_path = self.statistics

    @property
    def steady(self) -> bool:
        """Return whether the objective stays the same: no random subject, and no layers that join."""
        return self.options.reference != "random" and self.options.schedule == "all"

    def reference_density(self, density: Density) -> Density:
        """Return the densities p_s that the scan is compared with."""
        if self.options.reference == "random":
            return density.subject(self._subject)
        return density.expected() if self.options.reference == "expected" else density

    def _require_reference(self) -> None:
        """Raise an error before the run if the prior cannot serve the options."""
        density = next(iter(self.prior.families["cnn"].layers.values())).density
        DIVERGENCES[self.options.divergence].value(self.reference_density(density), density.expected())

    def _reference(self) -> FieldOfExperts:
        divergence = DIVERGENCES[self.options.divergence]
        return self.energy_prior.compared(divergence, self.reference_density, self.layers)

    def prepare(self, network: AdaptableNetwork) -> None:
        """Listen to the expert layers of the network."""
        super().prepare(network)
        frozen = not any(name.startswith("task.") for name in self.parameters(network))
        self.energy_prior = self.statistics.attach(network, frozen=frozen)
        self.reference = self._reference()

    def start(self, volume: Volume, generator: torch.Generator) -> None:
        """Let the statistics choose their precision by the objective of a few slices."""
        super().start(volume, generator)
        moving = list(self.parameters(self.network).values())
        self.statistics.choose_precision(volume, self.batch_objective, moving)

    def batch_objective(self, batch: Batch) -> Tensor:
        """Return the objective of a batch, a scalar."""
        return self.terms(self.measure(batch)).objective

    def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:
        """Draw the subject of a step, and let layers join."""
        super().begin(step, volume, generator)
        if self.options.reference == "random":
            self._subject = float(torch.rand((), generator=generator, dtype=torch.double))
            self.reference = self._reference()
        if self.options.schedule == "bottom-up":
            self._joined_layers = math.ceil(len(self.layers) * min((step + 1) / self.options.joining, 1))

    def finish(self) -> None:
        """Stop listening."""
        self.statistics.detach()

    def measure(self, batch: Batch) -> Statistics:
        """Return the additive statistics of all experts in a batch."""
        return self.statistics(batch)

    def terms(self, statistics: Statistics) -> Terms:
        """Return the weighted mean over layers; the part `cnn` is the energy, whatever is minimised."""
        measured = {key: value for key, value in statistics.items() if key.startswith("cnn/")}
        divergences = self.reference.energies(measured)["cnn"]
        # Layers that have not joined count without a gradient, so that the objectives of all steps can be compared.
        joined = [d if n < self._joined_layers else d.detach() for n, d in enumerate(divergences.values())]
        objective = self._mean(torch.stack(joined))
        if self.options.minimises_energy:
            return Terms(objective, {"cnn": objective})
        with torch.no_grad():
            energy = torch.stack(list(self.energy_prior.energies(measured)["cnn"].values())).mean()
        return Terms(objective, {"cnn": energy, "cnn term": objective})

    def _mean(self, divergences: Tensor) -> Tensor:
        """Return the mean over layers, or over channels, of the layers' divergences `(layers,)`."""
        if self.options.weighting == "layer":
            return divergences.mean()
        layers = self.reference.families["cnn"].layers.values()
        channels = torch.stack([layer.kept.sum() for layer in layers]).to(divergences)
        return (divergences * channels).sum() / channels.sum()


class FoECNNPCA(FoECNN):
    """L_FoE-CNN-PCA (Eq. 15): the CNN term plus lambda times the PCA experts' term."""

    name: ClassVar[str] = "foe-cnn-pca"
    Options = PCAOptions
    options: PCAOptions
    families: ClassVar[tuple[str, ...]] = ("cnn", "pca")

    def prepare(self, network: AdaptableNetwork) -> None:
        """Listen to the expert layers; no value of the PCA term is known yet."""
        super().prepare(network)
        self._last_valid = torch.zeros((), dtype=torch.double, device=next(network.parameters()).device)

    def start(self, volume: Volume, generator: torch.Generator) -> None:
        """Leave out the PCA term if the source prediction has too few active patches for a density."""
        if "pca" in self.energy_prior.families and self._active_patches(volume) < MINIMUM_ACTIVE:
            self.energy_prior = self.energy_prior.without("pca")
            self.statistics.leave_out("pca")
            self.reference = self._reference()
        super().start(volume, generator)

    @torch.no_grad()
    def _active_patches(self, volume: Volume) -> float:
        patches: dict[str, float] = {}
        for part in measure_batches(self, volume, batch_size(volume.images)):
            for key, value in part.items():
                if key.startswith("pca/"):
                    patches[key] = patches.get(key, 0.0) + float(value[0, 0])
        return min(patches.values(), default=0.0)

    def terms(self, statistics: Statistics) -> Terms:
        """Return Eq. 15; with too few active patches the PCA term keeps its last valid value.

        An empty foreground has no patches to be wrong about, so that collapse would pay if the term vanished. Such a
        step is not valid, and never chosen.
        """
        cnn = super().terms(statistics)
        if "pca" not in self.energy_prior.families:
            return cnn
        loadings = {key: value for key, value in statistics.items() if key.startswith("pca/")}
        patches, pca = self._last_valid.new_zeros(()), self._last_valid.to(cnn.objective)
        if loadings:
            patches = torch.stack([value[0, 0].detach() for value in loadings.values()]).min()
            divergence = torch.stack(list(self.reference.energies(loadings)["pca"].values())).mean()
            pca = torch.where(patches >= MINIMUM_ACTIVE, divergence, pca.to(divergence))
            self._last_valid.copy_(pca.detach())
        # The patches belong to the last layer and join with it.
        joined = pca if self._joined_layers == len(self.layers) else pca.detach()
        parts = {**cnn.parts, "pca": pca, "active patches": patches}
        return Terms(cnn.objective + self.options.weight * joined, parts, patches >= MINIMUM_ACTIVE)
