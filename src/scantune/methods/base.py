"""The contract of a method: which parameters move, and the objective that moves them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from scantune.networks import AdaptableNetwork
from scantune.prior import FieldOfExperts, Statistics
from scantune.tasks import Segmentation


@dataclass(frozen=True)
class Terms:
    """The objective of a step and what it is made of.

    Args:
        objective: The scalar that is minimised.
        parts: Its terms by name, unweighted scalars.
        valid: False where the step must not be chosen as the result.
    """

    objective: Tensor
    parts: dict[str, Tensor]
    valid: bool = True


@dataclass(frozen=True)
class Equipment:
    """What a method may use: how outputs are read, and the prior where there is one."""

    task: Segmentation
    prior: FieldOfExperts | None = None


class Method(ABC):
    """A way to adapt. The loop, the optimiser and the choice of the final step belong to `adapt.py`.

    An objective is a function of statistics that add up over slices, so that it can be taken of a whole volume at
    bounded memory: `measure` gives the statistics of a batch, `terms` the objective of their sum.
    """

    name: ClassVar[str]
    learning_rate: ClassVar[float] = 1e-4
    """Adam's, under the `paper` preset."""

    def __init__(self, equipment: Equipment) -> None:
        self.task = equipment.task

    def prepare(self, network: AdaptableNetwork) -> None:
        """Makes a frozen copy of the network ready; called once, before the first step."""
        self.network = network

    def parameters(self, network: AdaptableNetwork) -> dict[str, nn.Parameter]:
        """What moves, by name; by default the normaliser."""
        return {f"normalizer.{name}": parameter for name, parameter in network.normalizer.named_parameters()}

    def finish(self) -> None:  # noqa: B027
        """Lets go of what `prepare` took hold of; called once, after the last step."""

    @abstractmethod
    def measure(self, images: Tensor, padding: Tensor | None) -> Statistics:
        """Statistics of a batch `(slices, channels, *spatial)` that add up over slices; differentiable."""

    @abstractmethod
    def terms(self, statistics: Statistics) -> Terms:
        """The objective, from the statistics of a whole volume or of a batch."""
