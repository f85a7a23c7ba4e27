"""The contract of a helper network: trained beside the task network, it travels in the model file."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import nn


class Helper(nn.Module, ABC):
    """A network that a method needs at test time, such as an autoencoder."""

    name: ClassVar[str]
    """Also the name of the method that it serves."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Return everything needed to build the network again but its weights, as JSON."""

    @classmethod
    @abstractmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Build the network of a `record`, with random weights."""
