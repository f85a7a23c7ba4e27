"""No adaptation: the trained network as it is, the lower bound of every comparison."""

from typing import ClassVar

from torch import Tensor, nn

from scantune.methods.base import Method, Terms
from scantune.networks import AdaptableNetwork
from scantune.prior import Statistics


class Source(Method):
    """Moves nothing."""

    name: ClassVar[str] = "source"

    def parameters(self, network: AdaptableNetwork) -> dict[str, nn.Parameter]:  # noqa: ARG002
        """None."""
        return {}

    def measure(self, images: Tensor, padding: Tensor | None) -> Statistics:  # noqa: ARG002
        """Nothing is measured."""
        return {"nothing": images.new_zeros(1)}

    def terms(self, statistics: Statistics) -> Terms:
        """A constant."""
        return Terms(statistics["nothing"].sum(), {})
