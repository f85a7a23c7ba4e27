"""Batches of a volume side by side on a CPU: one thread a core, each with batches of its own.

Threads that share the work of every single operation wait for each other a thousand times a step; threads that share
the batches wait once.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from scantune.prior.field_of_experts import Statistics
from scantune.runtime.threads import Threads


class Crew(Threads):
    """Threads that measure batches, and take their gradients.

    Args:
        moving: The parameters whose gradient is wanted.
        number: How many threads there are.
    """

    def __init__(self, moving: Sequence[nn.Parameter], number: int) -> None:
        super().__init__(number)
        self.moving = moving
        self.kept: float | None = None
        """Bytes that a slice keeps for its gradient, once they are known."""

    def slopes(self, parts: Statistics, slope: Statistics) -> list[Tensor | None]:
        """The gradient at the moving parameters of what one batch adds, in one of the threads.

        Args:
            parts: The statistics of the batch.
            slope: The objective's gradient with respect to their sum over all batches, where it has one.
        """
        used = [(part, slope[key].to(part)) for key, part in parts.items() if key in slope and part.requires_grad]
        if not used:
            return [None] * len(self.moving)
        outputs, theirs = [part for part, _ in used], [one for _, one in used]
        return list(torch.autograd.grad(outputs, self.moving, theirs, allow_unused=True))

    def add(self, gradients: Iterable[Sequence[Tensor | None]]) -> None:
        """Adds the batches' gradients to `.grad` in their order, so that sums do not depend on who was first."""
        for each in gradients:
            for parameter, found in zip(self.moving, each, strict=True):
                if found is not None:
                    parameter.grad = found if parameter.grad is None else parameter.grad + found
