"""The log of a training run."""

import logging
from pathlib import Path
from typing import Self

from scantune.checkpoint import Record


class TensorBoard:
    """A log of a run that TensorBoard reads."""

    def __init__(self, folder: Path, iteration: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Lines after the checkpoint that a run resumes from are written again: drop the old ones.
        self.writer = SummaryWriter(folder, purge_step=iteration + 1)

    @classmethod
    def open(cls, folder: Path | None, iteration: int) -> Self | None:
        """Open the log of a run that stands at an iteration; None without a folder or without TensorBoard."""
        if folder is None:
            return None
        try:
            return cls(folder, iteration)
        except ImportError:
            logging.getLogger(__name__).warning(
                "No log is written to %s: the package tensorboard is missing (pip install tensorboard).",
                folder,
            )
            return None

    def write(self, record: Record) -> None:
        """Add a line of the history."""
        self.writer.add_scalar("loss", record.loss, record.iteration)
        if record.dice is not None:
            self.writer.add_scalar("validation Dice", record.dice, record.iteration)
        self.writer.flush()
