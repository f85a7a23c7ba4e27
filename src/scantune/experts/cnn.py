"""CNN experts: every channel of every chosen layer of the task network (Eq. 7 to 9)."""

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from scantune.experts.base import Experts, Outputs, at_least_float32, image_weights
from scantune.experts.recorder import Recording
from scantune.networks import Affine
from scantune.tasks import Task, task_from_record, task_record

OUTPUT = "output"
"""The group of the output channels."""


@dataclass(frozen=True)
class CNNExperts(Experts):
    """The channels f_cl of the task network's layers; a pixel of a channel is one sample.

    Args:
        chosen: Names of the layers, relative to the task network.
        output: How the output is read if its class probabilities are experts too, as in the authors' code.
    """

    name: ClassVar[str] = "cnn"
    chosen: tuple[str, ...]
    output: Task | None = None

    def layers(self) -> list[str]:
        """Return all chosen layers."""
        return list(self.chosen)

    def outputs(self, recording: Recording, padding: Tensor | None) -> Iterator[Outputs]:
        """Yield the features themselves, layer by layer."""
        for layer in self.chosen:
            features = recording.features[layer]
            yield layer, features, image_weights(padding, features)
        if self.output is not None:
            probabilities = at_least_float32(self.output.probabilities(recording.output))
            yield OUTPUT, probabilities, image_weights(padding, probabilities)

    def narrowed(self, groups: Container[str]) -> Self:
        """Return the experts of some layers alone."""
        chosen = tuple(layer for layer in self.chosen if layer in groups)
        return replace(self, chosen=chosen, output=self.output if OUTPUT in groups else None)

    def folded(self, maps: Mapping[str, Affine]) -> tuple[Self, Mapping[str, Affine]]:
        """Return the same experts, whose outputs are mapped."""
        return self, {layer: maps[layer] for layer in self.chosen if layer in maps}

    def tensors(self) -> dict[str, Tensor]:
        """Return no tensors, since the experts are the network's own filters."""
        return {}

    def record(self) -> dict[str, Any]:
        """Return the layers, and how the output is read if its channels are experts."""
        output = {} if self.output is None else {"output": task_record(self.output)}
        return {"layers": list(self.chosen), **output}

    @classmethod
    def restore(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:  # noqa: ARG003
        """Restore the experts from a model file."""
        output = task_from_record(record["output"]) if "output" in record else None
        return cls(tuple(record["layers"]), output)
