"""Guard of registrations: the likeness of warped atlas and scan, and the regularity of the deformation."""

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from scantune.adaptation.guard.base import Guard
from scantune.adaptation.guard.stability import agreements
from scantune.methods.instance import atlas_correlation
from scantune.networks.diffeomorphism import jacobian_determinant, spatial_gradients
from scantune.runtime.threads import threads_for
from scantune.scans.volume import Batch, Volume, batch_size
from scantune.tasks import Task, structure_counts


@dataclass(frozen=True)
class SimilarityRules:
    """Thresholds of the guard, chosen on subjects that no result is reported on, as `StabilityRules` are."""

    charge: float = 0.1
    """Gain in likeness that is asked for, as a share of the part of the prediction that changes."""
    patience: int = 6
    """Number of readings without a better one after which the run ends."""
    folding: float = 1e-3
    """Largest rise of the share of pixels at which the deformation folds."""
    rougher: float = 3.0
    """Largest roughness as a multiple of that of the source prediction."""
    smooth: float = 0.5
    """Roughness up to which no deformation is too rough, however smooth the source prediction is."""


@dataclass(frozen=True)
class SimilarityReading:
    """Reading of a registration without labels.

    Args:
        likeness: Mean squared correlation of warped atlas and scan in small windows, from 0 to 1.
        folding: Share of pixels at which the deformation folds.
        roughness: Mean of its squared gradients.
        agreement: Mean Dice with the source prediction.
        counts: Pixels, by structure.
    """

    likeness: float
    folding: float
    roughness: float
    agreement: float
    counts: tuple[int, ...]

    @classmethod
    @torch.no_grad()
    def of(
        cls, network: nn.Module, volume: Volume, task: Task, source: Tensor, structures: int, channels: int | None
    ) -> "SimilarityReading":
        """Read all slices, each predicted once.

        Args:
            network: Gives what `scantune.networks.RegistrationNetwork` gives.
            volume: The scan.
            task: How the network's output is read.
            source: The source network's labels `(slices, *spatial)`.
            structures: How many there are besides the background.
            channels: How many channels of the input are the image; None for all.
        """

        def read(part: Batch) -> tuple[Tensor, Tensor]:
            output = network(part.images)
            values, weights = atlas_correlation(output, part, channels)
            folds = jacobian_determinant(output["displacement"]) <= 0
            squares = spatial_gradients(output["displacement"]).square().sum((1, 2))
            pixels = weights.new_tensor(folds.numel())
            sums = [(values * weights).sum(), weights.sum(), folds.sum(), squares.sum(), pixels]
            return torch.stack([value.double() for value in sums]).cpu(), task.predict(output).cpu()

        batches, threads = volume.batches(batch_size(volume.images)), threads_for(network, volume.images)
        found = list(map(read, batches) if threads is None else threads.each(read, batches))
        alike, weight, folds, squares, pixels = torch.stack([sums for sums, _ in found]).sum(0).tolist()
        labels = torch.cat([labels for _, labels in found])
        same = fmean(agreements(labels, source.cpu(), structures))
        counts = tuple(structure_counts(labels, structures).tolist())
        return cls(alike / max(weight, 1.0), folds / pixels, squares / pixels, same, counts)

    def score(self, rules: SimilarityRules) -> float:
        """Return the likeness less the charge for the change from the source prediction."""
        return self.likeness - rules.charge * (1 - self.agreement)


class SimilarityGuard(Guard[SimilarityReading]):
    """Guard that judges steps by the likeness of warped atlas and scan.

    Optimising a deformation for one scan does not make it more stable under changes of that scan, however much better
    it fits. So the likeness of the images is judged instead. A deformation that folds or crumples can make any two
    images alike, so its regularity is judged too.

    Args:
        source: Reading of the source network's registration.
        rules: The thresholds.
    """

    def __init__(self, source: SimilarityReading, rules: SimilarityRules | None = None) -> None:
        self.rules = rules or SimilarityRules()
        super().__init__(source, self.rules.patience)
        self.crumpled = False

    def takes(self, reading: SimilarityReading, energy: float | None) -> bool:  # noqa: ARG002
        """Return True if atlas and scan are more alike than at the best step, in proportion to the change."""
        alike = reading.score(self.rules) > (self.best or self.source).score(self.rules)
        crumples = alike and self.crumples(reading)
        self.crumpled |= crumples
        return alike and not crumples

    def crumples(self, reading: SimilarityReading) -> bool:
        """Return True if the deformation folds at too many pixels, or has become too rough."""
        folds = reading.folding > self.source.folding + self.rules.folding
        return folds or reading.roughness > max(self.rules.rougher * self.source.roughness, self.rules.smooth)

    def gained(self, best: SimilarityReading) -> str:
        """Explain what became better."""
        alike = f"atlas and scan became more alike, {self.source.likeness:.3f} to {best.likeness:.3f}"
        return f"{alike}, and the prediction has a Dice of {best.agreement:.3f} with the source prediction."

    def missed(self) -> str:
        """Explain why no step is kept."""
        if self.crumpled:
            return "the deformation that makes atlas and scan more alike folds or is too rough."
        before = f"({self.source.likeness:.3f} before)"
        return f"no step made atlas and scan more alike {before} in proportion to how much it changed the prediction."

    def numbers(self) -> dict[str, float]:
        """Return likeness, folding and roughness before and after, and the agreement with the source."""
        looks = {"before": self.source} | ({} if self.best is None else {"after": self.best})
        names = ("likeness", "folding", "roughness")
        numbers = {f"{name}_{when}": float(getattr(reading, name)) for when, reading in looks.items() for name in names}
        return numbers | ({} if self.best is None else {"agreement": self.best.agreement})
