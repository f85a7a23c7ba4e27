"""Field of Experts: match the 1D densities of the experts' outputs (Eq. 13 and 15)."""

from typing import ClassVar

import torch
from torch import Tensor

from scantune.errors import InputError
from scantune.experts import Recorder
from scantune.methods.base import Equipment, Method, Terms
from scantune.networks import AdaptableNetwork, fold_batch_norm
from scantune.prior import MINIMUM_ACTIVE, FieldOfExperts, Statistics


class FoECNN(Method):
    """L_FoE-CNN (Eq. 13): E_s KL(p_s || p_t), mean over a layer's channels, then over layers."""

    name: ClassVar[str] = "foe-cnn"
    families: ClassVar[tuple[str, ...]] = ("cnn",)

    def __init__(self, equipment: Equipment) -> None:
        super().__init__(equipment)
        if equipment.prior is None:
            raise InputError(
                f"Method {self.name} needs a prior, and there is none; fit one with FieldOfExperts.fit(network, "
                "volumes) and give it as prior=, or use a model file that has one."
            )
        self.prior = self.choose(equipment.prior)

    def choose(self, prior: FieldOfExperts) -> FieldOfExperts:
        """The families of experts this method matches."""
        for name in set(prior.families) - set(self.families):
            prior = prior.without(name)
        return prior

    def prepare(self, network: AdaptableNetwork) -> None:
        """Folds the frozen batch norms, which changes no number (fact: KL is invariant to affine maps)."""
        super().prepare(network)
        device = next(network.parameters()).device
        self.folded = self.prior.to(device).folded(fold_batch_norm(network.task))
        self.record = Recorder(network, self.folded.layers()).__enter__()

    def finish(self) -> None:
        """Removes the hooks."""
        self.record.__exit__()

    def measure(self, images: Tensor, padding: Tensor | None) -> Statistics:
        """Statistics of all experts of a batch."""
        return self.folded.measure(self.record(images), padding)

    def terms(self, statistics: Statistics) -> Terms:
        """The mean over layers of the layers' mean divergences."""
        cnn = _mean(self.folded.energies(statistics)["cnn"])
        return Terms(cnn, {"cnn": cnn})


class FoECNNPCA(FoECNN):
    """L_FoE-CNN-PCA (Eq. 15): the CNN term plus lambda times the PCA experts' term."""

    name: ClassVar[str] = "foe-cnn-pca"
    families: ClassVar[tuple[str, ...]] = ("cnn", "pca")

    def __init__(self, equipment: Equipment, weight: float = 0.1) -> None:
        super().__init__(equipment)
        self.weight = weight
        self._last = torch.zeros(())

    def terms(self, statistics: Statistics) -> Terms:
        """Eq. 15; with too few active patches the PCA term is its last valid value and the step not eligible.

        An empty foreground has no patches to be wrong about, so that collapse would pay if the term simply vanished.
        """
        cnn = _mean(self.folded.energies({k: v for k, v in statistics.items() if k.startswith("cnn/")})["cnn"])
        if "pca" not in self.folded.families:
            return Terms(cnn, {"cnn": cnn})
        loadings = {key: value for key, value in statistics.items() if key.startswith("pca/")}
        patches = min((float(value[0, 0].detach()) for value in loadings.values()), default=0.0)
        valid = patches >= MINIMUM_ACTIVE
        pca = _mean(self.folded.energies(loadings)["pca"]) if valid else self._last.to(cnn)
        self._last = pca.detach()
        active = torch.as_tensor(patches)
        return Terms(cnn + self.weight * pca, {"cnn": cnn, "pca": pca, "active patches": active}, valid)


def _mean(divergences: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(divergences.values())).mean()
