"""Calibration: what is typical of source subjects, so that an energy and a prediction can be judged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import Literal, Self

import torch
from torch import Tensor, nn

from scantune.errors import InputError
from scantune.networks import in_evaluation
from scantune.prior.coverage import Coverage
from scantune.prior.home_readings import HomeReadings
from scantune.tasks import Segmentation, Task, structure_counts

TYPICAL_QUANTILE = 0.9
"""Quantile of held-out source subjects below which the energy of a scan is typical."""

FAR_OUT_DEVIATIONS = 4.0
"""Beyond the middle by this many deviations of the logarithm a scan is far out."""

MIN_LOG_SPREAD = 0.1
"""Smallest spread of the logarithm of energies between subjects, used if there are too few of them."""

MIN_ENERGY = 1e-6
"""In nats; less, which rounding may leave of subjects that are all alike, is taken for it: 0 has no logarithm."""

_LARGEST = 700.0  # whose exponential is still a number

Reading = Literal["typical", "shifted", "far out"]
"""Of an energy: as source subjects have it, or above, or beyond anything that is known."""

Energies = Mapping[str, Tensor]
"""Energies by group, `family/layer` -> `(subjects,)`."""


@dataclass(frozen=True)
class EnergyLevels:
    """Energies in nats that divide scans.

    The energies of source subjects are taken to be log-normal: their middle is that of subjects that the network was
    *not* trained on, for training subjects look too typical; how they differ from each other is taken of both, for
    the new ones are often two or three.

    Args:
        middle: Half of the new source subjects are below it.
        typical: So are nine of ten.
        far: Beyond anything in training.
    """

    middle: float
    typical: float
    far: float

    @property
    def low(self) -> float:
        """Return the energy that nine of ten held-out source subjects exceed."""
        return self.middle * (self.middle / self.typical)

    @property
    def sound(self) -> bool:
        """Return whether the levels rise from above 0; only `far`, unknown to older files, may be infinite."""
        return 0 < self.middle <= self.typical <= self.far and math.isfinite(self.typical)

    @classmethod
    def of(cls, held_out: Sequence[float], training: Sequence[float] = ()) -> Self:
        """Estimate levels from energies of held-out subjects, and of training subjects each left out in turn."""
        energies = [torch.tensor(group, dtype=torch.double) for group in (held_out, training) if len(group)]
        groups = [group.clamp_min(MIN_ENERGY).log() for group in energies]
        middle = float(torch.quantile(groups[0], 0.5))
        freedom = sum(len(group) - 1 for group in groups)
        squares = sum(float((group - group.mean()).square().sum()) for group in groups)
        spread = max(math.sqrt(squares / freedom) if freedom else 0.0, MIN_LOG_SPREAD)
        above = (0.0, NormalDist().inv_cdf(TYPICAL_QUANTILE) * spread, FAR_OUT_DEVIATIONS * spread)
        return cls(*(math.exp(min(middle + distance, _LARGEST)) for distance in above))


@dataclass(frozen=True)
class Calibration:
    """What is typical of source subjects.

    Args:
        levels: Energies that divide scans, of the FoE-CNN energy.
        shares: Mean share of each structure in the predicted foreground `(structures,)`.
        spread: Standard deviation of these shares over subjects `(structures,)`.
        coverage: How much source scans show; None in files of older versions.
        held_out: Energies of subjects that the network was not trained on; empty in a summarised prior.
        training: Energies of training subjects from the prior of the others; empty in a summarised prior.
        home: Readings of predictions for held-out subjects, by which predictions are assessed; None in files of version
            0.1.
    """

    levels: EnergyLevels
    shares: Tensor
    spread: Tensor
    coverage: Coverage | None = None
    held_out: Energies = field(default_factory=dict)
    training: Energies = field(default_factory=dict)
    home: HomeReadings | None = None

    @classmethod
    def of(cls, held_out: Energies, training: Energies, proportions: Tensor, coverage: Coverage | None = None) -> Self:
        """Build a calibration from energies, proportions `(subjects, structures)` and the coverage of source scans."""
        spread = proportions.std(0, correction=0).clamp_min(1e-3)
        levels = EnergyLevels.of(*(family_energies(energies, "cnn") for energies in (held_out, training)))
        return cls(levels, proportions.mean(0).float().cpu(), spread.float().cpu(), coverage, held_out, training)

    @property
    def typical(self) -> float:
        """Return the energy in nats up to which a scan counts as typical."""
        return self.levels.typical

    def reading(self, energy: float) -> Reading:
        """Return the reading of an energy."""
        if energy <= self.levels.typical:
            return "typical"
        return "shifted" if energy <= self.levels.far else "far out"

    def readings(self, energies: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Reading]]:
        """Return the readings of all groups of all families with known energies of source subjects."""
        found: dict[str, dict[str, Reading]] = {}
        for family, groups in energies.items():
            for group, energy in groups.items():
                key = f"{family}/{group}"
                if key in self.held_out and len(self.held_out[key]):
                    among = self.training.get(key, torch.empty(0)).tolist()
                    levels = EnergyLevels.of(self.held_out[key].tolist(), among)
                    found.setdefault(family, {})[group] = replace(self, levels=levels).reading(energy)
        return found

    def oddness(self, counts: Tensor) -> float:
        """Return how far a prediction's proportions are from the source's, in deviations of the most unusual structure.

        Args:
            counts: Pixels of each structure `(structures,)`, background left out.
        """
        if float(counts.sum()) == 0:
            return math.inf
        shares = counts.cpu() / counts.cpu().sum()
        return float(((shares - self.shares) / self.spread).abs().max())

    def summarised(self) -> Self:
        """Return a copy without numbers of single subjects."""
        return replace(self, held_out={}, training={})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a model file stores."""
        levels = self.levels
        stored = {"typical": torch.tensor([levels.typical]), "shares": self.shares, "spread": self.spread}
        stored["levels"] = torch.tensor([levels.middle, levels.typical, levels.far])
        if self.coverage is not None:
            stored |= self.coverage.tensors()
        for name, energies in (("held-out", self.held_out), ("training", self.training)):
            stored |= {f"{name}/{group}": values.float() for group, values in energies.items()}
        if self.home is not None:
            stored |= {f"home/{name}": values for name, values in self.home.tensors().items()}
        return stored

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Restore a calibration from `tensors`; files of older versions know the typical level alone."""
        typical = float(tensors["typical"][0])
        levels = EnergyLevels(typical, typical, math.inf)
        if "levels" in tensors:
            levels = EnergyLevels(*map(float, tensors["levels"]))
        coverage = Coverage.from_tensors(tensors)
        known = [
            {key.removeprefix(name): value for key, value in tensors.items() if key.startswith(name)}
            for name in ("held-out/", "training/")
        ]
        stored = {key.removeprefix("home/"): value for key, value in tensors.items() if key.startswith("home/")}
        home = HomeReadings.from_tensors(stored)
        held_out, training = known
        found = cls(levels, tensors["shares"], tensors["spread"], coverage, held_out, training, home)
        found._require_sound()
        return found

    def _require_sound(self) -> None:
        """Check what was stored: everything is finite, and what is divided by or has a logarithm is above 0.

        Raises:
            InputError: It is not.
        """
        energies = [*self.held_out.values(), *self.training.values()]
        seen = [] if self.coverage is None else self.coverage.numbers
        finite = all(bool(torch.isfinite(values).all()) for values in (self.shares, self.spread, *energies))
        alike = self.shares.shape == self.spread.shape and all(values.ndim == 1 for values in (self.shares, *energies))
        if not (
            finite and alike and all(map(math.isfinite, seen)) and self.levels.sound and bool(min(self.spread) > 0)
        ):
            raise InputError(
                "The calibration is damaged: it must have levels that rise from above 0, finite energies, and a share "
                "and a deviation above 0 for each structure. Fit the prior again, or copy the file again."
            )


def family_energies(energies: Energies, family: str) -> list[float]:
    """Return each subject's energy of a family, the mean over its groups."""
    groups = [values.tolist() for key, values in energies.items() if key.startswith(f"{family}/")]
    return [fmean(each) for each in zip(*groups, strict=True)]


@torch.no_grad()
def predicted_proportions(network: nn.Module, volume: Tensor, task: Task | None = None, batch: int = 8) -> Tensor:
    """Return the share of each structure in the predicted foreground of a volume, `(structures,)`."""
    with in_evaluation(network):
        task = task or Segmentation.detect(network, volume[:1])
        counts = []
        for images in torch.split(volume, batch):
            output = network(images)
            structures = task.scores(output).shape[1] - int(task.exclusive)
            counts.append(structure_counts(task.predict(output), structures).double())
    total = torch.stack(counts).sum(0)
    return total / total.sum().clamp_min(1)
