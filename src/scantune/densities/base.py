"""The contract of a density: additive statistics in, entropies and distances out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor


@dataclass(frozen=True)
class Standardization:
    """What standardises the experts' outputs.

    Args:
        center: Training mean `(experts,)`.
        scale: Training deviation `(experts,)`.
    """

    center: Tensor
    scale: Tensor


class Density(ABC):
    """1D densities of many experts at once, of one scan or of several subjects.

    A density is estimated from statistics that *add up* over mini-batches. That is what makes whole-volume densities
    exact at bounded memory: the statistics of the batches are summed, and the divergence's gradient with respect to
    the sums is handed back to every batch.

    Divergences are made of three things that a density knows: its entropy, its cross-entropy with another and its
    Wasserstein distance to another. Each is a mean over subjects, `(experts,)`.

    Values are standardised: each expert's outputs minus its training mean, over its training deviation.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def blank(cls, settings: Mapping[str, float] | None = None) -> Self:
        """Return a density of no subject, which can measure and estimate.

        Args:
            settings: What differs from the defaults; a density takes what it knows by name.
        """

    @abstractmethod
    def measure(self, values: Tensor, weights: Tensor | None, standard: Standardization | None = None) -> Tensor:
        """Return additive statistics of a batch.

        Args:
            values: Expert outputs `(slices, experts, *spatial)`.
            weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.
            standard: How they are standardised, which each density does on the way; None where they are already.

        Returns:
            `(statistics, experts)`; the first row is the number of pixels that count.
        """

    @abstractmethod
    def estimate(self, statistics: Tensor) -> "Density":
        """Estimate the densities `(1, experts)` of a scan from its statistics `(statistics, experts)`."""

    @classmethod
    @abstractmethod
    def joined(cls, densities: Sequence[Self]) -> Self:
        """Join the subjects of several densities."""

    @classmethod
    @abstractmethod
    def beside(cls, densities: Sequence[Self]) -> Self:
        """Join the experts of several densities of the same subjects."""

    @abstractmethod
    def expected(self) -> "Density":
        """Return the expected distribution over the subjects, as the density of one: their mean, or the nearest."""

    @abstractmethod
    def subject(self, share: float) -> "Density":
        """Return the density of the subject at a share (from 0, below 1) of all."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return E_s H(p_s), `(experts,)` in nats."""

    @abstractmethod
    def cross_entropy(self, other: Self) -> Tensor:
        """Return -E_s E_t int p_s log p_t over subjects s of this and t of the other, `(experts,)` in nats."""

    @abstractmethod
    def wasserstein(self, other: Self) -> Tensor:
        """Return E_s W_1(p_s, p_t) for a test density of one scan, `(experts,)` in training deviations."""

    def divergence(self, test: Self) -> Tensor:
        """Return the energy E_s KL(p_s || p_t), `(experts,)` in nats."""
        return self.cross_entropy(test) - self.entropy()

    def floor(self) -> Tensor:
        """Return the smallest `divergence` of any test density, `(experts,)`, which the expected density reaches."""
        return self.expected().entropy() - self.entropy()

    @abstractmethod
    def reverse_floor(self) -> Tensor:
        """Return the smallest E_s KL(p_t || p_s), `(experts,)`: -log int exp(E_s log p_s)."""

    @abstractmethod
    def summary(self) -> "Density":
        """Return a density that serves most objectives without per-subject numbers, or raise an error."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a model file stores."""

    def settings(self) -> dict[str, float]:
        """Return the settings that are stored beside the tensors."""
        return {}

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, float] | None = None) -> Self:
        """Restore a density from `tensors` and `settings`."""
