"""CNN experts: every channel of every chosen layer of the task network (Eq. 7 to 9)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from scantune.experts.base import Experts, Outputs, inside, precise
from scantune.experts.features import Recording
from scantune.networks import Affine


@dataclass(frozen=True)
class CNNExperts(Experts):
    """The channels f_cl of the task network's layers; a pixel of a channel is one sample.

    Args:
        chosen: Names of the layers, relative to the task network.
    """

    name: ClassVar[str] = "cnn"
    chosen: tuple[str, ...]

    def layers(self) -> list[str]:
        """All chosen layers."""
        return list(self.chosen)

    def outputs(self, recording: Recording, padding: Tensor | None) -> Iterator[Outputs]:
        """The features themselves, one group per layer."""
        for layer in self.chosen:
            features = precise(recording.features[layer])
            yield layer, features, inside(padding, features)

    def folded(self, maps: Mapping[str, Affine]) -> tuple[Self, Mapping[str, Affine]]:
        """A channel stays the same channel; its outputs are mapped."""
        return self, maps

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the experts are the network's own filters."""
        return {}

    def record(self) -> dict[str, Any]:
        """The layers."""
        return {"layers": list(self.chosen)}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:  # noqa: ARG003
        """From the layers."""
        return cls(tuple(record["layers"]))
