"""Field of Experts: match the 1D densities of the experts' outputs (Eq. 13 and 15)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from scantune.densities import DIVERGENCES, Density
from scantune.errors import InputError
from scantune.methods.base import Method, MethodOptions, ModelParts, Terms
from scantune.methods.expert_statistics import ExpertStatistics, alike
from scantune.networks import AdaptableNetwork, fold_batch_norm, possible_gates
from scantune.prior.field_of_experts import MINIMUM_ACTIVE, FieldOfExperts, Statistics
from scantune.scans.volume import Batch, Volume, batch_size

FEW = 4
"""Slices by which half precision is compared with single precision."""


@dataclass(frozen=True)
class FoEOptions(MethodOptions):
    """What can be chosen when densities are matched; which densities these are is the prior's."""

    divergence: Literal["kl", "reverse-kl", "symmetric-kl", "wasserstein", "likelihood"] = "kl"
    """How far apart densities are; kl is of training against test, likelihood maximises the log-likelihood instead."""
    reference: Literal["subjects", "expected", "random"] = "subjects"
    """The mean over the training subjects' divergences, or the divergence from their expected distribution (for
    Gaussian densities the Gaussian of the same mean and variance), or from one subject drawn anew for every step."""
    weighting: Literal["layer", "channel"] = "layer"
    """Layers count alike, or channels do."""
    layers: str = "all"
    """The expert layers that are matched: all, first, or names with spaces between them."""
    schedule: Literal["all", "bottom-up"] = "all"
    """Whether all layers pull from the start, or they join one after the other from the input side."""
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
    def standard(self) -> bool:
        """Whether the CNN experts' term is the energy."""
        chosen = (self.divergence, self.reference, self.weighting, self.layers)
        return chosen == ("kl", "subjects", "layer", "all")


class FoECNN(Method):
    """L_FoE-CNN (Eq. 13): E_s D(p_s, p_t), mean over a layer's channels, then over layers.

    With Gaussian densities and one layer (`layers`), this is what Ishii and Sugiyama 2021 minimise: the KL divergence
    between Gaussian approximations of the features at one layer of the task network. With histograms and the symmetric
    KL divergence it is the marginal matching of Eastwood et al. 2022, with all layers in place of the last one.
    """

    name: ClassVar[str] = "foe-cnn"
    Options = FoEOptions
    options: FoEOptions
    families: ClassVar[tuple[str, ...]] = ("cnn",)

    def __init__(self, equipment: ModelParts, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(equipment, options)
        if equipment.prior is None:
            raise InputError(
                f"Method {self.name} needs a prior, and there is none; fit one with FieldOfExperts.fit(network, "
                "volumes) and give it as prior=, or use a model file that has one."
            )
        self.prior = self.choose(equipment.prior)
        self.layers = self._layers()
        self._pulling = len(self.layers)
        self._share = 0.0
        self._refuse()

    @property
    def steady(self) -> bool:
        """Not with a random subject, nor while layers join."""
        return self.options.reference != "random" and self.options.schedule == "all"

    @property
    def recordable(self) -> bool:
        """Where the objective is steady, and no layer's statistics depend on how many patches there are."""
        return self.steady and all(family.experts.fixed for family in self.prior.families.values())

    @property
    def reentrant(self) -> bool:
        """Whoever records features keeps those of each thread apart."""
        return True

    def seen(self, volume: Volume) -> Volume:
        """Statistics of a long scan are those of some of its slices, or very nearly so."""
        return volume.thinned(self.options.slices or len(volume.images))

    def choose(self, prior: FieldOfExperts) -> FieldOfExperts:
        """The families of experts this method matches."""
        for name in set(prior.families) - set(self.families):
            prior = prior.without(name)
        return prior

    def _layers(self) -> list[str]:
        """The matched layers, from the input side."""
        known = list(self.prior.families["cnn"].fields)
        if self.options.layers == "all":
            return known
        wanted = known[:1] if self.options.layers == "first" else self.options.layers.split()
        unknown = [layer for layer in wanted if layer not in known]
        if unknown or not wanted:
            raise InputError(
                f"The prior has no expert layer {' '.join(unknown) or self.options.layers!r}; "
                f"layers takes all, first, or names out of: {' '.join(known)}."
            )
        return [layer for layer in known if layer in wanted]

    def _refuse(self) -> None:
        """Raises before the run what a prior cannot serve."""
        density = next(iter(self.prior.families["cnn"].fields.values())).density
        DIVERGENCES[self.options.divergence].value(self.refer(density), density.expected())

    def refer(self, density: Density) -> Density:
        """The densities that the scan is compared with."""
        if self.options.reference == "random":
            return density.subject(self._share)
        return density.expected() if self.options.reference == "expected" else density

    def _compared(self) -> FieldOfExperts:
        return self.folded.compared(DIVERGENCES[self.options.divergence], self.refer, self.layers)

    def prepare(self, network: AdaptableNetwork) -> None:
        """Folds the frozen batch norms, which changes no number: features are standardised before they are compared."""
        super().prepare(network)
        self.folded = self.prior.to(next(network.parameters()).device)
        self.frozen = not any(name.startswith("task.") for name in self.parameters(network))
        if self.frozen:
            self.folded = self.folded.folded(fold_batch_norm(network.task))
        self.reference = self._compared()
        self.measuring = ExpertStatistics(network, self.folded, self.frozen, self.latest)

    def start(self, volume: Volume, generator: torch.Generator) -> None:
        """On a GPU, goes on in half precision where that gives the same objective and gradient of a few slices."""
        super().start(volume, generator)
        if volume.images.is_cuda and self.frozen:
            self.halve(volume)

    def halve(self, volume: Volume) -> None:
        """Half precision in as much of the network as the objective and the gradient of a few slices allow."""
        few = volume.spread(FEW)
        moving = list(self.parameters(self.network).values())
        exact = self._slope(few, moving)
        for gate in possible_gates(self.network.normalizer):
            self.measuring.halve(volume.images[:, 0].numel(), gate)
            if alike(self._slope(few, moving), exact):
                return
            self.finer()

    def _slope(self, batch: Batch, moving: list[nn.Parameter]) -> Tensor:
        """The objective of a batch, and its gradient, `(1 + parameters,)`."""
        with torch.enable_grad():
            objective = self.terms(self.measure(batch)).objective
            found = torch.autograd.grad(objective, moving, allow_unused=True)
        return torch.cat([objective.detach().view(1), *(part.flatten() for part in found if part is not None)])

    def finer(self) -> bool:
        """From half to single precision."""
        return self.measuring.refine()

    def begin(self, step: int, volume: Volume, generator: torch.Generator) -> None:
        """Draws the step's subject, lets layers join."""
        super().begin(step, volume, generator)
        if self.options.reference == "random":
            self._share = float(torch.rand((), generator=generator, dtype=torch.double))
            self.reference = self._compared()
        if self.options.schedule == "bottom-up":
            self._pulling = math.ceil(len(self.layers) * min((step + 1) / self.options.joining, 1))

    def finish(self) -> None:
        """Removes the hooks."""
        self.measuring.close()

    def measure(self, batch: Batch) -> Statistics:
        """Statistics of all experts of a batch."""
        return self.measuring(batch)

    def terms(self, statistics: Statistics) -> Terms:
        """The weighted mean over layers; the part `cnn` is the energy, whatever is minimised."""
        measured = {key: value for key, value in statistics.items() if key.startswith("cnn/")}
        divergences = self.reference.energies(measured)["cnn"]
        # Layers that have not joined count without pulling, so that the objectives of all steps can be compared.
        pulling = [d if n < self._pulling else d.detach() for n, d in enumerate(divergences.values())]
        term = self._mean(torch.stack(pulling))
        if self.options.standard:
            return Terms(term, {"cnn": term})
        with torch.no_grad():
            energy = torch.stack(list(self.folded.energies(measured)["cnn"].values())).mean()
        return Terms(term, {"cnn": energy, "cnn term": term})

    def _mean(self, each: Tensor) -> Tensor:
        if self.options.weighting == "layer":
            return each.mean()
        fields = self.reference.families["cnn"].fields.values()
        sizes = torch.stack([field.kept.sum() for field in fields]).to(each)
        return (each * sizes).sum() / sizes.sum()


@dataclass(frozen=True)
class PCAOptions(FoEOptions):
    """What can be chosen when PCA experts are matched too."""

    weight: float = 0.1
    """Lambda, of the PCA experts' term."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.weight < math.inf:
            raise InputError(f"The option weight must be 0 or more, got {self.weight}.")


class FoECNNPCA(FoECNN):
    """L_FoE-CNN-PCA (Eq. 15): the CNN term plus lambda times the PCA experts' term."""

    name: ClassVar[str] = "foe-cnn-pca"
    Options = PCAOptions
    options: PCAOptions
    families: ClassVar[tuple[str, ...]] = ("cnn", "pca")

    def prepare(self, network: AdaptableNetwork) -> None:
        """As for the features alone; nothing is known of patches yet."""
        super().prepare(network)
        self._last = torch.zeros((), dtype=torch.double, device=next(network.parameters()).device)

    def start(self, volume: Volume, generator: torch.Generator) -> None:
        """A scan whose foreground is too small for a density of patches from the start is matched by features alone."""
        if "pca" in self.folded.families and self._patches(volume) < MINIMUM_ACTIVE:
            self.folded = self.folded.without("pca")
            self.measuring.without_patches()
            self.reference = self._compared()
        super().start(volume, generator)

    @torch.no_grad()
    def _patches(self, volume: Volume) -> float:
        """How many are active."""
        counted = self.measured(volume, batch_size(volume.images))
        return sum(float(value[0, 0]) for part in counted for key, value in part.items() if key.startswith("pca/"))

    def terms(self, statistics: Statistics) -> Terms:
        """Eq. 15; with too few active patches the PCA term is its last valid value and the step not eligible.

        An empty foreground has no patches to be wrong about, so that collapse would pay if the term simply vanished.
        """
        cnn = super().terms(statistics)
        if "pca" not in self.folded.families:
            return cnn
        loadings = {key: value for key, value in statistics.items() if key.startswith("pca/")}
        patches, pca = self._last.new_zeros(()), self._last.to(cnn.objective)
        if loadings:
            patches = torch.stack([value[0, 0].detach() for value in loadings.values()]).min()
            found = torch.stack(list(self.reference.energies(loadings)["pca"].values())).mean()
            pca = torch.where(patches >= MINIMUM_ACTIVE, found, pca.to(found))
            self._last.copy_(pca.detach())
        valid = patches >= MINIMUM_ACTIVE
        # The patches are the last layer's: they join with it.
        pulling = pca if self._pulling == len(self.layers) else pca.detach()
        parts = {**cnn.parts, "pca": pca, "active patches": patches}
        return Terms(cnn.objective + self.options.weight * pulling, parts, valid)
