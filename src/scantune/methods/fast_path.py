"""What the loop may do to evaluate a method faster; the plain way gives the same result."""

from collections.abc import Sequence

import torch
from torch import Tensor

from scantune.scans.volume import Batch, Volume


class OutputCache:
    """The network's outputs for some slices of a scan, at the parameters of the latest evaluation.

    The guard needs predictions at the parameters that the loop has just evaluated, and takes them from here instead of
    running the network again. On a CPU only: a replayed CUDA graph runs no Python that could fill the cache.
    """

    def __init__(self) -> None:
        self.slices: Sequence[int] = ()
        """Numbers of the slices whose outputs are wanted."""
        self._outputs: dict[int, Tensor] = {}

    def forget(self) -> None:
        """Drop all outputs, since the parameters have moved."""
        self._outputs = {}

    def note(self, batch: Batch, output: object) -> None:
        """Keep the wanted slices of a network's output for a batch; several threads may call this."""
        if not self.slices or not isinstance(output, Tensor) or output.device.type != "cpu":
            return
        if len(output) == len(batch.slices):
            each = zip(batch.slices.tolist(), output.detach(), strict=True)
            self._outputs.update({number: part for number, part in each if number in self.slices})

    def output(self) -> Tensor | None:
        """Return the outputs of the wanted slices `(slices, ...)`; None if some are missing."""
        if not self.slices or any(number not in self._outputs for number in self.slices):
            return None
        return torch.stack([self._outputs[number] for number in self.slices])


class FastPath:
    """Permissions of a method for the loop, and what it keeps for others; by default the loop does nothing special.

    Args:
        capturable: Whether `measure` and `terms` make no decision on the host that differs between steps, so that a
            step can be captured as a CUDA graph.
        thread_safe: Whether several threads may call `measure` at the same time.
        slices: Number of slices of a scan that stand for all of them in exact steps; 0 for all slices.
    """

    def __init__(self, *, capturable: bool = False, thread_safe: bool = False, slices: int = 0) -> None:
        self.capturable, self.thread_safe, self.slices = capturable, thread_safe, slices
        self.outputs = OutputCache()

    def representative(self, volume: Volume) -> Volume:
        """Return the slices that stand for a volume in exact steps, evenly spaced."""
        return volume.thinned(self.slices or len(volume.images))

    def leave_half_precision(self) -> bool:
        """Go on in single precision after a gradient that is not finite; return False if that was in use."""
        return False
