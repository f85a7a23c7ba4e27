"""What the evaluation of an objective has predicted on its way, so that a look at predictions need not do it again."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scantune.scans.volume import Batch


class OutputCache:
    """A network's outputs for some slices of a scan, at the parameters of the latest evaluation.

    On a CPU alone: on a GPU a step is replayed, and nobody is there to note anything.
    """

    def __init__(self) -> None:
        self.slices: Sequence[int] = ()
        """Those whose outputs are wanted."""
        self._found: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Called before an evaluation, when the parameters have moved."""
        self._found = {}

    def note(self, batch: Batch, output: object) -> None:
        """Called by whoever has a network's output for a batch; threads may do so side by side."""
        if not self.slices or not isinstance(output, Tensor) or output.device.type != "cpu":
            return
        if len(output) == len(batch.slices):
            each = zip(batch.slices.tolist(), output.detach(), strict=True)
            self._found.update({number: part for number, part in each if number in self.slices})

    def output(self) -> Tensor | None:
        """The outputs `(slices, ...)`; None where some are not known."""
        if not self.slices or any(number not in self._found for number in self.slices):
            return None
        return torch.stack([self._found[number] for number in self.slices])
