"""The log of a training run."""

import logging
from pathlib import Path
from typing import Self

from scantune.training.checkpoint import Record


class TensorBoard:
    """A log of a run that TensorBoard reads."""

    def __init__(self, folder: Path, iteration: int, score_name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.score_name = score_name
        # Lines after the checkpoint that a run resumes from are written again: drop the old ones.
        self.writer = SummaryWriter(folder, purge_step=iteration + 1)

    @classmethod
    def open(cls, folder: Path | None, iteration: int, score_name: str) -> Self | None:
        """Open the log of a run that stands at an iteration; None without a folder or without TensorBoard."""
        if folder is None:
            return None
        try:
            return cls(folder, iteration, score_name)
        except ImportError:
            logging.getLogger(__name__).warning(
                "No log is written to %s: the package tensorboard is missing (pip install tensorboard).",
                folder,
            )
            return None

    def write(self, record: Record) -> None:
        """Add a line of the history."""
        self.writer.add_scalar("loss", record.loss, record.iteration)
        if record.score is not None:
            self.writer.add_scalar(f"validation {self.score_name}", record.score, record.iteration)
        self.writer.flush()
