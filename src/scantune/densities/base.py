"""The contract of a density: additive statistics in, a divergence in nats out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

from torch import Tensor


class Density(ABC):
    """1D densities of many experts at once, of one scan or of several subjects.

    A density is estimated from statistics that *add up* over mini-batches. That is what makes whole-volume densities
    exact at bounded memory: the statistics of the batches are summed, and the divergence's gradient with respect to
    the sums is handed back to every batch.

    Values are standardised: each expert's outputs minus its training mean, over its training deviation.
    """

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def measure(cls, values: Tensor, weights: Tensor | None) -> Tensor:
        """Additive statistics of a batch.

        Args:
            values: Standardised expert outputs `(slices, experts, *spatial)`.
            weights: 1 where a pixel counts, 0 where not, `(slices, 1, *spatial)`; None counts every pixel.

        Returns:
            `(statistics, experts)`; the first row is the number of pixels that count.
        """

    @classmethod
    @abstractmethod
    def estimate(cls, statistics: Tensor) -> Self:
        """The densities `(1, experts)` of the scan whose statistics `(statistics, experts)` these are."""

    @abstractmethod
    def divergence(self, test: Self) -> Tensor:
        """Mean over the subjects of this prior of the divergence from a test scan, `(experts,)` in nats."""

    @abstractmethod
    def floor(self) -> Tensor:
        """The smallest divergence that any test density can reach, `(experts,)` in nats."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What is stored in a model file."""

    @classmethod
    @abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `tensors`."""
