"""Divergences between the training subjects' densities and a test scan's, made of what every density knows."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from scantune.densities.base import Density


class Divergence(ABC):
    """How far a test density p_t is from the densities p_s of a prior, as a mean over its subjects."""

    name: ClassVar[str]

    @abstractmethod
    def value(self, prior: Density, test: Density) -> Tensor:
        """Return the divergence, `(experts,)`, which is to be minimised."""

    def floor(self, prior: Density) -> Tensor | None:  # noqa: ARG002
        """Return the smallest value of any test density, `(experts,)`; None if no closed form is known."""
        return None


class KL(Divergence):
    """E_s KL(p_s || p_t), training against test: the paper's, and the energy."""

    name: ClassVar[str] = "kl"

    def value(self, prior: Density, test: Density) -> Tensor:
        """Return E_s H(p_s, p_t) - E_s H(p_s)."""
        return prior.divergence(test)

    def floor(self, prior: Density) -> Tensor:
        """Return the value at the expected density."""
        return prior.floor()


class ReverseKL(Divergence):
    """E_s KL(p_t || p_s), test against training."""

    name: ClassVar[str] = "reverse-kl"

    def value(self, prior: Density, test: Density) -> Tensor:
        """Return E_s H(p_t, p_s) - H(p_t)."""
        return test.cross_entropy(prior) - test.entropy()

    def floor(self, prior: Density) -> Tensor:
        """Return the value at the normalised geometric mean of the subjects' densities."""
        return prior.reverse_floor()


class SymmetricKL(Divergence):
    """Half the sum of both directions, as Eastwood et al. 2022 minimise it but for the factor."""

    name: ClassVar[str] = "symmetric-kl"

    def value(self, prior: Density, test: Density) -> Tensor:
        """Return the mean of KL and reverse KL."""
        return 0.5 * (prior.divergence(test) + test.cross_entropy(prior) - test.entropy())


class Wasserstein(Divergence):
    """E_s W_1(p_s, p_t), in training deviations: how far, on average, samples must be moved."""

    name: ClassVar[str] = "wasserstein"

    def value(self, prior: Density, test: Density) -> Tensor:
        """Return the mean distance over subjects."""
        return prior.wasserstein(test)


class Likelihood(Divergence):
    """E_s H(p_t, p_s): minus the expected log-likelihood of the test scan's values.

    No divergence: it lacks the test density's entropy, so that it is least where all values sit at the modes of the
    training densities. That is the paper's reason to match distributions instead.
    """

    name: ClassVar[str] = "likelihood"

    def value(self, prior: Density, test: Density) -> Tensor:
        """Return the cross-entropy in nats, which may be negative."""
        return test.cross_entropy(prior)


DIVERGENCES: dict[str, Divergence] = {
    "kl": KL(),
    "reverse-kl": ReverseKL(),
    "symmetric-kl": SymmetricKL(),
    "wasserstein": Wasserstein(),
    "likelihood": Likelihood(),
}
