"""No adaptation: the trained network as it is, the lower bound of every comparison."""

from typing import ClassVar

from scantune.methods.base import Method, Parameters, Terms
from scantune.networks import AdaptableNetwork
from scantune.prior.field_of_experts import Statistics
from scantune.scans.volume import Batch, Volume


class Source(Method):
    """Moves nothing."""

    name: ClassVar[str] = "source"

    def equip(self, network: AdaptableNetwork, volume: Volume) -> AdaptableNetwork:  # noqa: ARG002
        """Return the network as it is."""
        return network

    def parameters(self, network: AdaptableNetwork) -> Parameters:  # noqa: ARG002
        """Return no parameters."""
        return {}

    def measure(self, batch: Batch) -> Statistics:
        """Return a constant."""
        return {"nothing": batch.images.new_zeros(1)}

    def terms(self, statistics: Statistics) -> Terms:
        """Return a constant objective."""
        return Terms(statistics["nothing"].sum(), {})
