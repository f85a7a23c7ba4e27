"""The contract of a task: what a network's output means."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from torch import Tensor

from scantune.errors import InputError


class Task(ABC):
    """What a task network is for: how its raw output is read, trained and scored."""

    name: ClassVar[str]

    @abstractmethod
    def loss(self, output: Any, target: Tensor) -> Tensor:
        """The training loss, a scalar."""

    @abstractmethod
    def predict(self, output: Any) -> Tensor:
        """The prediction that a user sees, from the network's raw output."""

    @abstractmethod
    def foreground(self, output: Any) -> Tensor:
        """Probability that a pixel belongs to the region of interest, `(slices, 1, *spatial)`."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """Everything needed to make this task again, as JSON."""

    @classmethod
    @abstractmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The inverse of `record`."""


def main_output(output: Any) -> Tensor:
    """The tensor that counts in a network's output: the first of a tuple or list, `out` of a dictionary."""
    if isinstance(output, Mapping):
        output = output["out"] if "out" in output else next(iter(output.values()))
    while isinstance(output, tuple | list) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InputError(
            f"The network gives {type(output).__name__}, expected a tensor, a tuple that starts with one, or a "
            "dictionary of tensors; wrap the network so that it does."
        )
    return output
