"""Tasks: what a network's output means, and how it is trained and read."""

from collections.abc import Mapping
from typing import Any

from scantune.errors import InputError
from scantune.tasks.base import Task, soft_dice_loss
from scantune.tasks.outputs import OutputChoice, main_output
from scantune.tasks.registration import Registration
from scantune.tasks.segmentation import Foreground, Segmentation
from scantune.tasks.structures import are_masks, painted, structure_counts, structure_mask

TASKS: dict[str, type[Task]] = {"segmentation": Segmentation, "registration": Registration}


def find_task(name: str) -> type[Task]:
    """Return a task by its name.

    Raises:
        InputError: There is no such task.
    """
    if name not in TASKS:
        raise InputError(f"Unknown task {name!r}. Available: {', '.join(TASKS)}.")
    return TASKS[name]


def task_record(task: Task) -> dict[str, Any]:
    """Return a task as a model file stores it: its name and its record."""
    return {"name": task.name, **task.record()}


def task_from_record(record: Mapping[str, Any]) -> Task:
    """Restore a task from `task_record`; a record without a name is of a segmentation."""
    return find_task(record.get("name", Segmentation.name)).from_record(record)


__all__ = [
    "TASKS",
    "Foreground",
    "OutputChoice",
    "Registration",
    "Segmentation",
    "Task",
    "are_masks",
    "find_task",
    "main_output",
    "painted",
    "soft_dice_loss",
    "structure_counts",
    "structure_mask",
    "task_from_record",
    "task_record",
]
