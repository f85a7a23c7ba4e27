"""Tasks: what a network's output means, and how it is trained and read."""

from scantune.tasks.base import Task, main_output
from scantune.tasks.segmentation import Foreground, Segmentation, soft_dice_loss

TASKS: dict[str, type[Task]] = {"segmentation": Segmentation}

__all__ = ["TASKS", "Foreground", "Segmentation", "Task", "main_output", "soft_dice_loss"]
